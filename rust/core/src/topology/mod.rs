//! The machine: nodes, cores, memory and distances, and which CPU each worker is to run on.
//!
//! Values only: nothing here pins a thread, allocates node memory or assumes where `/sys` is.
//! Called by the engine before anything is loaded, and by `numamirror topology`.
//!
//! | file | holds |
//! | --- | --- |
//! | `cpu_list` | lists of CPUs as text |
//! | `read` | a [`Topology`] from a tree of files |
//! | `page_pools` | large pages, and pages that move by themselves |
//! | `nodes` | the nodes in use, real or pretended |
//! | `pins` | which CPU each worker runs on |
//! | `plan` | workers of both kinds of passes |
//! | `shares` | who owns which rows, and who works on them |

mod cpu_list;
mod nodes;
mod page_pools;
mod pins;
mod plan;
mod read;
mod shares;

pub use cpu_list::{format_cpu_list, parse_cpu_list};
pub use nodes::{MAX_SIMULATED_NODES, NodeInUse, NodeIndex, NodesInUse};
pub use page_pools::{PagePool, numa_balancing, page_pools, transparent_page_mode};
pub use pins::{Pin, active_in_node, allowed_cpus, spread_pins};
pub use plan::{MAX_THREADS, ThreadPlan};
pub use read::{NodeMemory, available_memory_bytes, node_memory};
pub use shares::{OwnedRange, phase_owners, row_shares};

/// The kernel's number of a memory node. Numbers may have gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// The kernel's number of a logical CPU. Numbers may have gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuId(pub u32);

/// A physical core: the logical CPUs that share its execution units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Core {
    /// The node whose memory is local to the core.
    pub node: NodeId,
    /// SMT siblings, ascending, never empty.
    pub cpus: Vec<CpuId>,
}

/// A memory node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The kernel's number.
    pub id: NodeId,
    /// Online CPUs of the node, ascending; empty for a node of memory only.
    pub cpus: Vec<CpuId>,
    /// Memory of the node; 0 for a node of CPUs only.
    pub total_bytes: u64,
    /// Memory of the node that nobody uses, page cache not counted.
    pub free_bytes: u64,
    /// Relative access cost to each node (10 is local); empty when the kernel does not say.
    pub distances: Vec<(NodeId, u32)>,
}

/// Nodes and cores of a machine, online CPUs only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// By ascending id, never empty.
    pub nodes: Vec<Node>,
    /// By node, then by first CPU.
    pub cores: Vec<Core>,
}

impl Topology {
    /// Physical cores as far as `allowed` goes: each with its allowed CPUs only, none empty.
    ///
    /// Returns: the cores by node, then by first CPU.
    #[must_use]
    pub fn physical_cores(&self, allowed: &[CpuId]) -> Vec<Core> {
        let restricted = self.cores.iter().map(|core| Core {
            node: core.node,
            cpus: core
                .cpus
                .iter()
                .copied()
                .filter(|cpu| allowed.contains(cpu))
                .collect(),
        });
        restricted.filter(|core| !core.cpus.is_empty()).collect()
    }

    /// All online CPUs, ascending.
    #[must_use]
    pub fn online_cpus(&self) -> Vec<CpuId> {
        let mut cpus: Vec<_> = self
            .cores
            .iter()
            .flat_map(|core| core.cpus.clone())
            .collect();
        cpus.sort_unstable();
        cpus
    }
}
