//! [`Team`]: what a job sees of its worker and of the others in the same run.
//!
//! The only way from a job to the barrier and the work counters. Knows nothing of ops or memory;
//! made by `workers` on each worker's stack for each run.

use std::cell::Cell;
use std::ops::Range;

use super::barrier::{Barrier, Place};
use crate::topology::NodeIndex;

/// Number of a worker among those of a run: contiguous by node, 0 to `n_workers - 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerIndex(pub usize);

/// A worker's view of a run. Stays on its thread: jobs get a reference, and it is not `Sync`.
#[derive(Debug)]
pub struct Team<'a> {
    pub(super) barrier: &'a Barrier,
    pub(super) place: Place,
    pub(super) index_in_node: usize,
    pub(super) first_of_node: usize,
    pub(super) n_workers: usize,
    /// Barriers passed in this run.
    pub(super) phase: Cell<usize>,
}

impl Team<'_> {
    /// Which worker this is.
    #[must_use]
    pub fn worker(&self) -> WorkerIndex {
        WorkerIndex(self.first_of_node + self.index_in_node)
    }

    /// The worker's node.
    #[must_use]
    pub fn node(&self) -> NodeIndex {
        NodeIndex(self.place.node)
    }

    /// Which of its node's workers this is: 0 to `n_in_node - 1`.
    #[must_use]
    pub fn index_in_node(&self) -> usize {
        self.index_in_node
    }

    /// Workers in this run.
    #[must_use]
    pub fn n_workers(&self) -> usize {
        self.n_workers
    }

    /// Workers of this worker's node in this run.
    #[must_use]
    pub fn n_in_node(&self) -> usize {
        self.place.n_in_node as usize
    }

    /// Nodes with workers in this run: those with index 0 to `n_nodes - 1`.
    #[must_use]
    pub fn n_nodes(&self) -> usize {
        self.place.n_nodes as usize
    }

    /// Of `n_homes` nodes that something lies on, those whose part falls to this worker's node:
    /// itself, and some of those without workers in this run. Each falls to exactly one.
    pub fn homes(&self, n_homes: usize) -> impl Iterator<Item = usize> + use<> {
        (self.place.node..n_homes).step_by(self.n_nodes())
    }

    /// Waits until all workers of the run are here; then each sees what the others wrote before.
    ///
    /// Every worker calls it equally often, and returns from the job when the answer is false.
    ///
    /// Returns: false when the run is cancelled, to all workers at the same barrier; after a panic
    /// of one worker, to each of the others at its next barrier.
    #[must_use]
    pub fn barrier(&self) -> bool {
        let phase = self.phase.get();
        self.phase.set(phase + 1);
        self.barrier.wait(self.place, phase)
    }

    /// Claims the next chunk of the work that this node's workers share in the present phase.
    ///
    /// A phase is what lies between two barriers and has one such piece of work a node: all of
    /// the node's workers pass the same `n_chunks`. Workers of different nodes don't share.
    ///
    /// Returns: a chunk from 0 to `n_chunks - 1` that nobody else got, or `None` when all are
    /// claimed or the run is being cancelled (the next barrier, and the run itself, then say so).
    #[must_use]
    pub fn next_chunk(&self, n_chunks: usize) -> Option<usize> {
        self.barrier
            .next_chunk(self.place.node, self.phase.get(), n_chunks)
    }

    /// Claims the next of `n_items` that all workers of the run share in the present phase.
    ///
    /// Items are dealt to the nodes in contiguous ranges, in proportion to their workers; inside
    /// its node's range a worker claims as with [`Team::next_chunk`], under the same rules.
    ///
    /// Returns: an item that nobody else got, on any node, or `None`.
    #[must_use]
    pub fn next_item(&self, n_items: usize) -> Option<usize> {
        let share = self.share(n_items);
        self.next_chunk(share.len())
            .map(|chunk| share.start + chunk)
    }

    /// The contiguous part of `n_items` that falls to this worker's node, in proportion to its
    /// workers in the run.
    #[must_use]
    pub fn share(&self, n_items: usize) -> Range<usize> {
        let bound = |worker: usize| {
            // In 128 bits: a huge count must not wrap.
            (n_items as u128 * worker as u128 / self.n_workers as u128) as usize
        };
        bound(self.first_of_node)..bound(self.first_of_node + self.n_in_node())
    }
}
