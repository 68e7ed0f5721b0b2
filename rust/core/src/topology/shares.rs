//! Who owns which rows, and who works on them when their owner has no thread: pure arithmetic.
//!
//! Counts units (panels of rows, blocks of a cache, experts) and knows no tensor, memory or
//! address. Called by the buffer types, and for each phase by those who deal out work.

use std::ops::Range;

use super::NodeIndex;

/// Consecutive units in one node's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedRange {
    /// The node that owns them.
    pub owner: NodeIndex,
    /// Which units; never empty.
    pub units: Range<usize>,
}

/// Deals units to nodes in contiguous ranges, in proportion to the threads of each.
///
/// # Args
/// `node_threads`: decode threads of each node, at most [`super::MAX_THREADS`] together. If none
/// has any, the first node owns all.
///
/// # Returns
/// A range a node, in order: every unit is in exactly one, and nodes without threads own none.
#[must_use]
pub fn row_shares(n_units: usize, node_threads: &[usize]) -> Vec<Range<usize>> {
    let total: usize = node_threads.iter().sum();
    let only_first = total == 0;
    // In 128 bits: a huge count must not wrap.
    let bound =
        |threads: usize| (n_units as u128 * threads as u128 / total.max(1) as u128) as usize;
    let mut n_before = 0;
    let share = |(node, &threads): (usize, &usize)| {
        let threads = if only_first {
            usize::from(node == 0)
        } else {
            threads
        };
        let start = bound(n_before);
        n_before += threads;
        start..bound(n_before)
    };
    node_threads.iter().enumerate().map(share).collect()
}

/// Deals the work of one phase: each node's threads work on what their node owns, and what a node
/// without threads owns is dealt to the others in proportion to theirs (they read it remotely).
///
/// # Args
/// `ranges`: what each node owns; `phase_threads`: threads of each node in this phase, as many.
///
/// # Returns
/// What each node's threads work on, ascending. Together exactly `ranges`.
#[must_use]
pub fn phase_owners(ranges: &[Range<usize>], phase_threads: &[usize]) -> Vec<Vec<OwnedRange>> {
    debug_assert_eq!(ranges.len(), phase_threads.len());
    let mut work = vec![Vec::new(); phase_threads.len()];
    for (node, range) in ranges.iter().enumerate() {
        let owner = NodeIndex(node);
        let parts = if phase_threads[node] > 0 {
            vec![(node, range.clone())]
        } else {
            let parts = row_shares(range.len(), phase_threads)
                .into_iter()
                .enumerate();
            let moved = |part: Range<usize>| range.start + part.start..range.start + part.end;
            parts.map(|(worker, part)| (worker, moved(part))).collect()
        };
        for (worker, units) in parts {
            if !units.is_empty() {
                work[worker].push(OwnedRange { owner, units });
            }
        }
    }
    work
}
