//! Which CPU each worker runs on: a pure function of the nodes in use and a count.
//!
//! Does not pin anything (the worker does that to itself) and does not read files. `plan` deals
//! pins for the engine; the pool of workers asks [`active_in_node`] who takes part in a run.

use std::collections::BTreeMap;

use super::{CpuId, NodeInUse, NodeIndex, NodesInUse, format_cpu_list};
use crate::error::{Error, Result};

/// Where one worker runs. Its number is its place in the list of pins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The CPU that it is bound to.
    pub cpu: CpuId,
    /// The node that it works for.
    pub node: NodeIndex,
    /// When it was dealt: a run of `n` workers has those of the turns 0 to `n - 1`.
    pub turn: usize,
}

/// How many of a node's pins take part in a run of `n_active` workers: always the first ones.
///
/// This is the one rule by which threads are dealt to nodes, for plans and for runs.
///
/// # Args
/// `of_node`: all pins of one node, in the order of their turns.
#[must_use]
pub fn active_in_node(of_node: &[Pin], n_active: usize) -> usize {
    of_node.partition_point(|pin| pin.turn < n_active)
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

/// Pins of workers that have no cores to choose from: the CPUs given, dealt evenly over the nodes.
///
/// # Args
/// `cpus_of_node`: a CPU for each worker, by node; a node has at least one.
///
/// # Returns
/// One pin a worker, contiguous by node.
#[must_use]
pub fn spread_pins(cpus_of_node: &[Vec<CpuId>]) -> Vec<Pin> {
    let places = cpus_of_node.iter().enumerate().flat_map(|(node, cpus)| {
        let place = move |(round, &cpu): (usize, &CpuId)| (round, NodeIndex(node), cpu);
        cpus.iter().enumerate().map(place)
    });
    let mut places: Vec<_> = places.collect();
    places.sort_by_key(|&(round, node, _)| (round, node));
    let pins = places.into_iter().enumerate();
    by_node(pins.map(|(turn, (_, node, cpu))| Pin { cpu, node, turn }))
}

/// Deals threads to CPUs: one a physical core first, then SMT siblings, then round again.
///
/// While a stage lasts, threads are dealt evenly over the real nodes that still have room in it;
/// pretended nodes get them evenly whatever cores they have.
///
/// # Returns
/// One pin a thread, contiguous by node, within a node by turn. The first `n` turns are what a
/// count of `n` gives, and the first turns go to node 0, 1, 2, …, one each.
pub(super) fn deal_pins(nodes: &NodesInUse, n_threads: usize) -> Vec<Pin> {
    let cores = nodes.as_slice().iter().flat_map(|node| &node.cores);
    let n_stages = cores.map(|core| core.cpus.len()).max().unwrap_or(1);
    let simulated = nodes.is_simulated();
    let mut queues: Vec<Queue> = nodes.as_slice().iter().map(Queue::new).collect();
    let mut uses: BTreeMap<CpuId, usize> = BTreeMap::new();
    let mut pins: Vec<Pin> = Vec::with_capacity(n_threads);
    for turn in 0..n_threads {
        let stage = |queue: &Queue| {
            if simulated {
                0
            } else {
                queue.next_stage(n_stages)
            }
        };
        let queues = queues.iter_mut().enumerate();
        let Some((node, queue)) = queues.min_by_key(|(_, queue)| (stage(queue), queue.n_dealt))
        else {
            break;
        };
        queue.n_dealt += 1;
        // Pretended nodes may share a core: its siblings are used before a CPU is used twice.
        let cpus = queue.slots.iter().map(|&(_, cpu)| cpu);
        if let Some(cpu) = cpus.min_by_key(|cpu| uses.get(cpu).copied().unwrap_or(0)) {
            *uses.entry(cpu).or_default() += 1;
            let node = NodeIndex(node);
            pins.push(Pin { cpu, node, turn });
        }
    }
    by_node(pins.into_iter())
}

fn by_node(pins: impl Iterator<Item = Pin>) -> Vec<Pin> {
    let mut pins: Vec<Pin> = pins.collect();
    pins.sort_by_key(|pin| (pin.node, pin.turn));
    pins
}

/// The CPUs of one node in the order in which they are used, and how many threads it has so far.
struct Queue {
    /// (stage, CPU), ascending: stage 0 is a core's first CPU, 1 its second, …
    slots: Vec<(usize, CpuId)>,
    n_dealt: usize,
}

impl Queue {
    fn new(node: &NodeInUse) -> Self {
        let cpus = node
            .cores
            .iter()
            .flat_map(|core| core.cpus.iter().copied().enumerate());
        let mut slots: Vec<_> = cpus.collect();
        slots.sort_unstable();
        Self { slots, n_dealt: 0 }
    }

    /// Stage of the CPU that comes next; a later round lies behind every stage of an earlier one.
    fn next_stage(&self, n_stages: usize) -> usize {
        let round = self.n_dealt / self.slots.len();
        round * n_stages + self.slots[self.n_dealt % self.slots.len()].0
    }
}
