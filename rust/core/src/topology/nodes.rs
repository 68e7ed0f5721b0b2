//! [`NodesInUse`]: the nodes that an engine works with, numbered without gaps, and their cores.
//!
//! Real ones, or pretended ones for a machine that has fewer. A pure function of the topology and
//! the allowed CPUs; knows no threads. Made by `plan`.

use super::{Core, CpuId, Node, NodeId, Topology, format_cpu_list};
use crate::error::{Error, Result};

/// More pretended nodes than this are taken for a slip of the keyboard.
pub const MAX_SIMULATED_NODES: usize = 64;

/// Number of a node among those in use, without gaps (not the kernel's number).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeIndex(pub usize);

/// One node in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInUse {
    /// The kernel's number of the node that has its memory; `None` for a pretended node.
    pub kernel_node: Option<NodeId>,
    /// Its physical cores, allowed CPUs only; never empty.
    pub cores: Vec<Core>,
}

/// The nodes in use; a [`NodeIndex`] is a place in the list. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodesInUse {
    nodes: Vec<NodeInUse>,
    /// Physical cores of all nodes together, each counted once.
    n_cores: usize,
}

impl NodesInUse {
    /// Finds the nodes that have allowed CPUs, or pretends some.
    ///
    /// Cores of a node without memory work for the nearest node that has some, where the kernel
    /// would put their memory anyway. Pretended nodes share the cores out in contiguous groups,
    /// the larger ones first; with fewer cores than nodes the cores are dealt round again.
    ///
    /// # Args
    /// `allowed`: from [`super::allowed_cpus`]; `simulate_nodes`: how many to pretend, if any.
    ///
    /// # Errors
    /// [`Error::BadRequest`] without an online CPU, or for no nodes or more than
    /// [`MAX_SIMULATED_NODES`].
    pub fn new(
        topology: &Topology,
        allowed: &[CpuId],
        simulate_nodes: Option<usize>,
    ) -> Result<Self> {
        let cores = topology.physical_cores(allowed);
        let n_cores = cores.len();
        if cores.is_empty() {
            return Err(Error::BadRequest {
                name: "cpus".to_owned(),
                found: format!("none of {} is online", format_cpu_list(allowed)),
                expected: format!("some of {}", format_cpu_list(&topology.online_cpus())),
            });
        }
        let nodes = match simulate_nodes {
            None => real_nodes(topology, &cores),
            Some(n_nodes @ 1..=MAX_SIMULATED_NODES) => pretended_nodes(&cores, n_nodes),
            Some(n_nodes) => {
                return Err(Error::BadRequest {
                    name: "simulate_nodes".to_owned(),
                    found: n_nodes.to_string(),
                    expected: format!("1 to {MAX_SIMULATED_NODES}"),
                });
            }
        };
        Ok(Self { nodes, n_cores })
    }

    /// The nodes by index.
    #[must_use]
    pub fn as_slice(&self) -> &[NodeInUse] {
        &self.nodes
    }

    /// Physical cores of all nodes together: one that pretended nodes share counts once.
    #[must_use]
    pub fn n_cores(&self) -> usize {
        self.n_cores
    }

    /// The kernel's number of each node, `None` for a pretended one.
    #[must_use]
    pub fn kernel_nodes(&self) -> Vec<Option<NodeId>> {
        self.nodes.iter().map(|node| node.kernel_node).collect()
    }

    /// The nodes are pretended.
    #[must_use]
    pub fn is_simulated(&self) -> bool {
        self.nodes.iter().any(|node| node.kernel_node.is_none())
    }
}

fn real_nodes(topology: &Topology, cores: &[Core]) -> Vec<NodeInUse> {
    let with_cores = topology.nodes.iter().map(|node| {
        let works_here = |core: &&Core| memory_of(topology, core.node) == node.id;
        NodeInUse {
            kernel_node: Some(node.id),
            cores: cores.iter().filter(works_here).cloned().collect(),
        }
    });
    with_cores.filter(|node| !node.cores.is_empty()).collect()
}

/// The node whose memory serves the CPUs of node `id`.
fn memory_of(topology: &Topology, id: NodeId) -> NodeId {
    let has_memory = |node: &&Node| node.total_bytes > 0;
    let own = topology.nodes.iter().find(|node| node.id == id);
    let Some(own) = own.filter(|own| own.total_bytes == 0) else {
        return id;
    };
    let distance_to = |other: &&Node| {
        let known = own.distances.iter().find(|(to, _)| *to == other.id);
        known.map_or(u32::MAX, |(_, distance)| *distance)
    };
    let with_memory = topology.nodes.iter().filter(has_memory);
    // Of equally near ones the first; where no node tells of memory, each keeps its own CPUs.
    with_memory
        .min_by_key(distance_to)
        .map_or(id, |near| near.id)
}

fn pretended_nodes(cores: &[Core], n_nodes: usize) -> Vec<NodeInUse> {
    let first_core = |node: usize| node * (cores.len() / n_nodes) + node.min(cores.len() % n_nodes);
    let pretend = |node: usize| NodeInUse {
        kernel_node: None,
        cores: if cores.len() < n_nodes {
            vec![cores[node % cores.len()].clone()]
        } else {
            cores[first_core(node)..first_core(node + 1)].to_vec()
        },
    };
    (0..n_nodes).map(pretend).collect()
}
