//! From a reservation to pages: one kind for all arenas, each step down with its reason.
//!
//! Maps and binds; touches nothing (`touch` does). Knows the order of the steps; what there is to
//! be had is `pages`' knowledge.
#![expect(unsafe_code, reason = "changes what lies behind the arenas' addresses")]

use std::io;
use std::panic;
use std::path::{Path, PathBuf};
use std::thread;

use super::arena::{Arena, NodeArenas};
use super::pages::{PageKind, pool_lack, transparent_lack};
use super::refusal;
use super::span::{Policy, Span};
use crate::error::{Error, Result};
use crate::sys;

/// What the arenas got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Pages of all arenas.
    pub pages: PageKind,
    /// Why not those that were wished for, in words.
    pub reason: Option<String>,
    /// The kernel forbade to bind memory to nodes (usual in containers): where a page lies then
    /// depends on the thread that touches it first.
    pub bind_refused: bool,
    /// Where the nodes' free memory is read.
    pub(super) sysfs_root: PathBuf,
}

impl NodeArenas {
    /// Gives all arenas pages of one kind, the best there is up to `wish`, and binds each arena to
    /// its node. Nothing is touched: [`super::first_touch`] comes next, before any access.
    ///
    /// # Args
    /// `sysfs_root`: `/sys` or a copy; the pools are read there.
    ///
    /// # Errors
    /// [`Error::MemoryLimit`] or [`Error::OutOfMemory`] when not even small pages can be had,
    /// [`Error::System`] for a node that can't be bound to, [`Error::Internal`] the second time.
    pub fn commit(&mut self, wish: PageKind, sysfs_root: &Path) -> Result<Committed> {
        if self.committed.is_some() {
            return Err(Error::Internal("arenas are committed twice".into()));
        }
        let mut reasons = Vec::new();
        let pages = if wish == PageKind::Huge2M && self.has_huge(sysfs_root, &mut reasons)? {
            PageKind::Huge2M
        } else {
            self.commit_ordinary(wish, sysfs_root, &mut reasons)?
        };
        self.finish(pages, &reasons, sysfs_root)
    }

    /// Gives up pool pages that could not be touched and commits ordinary ones.
    pub(super) fn fall_back(&mut self, reason: String, sysfs_root: &Path) -> Result<Committed> {
        self.committed = None;
        self.reserve_again()?;
        let mut reasons = vec![reason];
        let pages = self.commit_ordinary(PageKind::Transparent, sysfs_root, &mut reasons)?;
        self.finish(pages, &reasons, sysfs_root)
    }

    /// Whether all arenas now consist of pool pages; if not, they are reservations as before.
    fn has_huge(&self, sysfs_root: &Path, reasons: &mut Vec<String>) -> Result<bool> {
        let spans = self.spans().into_iter();
        let sizes = spans.flat_map(|span| span.policy.claims(span.bytes.len()));
        if !sys::can_populate() {
            reasons.push("this kernel can't fill pool pages safely (Linux 5.14 can)".into());
        } else if let Some(lack) = pool_lack(sizes, sysfs_root) {
            reasons.push(lack);
        } else if let Err(source) = self.map_huge() {
            reasons.push(format!("2 MiB pages were refused: {source}"));
            self.reserve_again()?;
        } else {
            return Ok(true);
        }
        Ok(false)
    }

    /// Maps pool pages over all arenas, in a thread whose memory policy is the arena's: recent
    /// kernels then look whether that node's pool can hold it. The caller's policy is not touched.
    fn map_huge(&self) -> io::Result<()> {
        let map = |span: &Span| {
            let node = match span.policy {
                Policy::Bind(node) => Some(node.0),
                Policy::FirstTouch | Policy::Interleave(_) => None,
            };
            // A refusal only leaves the check to the first touch.
            let _ = sys::bind_thread(node);
            // SAFETY: the arena's own reservation, whole huge pages, which nobody can access yet.
            unsafe { sys::map_huge(self.start_of(span), span.bytes.len()) }
        };
        thread::scope(|scope| {
            let thread = thread::Builder::new().name("nm-map".into());
            let mapping = thread.spawn_scoped(scope, || self.spans().iter().try_for_each(map))?;
            mapping
                .join()
                .unwrap_or_else(|payload| panic::resume_unwind(payload))
        })
    }

    fn reserve_again(&self) -> Result<()> {
        self.each(|arena| {
            // SAFETY: the arena's own addresses; nobody has accessed them, or the first touch,
            // the only one that has, is over.
            unsafe { sys::reserve_over(arena.base_ptr().as_ptr(), arena.reserved_bytes()) }
        })
    }

    fn commit_ordinary(
        &self,
        wish: PageKind,
        sysfs_root: &Path,
        reasons: &mut Vec<String>,
    ) -> Result<PageKind> {
        self.each(|arena| {
            // SAFETY: the arena's own reservation.
            unsafe { sys::commit(arena.base_ptr().as_ptr(), arena.reserved_bytes()) }
        })?;
        if wish == PageKind::Small {
            return Ok(PageKind::Small);
        }
        let lack = transparent_lack(sysfs_root).or_else(|| {
            let advised = self.arenas.iter().try_for_each(|arena| {
                // SAFETY: the arena's own range, mapped just now.
                unsafe { sys::advise_huge(arena.base_ptr().as_ptr(), arena.reserved_bytes()) }
            });
            let refused = |source| format!("transparent huge pages were refused: {source}");
            advised.err().map(refused)
        });
        let pages = if lack.is_none() {
            PageKind::Transparent
        } else {
            PageKind::Small
        };
        reasons.extend(lack);
        Ok(pages)
    }

    fn finish(
        &mut self,
        pages: PageKind,
        reasons: &[String],
        sysfs_root: &Path,
    ) -> Result<Committed> {
        let bind_refused = self.bind()?;
        // A child would keep pages taken after our end, and make copies of ours on other nodes.
        self.each(|arena| {
            // SAFETY: the arena's own mapping; a child is kept from using it (`Error::Forked`).
            unsafe { sys::advise_no_fork(arena.base_ptr().as_ptr(), arena.reserved_bytes()) }
        })?;
        let committed = Committed {
            pages,
            reason: (!reasons.is_empty()).then(|| reasons.join("; ")),
            bind_refused,
            sysfs_root: sysfs_root.to_owned(),
        };
        Ok(self.committed.insert(committed).clone())
    }

    /// Sets the policy of every span. Returns whether that is forbidden here.
    fn bind(&self) -> Result<bool> {
        for span in &self.spans() {
            let (pointer, len_bytes) = (self.start_of(span), span.bytes.len());
            let (nodes, answer) = match &span.policy {
                Policy::FirstTouch => continue,
                Policy::Bind(node) => {
                    // SAFETY: part of the arena's own mapping.
                    let answer = unsafe { sys::bind(pointer, len_bytes, node.0) };
                    (vec![node.0], answer)
                }
                Policy::Interleave(nodes) => {
                    let nodes: Vec<u32> = nodes.iter().map(|node| node.0).collect();
                    // SAFETY: part of the arena's own mapping.
                    let answer = unsafe { sys::interleave(pointer, len_bytes, &nodes) };
                    (nodes, answer)
                }
            };
            match answer.map_err(|source| (source.raw_os_error(), source)) {
                Ok(()) => {}
                Err((Some(libc::EPERM | libc::ENOSYS), _)) => return Ok(true),
                Err((_, source)) => {
                    let nodes: Vec<String> = nodes.iter().map(u32::to_string).collect();
                    let call = format!("mbind of {} to node {}", self.what(), nodes.join(", "));
                    return Err(Error::System { call, source });
                }
            }
        }
        Ok(false)
    }

    fn start_of(&self, span: &Span) -> *mut u8 {
        let arena = self.arena(span.node);
        arena.base_ptr().as_ptr().wrapping_add(span.bytes.start)
    }

    /// Applies a call to each arena; a refusal is told with the size of all.
    fn each(&self, call: impl Fn(&Arena) -> io::Result<()>) -> Result<()> {
        self.arenas.iter().try_for_each(call).map_err(|source| {
            let wanted_bytes = self.arenas.iter().map(Arena::reserved_bytes).sum();
            refusal::out_of_memory(self.what(), wanted_bytes, source)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{NodeArenas, PageKind};
    use std::path::Path;

    #[test]
    fn falling_back_gives_fresh_ordinary_pages_and_says_why() {
        let mut arenas = NodeArenas::reserve("test", &[5000, 3 << 20], &[None, None]).unwrap();
        let sysfs_root = Path::new("/nonexistent");
        arenas.commit(PageKind::Small, sysfs_root).unwrap();
        assert!(arenas.commit(PageKind::Small, sysfs_root).is_err());
        for slice in arenas.as_mut_slices() {
            slice.fill(1);
        }
        let got = arenas
            .fall_back("the pool ran out".into(), sysfs_root)
            .unwrap();
        let reason = got.reason.as_deref().unwrap();
        assert!(reason.starts_with("the pool ran out"), "{reason}");
        assert!(got.pages < PageKind::Huge2M);
        assert_eq!(arenas.committed(), Some(&got));
        for slice in arenas.as_mut_slices() {
            assert!(slice.iter().all(|&byte| byte == 0));
            slice.fill(2);
        }
    }
}
