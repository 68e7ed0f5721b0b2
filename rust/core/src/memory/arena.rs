//! [`NodeArenas`]: one [`Arena`] a node in use, at fixed addresses, and the way to their bytes.
//!
//! Reserves addresses and gives everything back on drop; `commit` gives an arena its pages. Knows
//! nothing of what lies in an arena. Made by the loader, read by whoever resolves a program.
#![expect(
    unsafe_code,
    reason = "memory from mmap is a raw pointer until it is wrapped here"
)]

use std::ops::Range;
use std::ptr::NonNull;

use super::address::{Lease, leased_bytes, stride_bytes};
use super::commit::Committed;
use super::{HUGE_PAGE_BYTES, refusal};
use crate::error::{Error, MemoryLimit, Result};
use crate::sys;
use crate::topology::NodeId;
use crate::workers::NodeIndex;

/// Memory of one node: reserved to its size in whole huge pages, without access until committed.
#[derive(Debug)]
pub struct Arena {
    base: NonNull<u8>,
    len_bytes: usize,
    reserved_bytes: usize,
    kernel_node: Option<NodeId>,
    owner_pid: u32,
}

// SAFETY: an Arena owns its range as a Box<[u8]> does: no thread-local state is attached to it, and
// munmap may be called from any thread.
unsafe impl Send for Arena {}

// SAFETY: through &Arena only a raw pointer can be had; whoever uses it takes on the duty stated at
// `base_ptr`.
unsafe impl Sync for Arena {}

impl Arena {
    fn reserve(
        range: Range<usize>,
        len_bytes: usize,
        kernel_node: Option<NodeId>,
    ) -> std::io::Result<Self> {
        let pointer = sys::reserve_at(range.start, range.len())?;
        let taken = || std::io::Error::from_raw_os_error(libc::EEXIST);
        Ok(Self {
            base: NonNull::new(pointer).ok_or_else(taken)?,
            len_bytes,
            reserved_bytes: range.len(),
            kernel_node,
            owner_pid: sys::process_id(),
        })
    }

    /// Address of the first byte, valid for `len_bytes` from the first touch until the arenas are
    /// dropped. A forked child has no memory behind it.
    ///
    /// Whoever writes through it makes sure that no other thread accesses the same bytes at that
    /// time; whoever reads, that nobody writes.
    #[must_use]
    pub fn base_ptr(&self) -> NonNull<u8> {
        self.base
    }

    /// Size as asked for.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Size in whole huge pages: what is reserved, committed and touched.
    #[must_use]
    pub fn reserved_bytes(&self) -> usize {
        self.reserved_bytes
    }

    /// The kernel's node that the arena is for; `None` when it is bound to none.
    #[must_use]
    pub fn kernel_node(&self) -> Option<NodeId> {
        self.kernel_node
    }

    /// All addresses that the arena has.
    pub(super) fn range(&self) -> Range<usize> {
        let start = self.base.addr().get();
        start..start + self.reserved_bytes
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // A forked child has no pages of ours to give back.
        if self.owner_pid == sys::process_id() {
            // SAFETY: reserved by `reserve` and unmapped only here; users of base_ptr have ended.
            // The call can't fail on a whole reservation, and nothing could be done about it.
            let _ = unsafe { sys::unmap(self.base.as_ptr(), self.reserved_bytes) };
        }
    }
}

/// The arenas of one model, all at the same offset from their nodes' bases.
#[derive(Debug)]
pub struct NodeArenas {
    what: String,
    /// Dropped before the lease of their addresses.
    pub(super) arenas: Vec<Arena>,
    /// Bytes of the first arena that lie on all nodes; at its end, empty if there are none.
    pub(super) interleaved: Range<usize>,
    pub(super) committed: Option<Committed>,
    _lease: Lease,
}

impl NodeArenas {
    /// Reserves the addresses of one arena a node; nothing can be accessed yet.
    ///
    /// # Args
    /// `what`: what the memory is for, in words for messages. `sizes_bytes`: one a node in use, any
    /// size. `kernel_nodes`: the kernel's node that each is to lie on, `None` to leave it to the
    /// thread that touches it first (pretended nodes).
    ///
    /// # Errors
    /// [`Error::AddressTaken`] when something foreign lies there (never silently moved);
    /// [`Error::MemoryLimit`] naming the limit that forbids it, else [`Error::OutOfMemory`].
    ///
    /// # Panics
    /// If the two lists are empty or of different lengths.
    pub fn reserve(
        what: &str,
        sizes_bytes: &[usize],
        kernel_nodes: &[Option<NodeId>],
    ) -> Result<Self> {
        assert!(!sizes_bytes.is_empty(), "no arena");
        assert_eq!(sizes_bytes.len(), kernel_nodes.len(), "one node an arena");
        let round = |size: &usize| (*size).max(1).checked_next_multiple_of(HUGE_PAGE_BYTES);
        let rounded: Option<Vec<usize>> = sizes_bytes.iter().map(round).collect();
        let lease = rounded.as_deref().and_then(Lease::take);
        let lease = lease.ok_or_else(|| no_room(what, sizes_bytes))?;
        let mut arenas = Vec::with_capacity(sizes_bytes.len());
        for (node, (&len_bytes, &kernel_node)) in sizes_bytes.iter().zip(kernel_nodes).enumerate() {
            let range = lease.range(NodeIndex(node));
            match Arena::reserve(range.clone(), len_bytes, kernel_node) {
                Ok(arena) => arenas.push(arena),
                Err(source) if source.raw_os_error() == Some(libc::EEXIST) => {
                    return Err(refusal::address_taken(what, range));
                }
                Err(source) => {
                    // What was had so far must not count as used by others.
                    arenas.clear();
                    let wanted_bytes = rounded.iter().flatten().sum();
                    return Err(refusal::out_of_memory(what, wanted_bytes, source));
                }
            }
        }
        let end = arenas[0].reserved_bytes;
        Ok(Self {
            what: what.to_owned(),
            arenas,
            interleaved: end..end,
            committed: None,
            _lease: lease,
        })
    }

    /// Has the end of the first arena dealt to all nodes a page each in turn, when it is committed.
    /// With one kernel node, or none known, it is memory as any other.
    ///
    /// # Args
    /// `bytes`: whole huge pages at the arena's end, or nothing.
    ///
    /// # Panics
    /// If it is another range, or the arenas are committed.
    pub fn interleave(&mut self, bytes: Range<usize>) {
        if bytes.is_empty() {
            return;
        }
        assert!(self.committed.is_none(), "interleaved after the commit");
        assert!(
            bytes.start.is_multiple_of(HUGE_PAGE_BYTES)
                && bytes.end == self.arenas[0].reserved_bytes,
            "not the arena's end"
        );
        self.interleaved = bytes;
    }

    /// Bytes of the first arena that lie on all nodes.
    #[must_use]
    pub fn interleaved(&self) -> Range<usize> {
        self.interleaved.clone()
    }

    /// What the memory is for.
    #[must_use]
    pub fn what(&self) -> &str {
        &self.what
    }

    /// Nodes in use.
    #[must_use]
    pub fn n_nodes(&self) -> usize {
        self.arenas.len()
    }

    /// The arena of a node.
    ///
    /// # Panics
    /// If the node is not one of those in use.
    #[must_use]
    pub fn arena(&self, node: NodeIndex) -> &Arena {
        &self.arenas[node.0]
    }

    /// The arenas by node.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (NodeIndex, &Arena)> {
        let arenas = self.arenas.iter().enumerate();
        arenas.map(|(node, arena)| (NodeIndex(node), arena))
    }

    /// What pages the arenas have, once [`Self::commit`] or the first touch has decided it.
    #[must_use]
    pub fn committed(&self) -> Option<&Committed> {
        self.committed.as_ref()
    }

    /// The node's own copy of what lies at `offset_bytes` of every arena. Duties as for
    /// [`Arena::base_ptr`].
    ///
    /// # Panics
    /// If the offset lies outside that node's arena.
    #[must_use]
    pub fn at(&self, node: NodeIndex, offset_bytes: usize) -> NonNull<u8> {
        let arena = self.arena(node);
        assert!(offset_bytes <= arena.len_bytes, "outside the arena");
        // SAFETY: at most one past the end of the reservation that the arena owns.
        unsafe { arena.base.add(offset_bytes) }
    }

    /// All bytes of every arena, by node, for writing; after the first touch, as all access.
    ///
    /// # Panics
    /// If the arenas are not committed.
    #[must_use]
    pub fn as_mut_slices(&mut self) -> Vec<&mut [u8]> {
        assert!(self.committed.is_some(), "not committed");
        let slice = |arena: &mut Arena| {
            // SAFETY: committed (asserted), zeroed by the kernel, disjoint from the other arenas,
            // and lives as long as self, of which this is the only borrow.
            unsafe { std::slice::from_raw_parts_mut(arena.base.as_ptr(), arena.len_bytes) }
        };
        self.arenas.iter_mut().map(slice).collect()
    }
}

/// The error for sizes that no offset is left for.
fn no_room(what: &str, sizes_bytes: &[usize]) -> Error {
    let largest = sizes_bytes.iter().copied().max().unwrap_or(0);
    Error::MemoryLimit {
        what: what.to_owned(),
        wanted_bytes: largest as u64,
        limit: MemoryLimit::NodeAddresses,
        limit_bytes: stride_bytes(sizes_bytes.len()) as u64,
        used_bytes: leased_bytes(sizes_bytes.len()) as u64,
    }
}
