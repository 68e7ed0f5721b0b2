//! Which CPU each worker runs on: a pure function of the topology, the allowed CPUs and a count.
//!
//! Does not pin anything (the worker does that to itself) and does not read files. Called by the
//! engine when it makes its workers.

use super::{Core, CpuId, NodeId, Topology, format_cpu_list};
use crate::error::{Error, Result};

/// More threads than this are taken for a slip of the keyboard.
pub const MAX_THREADS: usize = 4096;

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

/// The workers of an engine: where each runs, and how many of them take part in which passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadPlan {
    /// One pin a worker.
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
    /// `threads`: `None` for one a physical core; `threads_batch`: `None` for as many.
    ///
    /// # Errors
    /// As [`plan_pins`], for either count.
    pub fn new(
        topology: &Topology,
        allowed: &[CpuId],
        threads: Option<usize>,
        threads_batch: Option<usize>,
    ) -> Result<Self> {
        let n_threads = plan_pins(topology, allowed, threads)?.len();
        let n_threads_batch = match threads_batch {
            Some(_) => plan_pins(topology, allowed, threads_batch)?.len(),
            None => n_threads,
        };
        let pins = plan_pins(topology, allowed, Some(n_threads.max(n_threads_batch)))?;
        Ok(Self {
            pins,
            n_threads,
            n_threads_batch,
        })
    }
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
