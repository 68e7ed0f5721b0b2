//! [`ThreadPlan`]: how many workers there are, where each runs, and how many a node has in a pass.
//!
//! A pure function of the topology, the allowed CPUs and what was asked for. Starts nothing.
//! Called before anything is loaded: placements follow the decode threads of the nodes.

use super::pins::deal_pins;
use super::{CpuId, NodesInUse, Pin, Topology, active_in_node};
use crate::error::{Error, Result};

/// More threads than this are taken for a slip of the keyboard.
pub const MAX_THREADS: usize = 4096;

/// The workers of an engine: where each runs, and how many of them take part in which passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadPlan {
    /// The nodes in use. The last ones may have no pin: fewer threads than nodes.
    pub nodes: NodesInUse,
    /// One pin a worker, contiguous by node.
    pub pins: Vec<Pin>,
    /// Workers in a pass of one token.
    pub n_threads: usize,
    /// Workers in a pass of more.
    pub n_threads_batch: usize,
}

impl ThreadPlan {
    /// Plans workers for both counts.
    ///
    /// # Args
    /// `allowed`: from [`super::allowed_cpus`]. `threads`: `None` for one a physical core;
    /// `threads_batch`: `None` for as many. `simulate_nodes`: how many nodes to pretend, if any.
    ///
    /// # Errors
    /// [`Error::BadRequest`] for no threads or more than [`MAX_THREADS`]; as [`NodesInUse::new`].
    pub fn new(
        topology: &Topology,
        allowed: &[CpuId],
        threads: Option<usize>,
        threads_batch: Option<usize>,
        simulate_nodes: Option<usize>,
    ) -> Result<Self> {
        let nodes = NodesInUse::new(topology, allowed, simulate_nodes)?;
        let n_threads = checked("threads", threads.unwrap_or(nodes.n_cores()))?;
        let n_threads_batch = checked("threads_batch", threads_batch.unwrap_or(n_threads))?;
        Ok(Self {
            pins: deal_pins(&nodes, n_threads.max(n_threads_batch)),
            nodes,
            n_threads,
            n_threads_batch,
        })
    }

    /// Threads of each node in a pass of one token, by [`super::NodeIndex`].
    #[must_use]
    pub fn node_threads(&self) -> Vec<usize> {
        self.active(self.n_threads)
    }

    /// Threads of each node in a pass of more.
    #[must_use]
    pub fn node_threads_batch(&self) -> Vec<usize> {
        self.active(self.n_threads_batch)
    }

    /// Nodes that have workers: the first ones of those in use.
    #[must_use]
    pub fn n_nodes_with_workers(&self) -> usize {
        self.pins.last().map_or(0, |pin| pin.node.0 + 1)
    }

    fn active(&self, n_active: usize) -> Vec<usize> {
        let mut counts = vec![0; self.nodes.as_slice().len()];
        for of_node in self.pins.chunk_by(|a, b| a.node == b.node) {
            counts[of_node[0].node.0] = active_in_node(of_node, n_active);
        }
        counts
    }
}

fn checked(name: &str, n_threads: usize) -> Result<usize> {
    if (1..=MAX_THREADS).contains(&n_threads) {
        return Ok(n_threads);
    }
    Err(Error::BadRequest {
        name: name.to_owned(),
        found: n_threads.to_string(),
        expected: format!("1 to {MAX_THREADS}"),
    })
}
