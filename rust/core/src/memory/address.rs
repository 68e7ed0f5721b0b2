//! Where arenas lie: fixed bases, one a node, and offsets that no two models share.
//!
//! Numbers only: nothing is mapped here, and what others of the process have mapped is found out by
//! the kernel's refusal. `arena` is the only caller.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::HUGE_PAGE_BYTES;
use crate::sys;
use crate::workers::NodeIndex;

/// Base of the first node: far above a program, its heap and its libraries' usual places.
///
/// Source: llama.cpp discussion 12289 (numa mirror), which has its two nodes at 1 and 2 times this.
const FIRST_BASE: usize = 0x2000_0000_0000;

/// Address ranges of all live leases of the process, in no order.
static LEASED: Mutex<Vec<Range<usize>>> = Mutex::new(Vec::new());

/// Bytes between the bases of neighbouring nodes.
///
/// # Args
/// `n_nodes`: nodes in use. With more than two all arenas stay below the second of two.
#[must_use]
pub fn stride_bytes(n_nodes: usize) -> usize {
    if n_nodes <= 2 {
        FIRST_BASE
    } else {
        FIRST_BASE / n_nodes.next_power_of_two()
    }
}

/// Address at which the arena of a node starts when its offset is 0.
#[must_use]
pub fn base_address(n_nodes: usize, node: NodeIndex) -> usize {
    FIRST_BASE + node.0 * stride_bytes(n_nodes)
}

/// The right to the same offset on every node, given back on drop.
#[derive(Debug)]
pub(super) struct Lease {
    /// One a node.
    ranges: Vec<Range<usize>>,
    owner_pid: u32,
}

impl Lease {
    /// Takes the first offset that is free on every node for the largest of the arenas.
    ///
    /// Strides differ with the number of nodes, so addresses are compared, not offsets. A huge page
    /// between two leases keeps the kernel from joining their areas, and an overrun from going
    /// unseen.
    ///
    /// # Args
    /// `sizes_bytes`: one a node, multiples of 2 MiB.
    ///
    /// # Returns
    /// `None` when no offset below the stride is free.
    pub(super) fn take(sizes_bytes: &[usize]) -> Option<Self> {
        let n_nodes = sizes_bytes.len();
        let largest = sizes_bytes.iter().copied().max()?;
        let mut leased = leased();
        let offset = first_free(&leased, n_nodes, largest)?;
        let start = |node| base_address(n_nodes, NodeIndex(node)) + offset;
        let ranges: Vec<_> = (0..)
            .zip(sizes_bytes)
            .map(|(node, size)| start(node)..start(node) + size)
            .collect();
        leased.extend_from_slice(&ranges);
        Some(Self {
            ranges,
            owner_pid: sys::process_id(),
        })
    }

    /// The addresses of one node.
    pub(super) fn range(&self, node: NodeIndex) -> Range<usize> {
        self.ranges[node.0].clone()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // In a child the lock may be held by a thread that is not there: the range stays leased.
        if self.owner_pid == sys::process_id() {
            leased().retain(|range| !self.ranges.contains(range));
        }
    }
}

/// Bytes of one node that the leases of this process cover at most.
pub(super) fn leased_bytes(n_nodes: usize) -> usize {
    let leased = leased();
    let on_node = |node| {
        let base = base_address(n_nodes, NodeIndex(node));
        let span = base..base + stride_bytes(n_nodes);
        let inside = leased
            .iter()
            .filter(move |range| span.contains(&range.start));
        inside.map(ExactSizeIterator::len).sum()
    };
    (0..n_nodes).map(on_node).max().unwrap_or(0)
}

fn leased() -> MutexGuard<'static, Vec<Range<usize>>> {
    LEASED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// First offset at which `size_bytes` and a gap are free on every node.
///
/// A conflict rules out every offset up to the end of the range in the way, so each step is safe to
/// take and the search ends.
fn first_free(leased: &[Range<usize>], n_nodes: usize, size_bytes: usize) -> Option<usize> {
    let stride = stride_bytes(n_nodes);
    let mut offset = 0_usize;
    while offset.checked_add(size_bytes)? <= stride {
        let past_conflict = (0..n_nodes).filter_map(|node| {
            let base = base_address(n_nodes, NodeIndex(node));
            let (start, end) = (base + offset, base + offset + size_bytes);
            let in_the_way = leased
                .iter()
                .filter(|r| r.start < end + HUGE_PAGE_BYTES && start < r.end + HUGE_PAGE_BYTES);
            in_the_way.map(|r| r.end + HUGE_PAGE_BYTES - base).max()
        });
        match past_conflict.max() {
            None => return Some(offset),
            Some(next) => offset = next,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{base_address, first_free, stride_bytes};
    use crate::memory::HUGE_PAGE_BYTES as HUGE;
    use crate::workers::NodeIndex;
    use proptest::prelude::*;

    #[test]
    fn two_nodes_have_the_addresses_of_the_proposal_and_more_stay_below_the_second() {
        assert_eq!(base_address(1, NodeIndex(0)), 0x2000_0000_0000);
        assert_eq!(base_address(2, NodeIndex(1)), 0x4000_0000_0000);
        for n_nodes in 3..=64 {
            let last = base_address(n_nodes, NodeIndex(n_nodes - 1));
            assert!(
                last + stride_bytes(n_nodes) <= 0x4000_0000_0000,
                "{n_nodes}"
            );
            assert_eq!(base_address(n_nodes, NodeIndex(0)), 0x2000_0000_0000);
        }
    }

    #[test]
    fn offsets_end_where_the_next_node_begins() {
        let stride = stride_bytes(8);
        assert_eq!(first_free(&[], 8, stride), Some(0));
        assert_eq!(first_free(&[], 8, stride + HUGE), None);
        let last = base_address(8, NodeIndex(7));
        let taken: Vec<_> = std::iter::once(last..last + HUGE).collect();
        assert_eq!(first_free(&taken, 8, HUGE), Some(2 * HUGE));
        assert_eq!(first_free(&taken, 8, stride), None);
        assert_eq!(first_free(&[], 1, usize::MAX), None);
    }

    proptest! {
        /// Models of 1 to 8 nodes side by side: none overlaps, and no smaller offset would do.
        #[test]
        fn leases_never_overlap(models in prop::collection::vec((1_usize..=8, 1_usize..5), 1..12)) {
            let mut leased = Vec::new();
            for (n_nodes, n_pages) in models {
                let size = n_pages * HUGE;
                let ranges = |offset| (0..n_nodes).map(move |node| {
                    let start = base_address(n_nodes, NodeIndex(node)) + offset;
                    start..start + size
                });
                let fits = |leased: &[std::ops::Range<usize>], offset| ranges(offset).all(|new| {
                    leased.iter().all(|old| new.end < old.start || old.end < new.start)
                });
                let offset = first_free(&leased, n_nodes, size).unwrap();
                prop_assert!(fits(&leased, offset));
                prop_assert!((0..offset).step_by(HUGE).all(|smaller| !fits(&leased, smaller)));
                leased.extend(ranges(offset));
            }
        }
    }
}
