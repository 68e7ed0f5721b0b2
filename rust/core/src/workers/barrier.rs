//! The two-level barrier: workers of a node meet, then one of each node, then all go on.
//!
//! Holds the shared counters and nothing of the threads; `team` is its only user inside a run,
//! `workers` prepares it between runs. The protocol is in `README.md`.

use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};

use super::event::{ABORTED, CANCELLED, Event, Padded, Patience};

/// Counts arrivals; the last one of a round is told so and leaves the count at zero.
#[derive(Debug, Default)]
pub(super) struct Arrivals(Padded<AtomicU32>);

impl Arrivals {
    /// Returns: whether this was the last of `n_expected`. Everything that the others did before
    /// they arrived is then visible to the caller.
    pub(super) fn arrive(&self, n_expected: u32) -> bool {
        let last = self.0.fetch_add(1, AcqRel) + 1 == n_expected;
        if last {
            // Nobody arrives again before the last one has let them go.
            self.0.store(0, Relaxed);
        }
        last
    }
}

/// What the workers of one node share.
#[derive(Debug, Default)]
struct Node {
    arrivals: Arrivals,
    release: Padded<Event>,
    /// Next chunk of the dynamic work of a phase: phase p counts in `chunks[p % 2]`.
    chunks: [Padded<AtomicUsize>; 2],
}

/// How many take part in a run, and where the one who asks stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Dense index of the worker's node.
    pub(super) node: usize,
    /// Workers of that node in this run.
    pub(super) n_in_node: u32,
    /// Nodes that have workers in this run.
    pub(super) n_nodes: u32,
    /// How long to spin.
    pub(super) patience: Patience,
}

/// The barrier of a pool, and the work counters that its rounds reset.
#[derive(Debug)]
pub(super) struct Barrier {
    nodes: Box<[Node]>,
    top: Node,
    /// Written by the caller of a run, read by the last worker of each round.
    cancelled: Padded<AtomicBool>,
}

impl Barrier {
    pub(super) fn new(n_nodes: usize) -> Self {
        Self {
            nodes: (0..n_nodes).map(|_| Node::default()).collect(),
            top: Node::default(),
            cancelled: Padded::default(),
        }
    }

    /// Makes ready for a run. Only while no worker is in one.
    pub(super) fn prepare(&self) {
        self.cancelled.store(false, Relaxed);
        for counter in self.nodes.iter().flat_map(|node| &node.chunks) {
            counter.store(0, Relaxed);
        }
    }

    /// Asks that the run end at its next barrier.
    pub(super) fn cancel(&self) {
        self.cancelled.store(true, Relaxed);
    }

    /// Lets everybody go who waits here, now and later; the barrier is of no use after that.
    pub(super) fn abort(&self) {
        for node in self.nodes.iter().chain([&self.top]) {
            node.release.abort();
        }
    }

    /// Meets the others at the end of phase `phase` (0, 1, … in each run).
    ///
    /// Returns: whether to go on; the same answer to all, unless a worker has panicked.
    pub(super) fn wait(&self, place: Place, phase: usize) -> bool {
        let node = &self.nodes[place.node];
        let seen = node.release.epoch();
        if !node.arrivals.arrive(place.n_in_node) {
            return node.release.wait(seen, place.patience) == 0;
        }
        let flags = if place.n_nodes == 1 {
            self.verdict()
        } else {
            self.meet_nodes(place)
        };
        if flags & ABORTED == 0 {
            node.release.advance(flags);
        }
        // This phase's counter is free until the phase after next, which can't begin without us.
        node.chunks[phase % 2].store(0, Relaxed);
        flags == 0
    }

    fn meet_nodes(&self, place: Place) -> u32 {
        let seen = self.top.release.epoch();
        if !self.top.arrivals.arrive(place.n_nodes) {
            return self.top.release.wait(seen, place.patience);
        }
        let flags = self.verdict();
        self.top.release.advance(flags);
        flags
    }

    fn verdict(&self) -> u32 {
        if self.cancelled.load(Relaxed) {
            CANCELLED
        } else {
            0
        }
    }

    /// The next of `n_chunks` that nobody of the node has claimed in this phase.
    pub(super) fn next_chunk(&self, node: usize, phase: usize, n_chunks: usize) -> Option<usize> {
        if self.cancelled.load(Relaxed) {
            return None;
        }
        let chunk = self.nodes[node].chunks[phase % 2].fetch_add(1, Relaxed);
        (chunk < n_chunks).then_some(chunk)
    }
}
