//! Which CPU each worker runs on: a pure function of the topology, the allowed CPUs and a count.
//!
//! Does not pin anything (the worker does that to itself) and does not read files. Called by the
//! engine when it makes its workers.

use super::{Core, CpuId, NodeId, Topology, format_cpu_list};
use crate::error::{Error, Result};

/// More threads than this are taken for a slip of the keyboard.
pub const MAX_THREADS: usize = 4096;

/// More pretended nodes than this are taken for a slip too.
const MAX_SIMULATED_NODES: usize = 64;

/// Where one worker runs. Its number is its place in the list of pins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The CPU that it is bound to.
    pub cpu: CpuId,
    /// The node of that CPU.
    pub node: NodeId,
}

/// The CPUs that workers may use: those of the affinity mask that are in the `--cpu-range`.
///
/// # Args
/// `affinity`: CPUs of the process's mask; `cpu_range`: value of the flag, if it was given.
///
/// # Errors
/// [`Error::BadRequest`] if the range is not a list of CPUs or has none of the mask's.
pub fn allowed_cpus(affinity: &[CpuId], cpu_range: Option<&str>) -> Result<Vec<CpuId>> {
    let Some(text) = cpu_range else {
        return Ok(affinity.to_vec());
    };
    let refused = |expected: String| Error::BadRequest {
        name: "cpu_range".to_owned(),
        found: text.to_owned(),
        expected,
    };
    let wanted = super::parse_cpu_list(text)
        .ok_or_else(|| refused("LO-HI[,LO-HI...], for instance 0-15,32".to_owned()))?;
    let both: Vec<_> = affinity
        .iter()
        .copied()
        .filter(|cpu| wanted.contains(cpu))
        .collect();
    if both.is_empty() {
        return Err(refused(format!(
            "some of the allowed cpus {}",
            format_cpu_list(affinity)
        )));
    }
    Ok(both)
}

/// Deals threads to CPUs: one a physical core first, then SMT siblings, then round again.
///
/// While a stage lasts, threads are dealt evenly over the nodes that still have room in it.
///
/// # Args
/// `allowed`: from [`allowed_cpus`]; `n_threads`: how many are wanted, `None` for one a core.
///
/// # Returns
/// One pin a thread, contiguous by node (ascending), within a node in the order of dealing, so
/// that the first `k` of a node are on different cores while there are `k`.
///
/// # Errors
/// [`Error::BadRequest`] for no threads or more than [`MAX_THREADS`], or without an online CPU.
pub fn plan_pins(
    topology: &Topology,
    allowed: &[CpuId],
    n_threads: Option<usize>,
) -> Result<Vec<Pin>> {
    let cores = topology.physical_cores(allowed);
    let n_threads = n_threads.unwrap_or(cores.len());
    if cores.is_empty() {
        return Err(Error::BadRequest {
            name: "cpus".to_owned(),
            found: format!("none of {} is online", format_cpu_list(allowed)),
            expected: format!("some of {}", format_cpu_list(&topology.online_cpus())),
        });
    }
    if !(1..=MAX_THREADS).contains(&n_threads) {
        return Err(Error::BadRequest {
            name: "threads".to_owned(),
            found: n_threads.to_string(),
            expected: format!("1 to {MAX_THREADS}"),
        });
    }
    Ok(deal(&cores, n_threads))
}

/// The workers of an engine: where each runs, on which nodes, and how many take part in what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadPlan {
    /// One pin a worker, contiguous by node; a pretended node has a number of its own.
    pub pins: Vec<Pin>,
    /// Workers in a pass of one token.
    pub n_threads: usize,
    /// Workers in a pass of more.
    pub n_threads_batch: usize,
    /// The kernel's node of each node in use, `None` for a pretended one.
    pub kernel_nodes: Vec<Option<NodeId>>,
    /// Of the workers in a pass of one token, those on each node in use: what rows are dealt by.
    pub node_threads: Vec<usize>,
}

impl ThreadPlan {
    /// Plans workers for both counts.
    ///
    /// # Args
    /// `threads`: `None` for one a physical core; `threads_batch`: `None` for as many;
    /// `simulate_nodes`: deal the cores to that many pretended nodes, whatever nodes there are.
    ///
    /// # Errors
    /// As [`plan_pins`], for either count; [`Error::BadRequest`] for no pretended node or too many.
    pub fn new(
        topology: &Topology,
        allowed: &[CpuId],
        threads: Option<usize>,
        threads_batch: Option<usize>,
        simulate_nodes: Option<usize>,
    ) -> Result<Self> {
        let n_threads = plan_pins(topology, allowed, threads)?.len();
        let n_threads_batch = match threads_batch {
            Some(_) => plan_pins(topology, allowed, threads_batch)?.len(),
            None => n_threads,
        };
        let n_pins = n_threads.max(n_threads_batch);
        let pins = match simulate_nodes {
            None => plan_pins(topology, allowed, Some(n_pins))?,
            Some(n_nodes) => pretend(&topology.physical_cores(allowed), n_pins, n_nodes)?,
        };
        let nodes: Vec<&[Pin]> = pins.chunk_by(|a, b| a.node == b.node).collect();
        let kernel_node = |pins: &&[Pin]| simulate_nodes.is_none().then_some(pins[0].node);
        let kernel_nodes = nodes.iter().map(kernel_node).collect();
        let seats: Vec<usize> = nodes.iter().map(|pins| pins.len()).collect();
        let node_threads = deal_threads(&seats, n_threads);
        Ok(Self {
            pins,
            n_threads,
            n_threads_batch,
            kernel_nodes,
            node_threads,
        })
    }
}

/// Deals cores and threads to pretended nodes: each node gets its part of the cores, round again
/// when they are fewer than nodes, and its part of the threads; a node without threads is not used.
fn pretend(cores: &[Core], n_threads: usize, n_nodes: usize) -> Result<Vec<Pin>> {
    if !(1..=MAX_SIMULATED_NODES).contains(&n_nodes) {
        return Err(Error::BadRequest {
            name: "simulate_nodes".to_owned(),
            found: n_nodes.to_string(),
            expected: format!("1 to {MAX_SIMULATED_NODES}"),
        });
    }
    let mut pins = Vec::with_capacity(n_threads);
    for node in 0..n_nodes {
        let bound = |node: usize| cores.len() * node / n_nodes;
        let first = bound(node);
        let own = &cores[first..bound(node + 1).max(first + 1)];
        // The first CPU of each core, then the second of each, then round again.
        let n_stages = own.iter().map(|core| core.cpus.len()).max().unwrap_or(1);
        let stages =
            (0..n_stages).flat_map(|stage| own.iter().filter_map(move |c| c.cpus.get(stage)));
        let n_own = n_threads / n_nodes + usize::from(node < n_threads % n_nodes);
        let cpus = stages.cycle().take(n_own);
        pins.extend(cpus.map(|&cpu| Pin {
            cpu,
            node: NodeId(node as u32),
        }));
    }
    Ok(pins)
}

/// Deals `n_threads` to nodes with so many seats, one after the other to whoever has fewest: the
/// rule by which a run's workers are chosen, and rows are shared.
#[must_use]
pub fn deal_threads(seats: &[usize], n_threads: usize) -> Vec<usize> {
    let mut dealt = vec![0; seats.len()];
    for _ in 0..n_threads {
        let with_room = (0..seats.len()).filter(|&node| dealt[node] < seats[node]);
        if let Some(node) = with_room.min_by_key(|&node| dealt[node]) {
            dealt[node] += 1;
        }
    }
    dealt
}

/// The CPUs of one node in the order in which they are used, and how many threads it has so far.
struct Queue {
    node: NodeId,
    /// (stage, CPU): stage 0 is a core's first CPU, 1 its second, …
    slots: Vec<(usize, CpuId)>,
    dealt: Vec<CpuId>,
}

impl Queue {
    /// Stage of the CPU that comes next; a later round lies behind every stage of an earlier one.
    fn next_stage(&self, n_stages: usize) -> usize {
        let round = self.dealt.len() / self.slots.len();
        round * n_stages + self.slots[self.dealt.len() % self.slots.len()].0
    }
}

fn deal(cores: &[Core], n_threads: usize) -> Vec<Pin> {
    let n_stages = cores.iter().map(|core| core.cpus.len()).max().unwrap_or(1);
    let mut queues: Vec<Queue> = Vec::new();
    for core in cores {
        if queues.last().is_none_or(|queue| queue.node != core.node) {
            queues.push(Queue {
                node: core.node,
                slots: Vec::new(),
                dealt: Vec::new(),
            });
        }
        if let Some(queue) = queues.last_mut() {
            queue.slots.extend(core.cpus.iter().copied().enumerate());
        }
    }
    for queue in &mut queues {
        queue.slots.sort_unstable();
    }
    for _ in 0..n_threads {
        let next = queues
            .iter_mut()
            .min_by_key(|q| (q.next_stage(n_stages), q.dealt.len()));
        if let Some(queue) = next {
            let slot = queue.dealt.len() % queue.slots.len();
            queue.dealt.push(queue.slots[slot].1);
        }
    }
    let pins = |queue: &Queue| {
        let node = queue.node;
        queue
            .dealt
            .iter()
            .map(|&cpu| Pin { cpu, node })
            .collect::<Vec<_>>()
    };
    queues.iter().flat_map(pins).collect()
}
