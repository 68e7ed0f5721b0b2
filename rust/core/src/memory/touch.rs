//! The first touch: every page of every arena gets its memory from a thread of the arena's node.
//!
//! Touches in pieces, never with a signal; what a refusal leads to is decided here, how to step
//! down is `commit`'s knowledge. Called by the loader once, before anything is written.
#![expect(unsafe_code, reason = "fills pages behind raw addresses")]

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::HUGE_PAGE_BYTES;
use super::arena::{Arena, NodeArenas};
use super::commit::Committed;
use super::pages::PageKind;
use super::refusal;
use super::span::Span;
use crate::error::{Error, Result};
use crate::sys;
use crate::topology::{NodeId, node_memory};
use crate::workers::{Control, NodeIndex, Team, Workers};

/// Largest piece: 64 threads of a node together take at most the memory that is kept free.
const MAX_PIECE_BYTES: usize = 16 << 20;

/// Pieces an arena is cut into, sizes permitting, so that its threads end at about the same time.
const PIECES_AN_ARENA: usize = 256;

/// Most that is left free of a node; a small node keeps one part in `KEPT_SHARE` of its memory.
const KEPT_BYTES: u64 = 1 << 30;
const KEPT_SHARE: u64 = 50;

/// Some pages of one arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TouchPiece {
    /// Whose arena.
    pub node: NodeIndex,
    /// Byte range in the arena, whole huge pages.
    pub bytes: Range<usize>,
}

/// Cuts all arenas into pieces of 2 to 16 MiB.
///
/// # Args
/// `n_nodes`: nodes that have threads. An arena of a node without is dealt to the others in turn,
/// as are the pieces of what is interleaved.
///
/// # Returns
/// The pieces of each of the `n_nodes` nodes' threads.
#[must_use]
pub fn touch_pieces(arenas: &NodeArenas, n_nodes: usize) -> Vec<Vec<TouchPiece>> {
    let mut pieces = vec![Vec::new(); n_nodes];
    for span in arenas.spans() {
        let (start, end) = (span.bytes.start, span.bytes.end);
        let step = (span.bytes.len() / PIECES_AN_ARENA).next_multiple_of(HUGE_PAGE_BYTES);
        let step = step.clamp(HUGE_PAGE_BYTES, MAX_PIECE_BYTES);
        for (i, start) in (start..end).step_by(step).enumerate() {
            // Dealt in turn, so that it is spread even where the kernel was not told to.
            let toucher = if span.is_shared { i } else { span.node.0 };
            pieces[toucher % n_nodes].push(TouchPiece {
                node: span.node,
                bytes: start..(start + step).min(end),
            });
        }
    }
    pieces
}

/// Touches every page of the arenas, each node's by its own threads, in parallel.
///
/// When pool pages run out after all, every arena goes back to ordinary pages and is touched anew;
/// the answer then says why.
///
/// # Args
/// `workers`: all take part; their n-th node touches the n-th arena. `progress` gets the bytes
/// touched so far, about twenty times a second, and may stop the work.
///
/// # Errors
/// [`Error::NodeMemory`] when a node would be left without free memory, [`Error::MemoryLimit`],
/// [`Error::OutOfMemory`], [`Error::Interrupted`]; [`Error::Internal`] before `commit`.
pub fn first_touch(
    arenas: &mut NodeArenas,
    workers: &Workers,
    progress: &mut dyn FnMut(u64) -> Control,
) -> Result<Committed> {
    let Some(committed) = arenas.committed().cloned() else {
        return Err(Error::Internal("first touch before commit".into()));
    };
    let sysfs_root = committed.sysfs_root.clone();
    match Touch::new(arenas, committed.pages, &sysfs_root).run(workers, progress) {
        Ok(()) => Ok(committed),
        Err(Refusal::Final(error)) => Err(error),
        Err(Refusal::PoolEmpty(reason)) => {
            let committed = arenas.fall_back(reason, &sysfs_root)?;
            let touch = Touch::new(arenas, committed.pages, &sysfs_root);
            match touch.run(workers, progress) {
                Ok(()) => Ok(committed),
                Err(Refusal::Final(error)) => Err(error),
                Err(Refusal::PoolEmpty(reason)) => Err(Error::Internal(reason)),
            }
        }
    }
}

/// Why a touch ended early.
enum Refusal {
    /// The pool has fewer pages than it promised: ordinary ones may do.
    PoolEmpty(String),
    /// Nothing else can be tried.
    Final(Error),
}

/// One attempt: what the workers share.
struct Touch<'a> {
    arenas: &'a NodeArenas,
    spans: Vec<Span>,
    pages: PageKind,
    sysfs_root: &'a Path,
    can_populate: bool,
    done_bytes: AtomicU64,
    refusal: Mutex<Option<Refusal>>,
}

impl<'a> Touch<'a> {
    fn new(arenas: &'a NodeArenas, pages: PageKind, sysfs_root: &'a Path) -> Self {
        Self {
            arenas,
            spans: arenas.spans(),
            pages,
            sysfs_root,
            can_populate: sys::can_populate(),
            done_bytes: AtomicU64::new(0),
            refusal: Mutex::new(None),
        }
    }

    fn run(
        &self,
        workers: &Workers,
        progress: &mut dyn FnMut(u64) -> Control,
    ) -> std::result::Result<(), Refusal> {
        let pieces = touch_pieces(self.arenas, workers.n_nodes());
        let job = |team: &Team<'_>| {
            let own = &pieces[team.node().0];
            while let Some(next) = team.next_chunk(own.len()) {
                if self.refusal().is_some() {
                    return;
                }
                if let Err(refusal) = self.touch(&own[next]) {
                    self.refusal().get_or_insert(refusal);
                }
            }
        };
        let mut poll = || progress(self.done_bytes.load(Relaxed));
        let ran = workers.run(workers.n_threads(), &job, &mut poll);
        if let Some(refusal) = self.refusal().take() {
            return Err(refusal);
        }
        ran.map_err(Refusal::Final)?;
        progress(self.done_bytes.load(Relaxed));
        Ok(())
    }

    fn refusal(&self) -> MutexGuard<'_, Option<Refusal>> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn touch(&self, piece: &TouchPiece) -> std::result::Result<(), Refusal> {
        let arena = self.arenas.arena(piece.node);
        // Pool pages are set aside already, and short of them there is an error; short of others,
        // bound to a node, the kernel kills the process.
        if self.pages != PageKind::Huge2M {
            self.look_at(piece).map_err(Refusal::Final)?;
        }
        fill(arena, &piece.bytes, self.can_populate)
            .map_err(|source| self.refused(piece, source))?;
        self.done_bytes.fetch_add(piece.bytes.len() as u64, Relaxed);
        Ok(())
    }

    /// Refuses a piece that would not leave enough of its nodes free.
    fn look_at(&self, piece: &TouchPiece) -> Result<()> {
        let mut spans = self.spans.iter();
        let span =
            spans.find(|span| span.node == piece.node && span.bytes.contains(&piece.bytes.start));
        let Some(span) = span else { return Ok(()) };
        let rest_bytes = span.bytes.end - piece.bytes.start;
        let whole = span.policy.claims(rest_bytes).into_iter();
        for ((node, rest_bytes), (_, n_bytes)) in whole.zip(span.policy.claims(piece.bytes.len())) {
            if let Some(node) = node {
                self.look_at_node(node, n_bytes, rest_bytes)?;
            }
        }
        Ok(())
    }

    fn look_at_node(&self, node: NodeId, n_bytes: usize, rest_bytes: usize) -> Result<()> {
        let Some(memory) = node_memory(self.sysfs_root, node)? else {
            return Ok(());
        };
        let kept_bytes = KEPT_BYTES.min(memory.total_bytes / KEPT_SHARE);
        if memory.reclaimable_bytes >= n_bytes as u64 + kept_bytes {
            return Ok(());
        }
        Err(Error::NodeMemory {
            what: self.arenas.what().to_owned(),
            node: node.0,
            wanted_bytes: rest_bytes as u64,
            free_bytes: memory.reclaimable_bytes,
            kept_bytes,
        })
    }

    fn refused(&self, piece: &TouchPiece, source: io::Error) -> Refusal {
        let what = self.arenas.what();
        if self.pages == PageKind::Huge2M {
            let node = piece.node.0;
            let reason = format!("2 MiB pages ran out on arena {node} of {what}: {source}");
            return Refusal::PoolEmpty(reason);
        }
        Refusal::Final(refusal::out_of_memory(what, piece.bytes.len(), source))
    }
}

/// Gives the pages of a range memory.
fn fill(arena: &Arena, bytes: &Range<usize>, can_populate: bool) -> io::Result<()> {
    let start = arena.base_ptr().as_ptr().wrapping_add(bytes.start);
    if can_populate {
        // SAFETY: whole pages of an arena that is committed (`first_touch`).
        return unsafe { sys::populate(start, bytes.len()) };
    }
    for offset in (0..bytes.len()).step_by(sys::page_bytes()) {
        // SAFETY: inside the committed arena; no one else has a use for it yet, and it holds zeros.
        unsafe { start.wrapping_add(offset).write_volatile(0) };
    }
    Ok(())
}
