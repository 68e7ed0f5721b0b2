//! Nodes in use, which CPU each thread gets and how many a node has, on random machines.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};

use numamirror_core::topology::{
    Core, CpuId, MAX_SIMULATED_NODES, MAX_THREADS, Node, NodeId, NodeIndex, Pin, ThreadPlan,
    Topology, allowed_cpus, spread_pins,
};
use proptest::prelude::*;

/// What a node of a machine is made of.
#[derive(Clone, Debug)]
struct Parts {
    /// CPUs of each core.
    core_sizes: Vec<usize>,
    total_bytes: u64,
    /// To each node; the kernel need not tell.
    distances: Vec<u32>,
}

/// A machine with gaps between the numbers of its nodes; CPU numbers are given out in `order`.
fn machine(nodes: &[Parts], order: &[u32]) -> Topology {
    let mut numbers = order.iter().copied().map(CpuId);
    let id = |node: usize| NodeId(3 * node as u32);
    let mut topology = Topology {
        nodes: Vec::new(),
        cores: Vec::new(),
    };
    for (node, parts) in nodes.iter().enumerate() {
        let mut cpus = Vec::new();
        for &n_siblings in &parts.core_sizes {
            let mut siblings: Vec<_> = numbers.by_ref().take(n_siblings).collect();
            siblings.sort_unstable();
            cpus.extend(&siblings);
            topology.cores.push(Core {
                node: id(node),
                cpus: siblings,
            });
        }
        cpus.sort_unstable();
        let distances = parts.distances.iter().enumerate();
        topology.nodes.push(Node {
            id: id(node),
            cpus,
            total_bytes: parts.total_bytes,
            free_bytes: 0,
            distances: distances.map(|(to, &cost)| (id(to), cost)).collect(),
        });
    }
    topology
}

/// A machine of nodes with memory whose cores have the sizes given; CPUs in the order given.
fn plain(nodes: &[&[usize]], order: &[u32]) -> Topology {
    let parts = |sizes: &&[usize]| Parts {
        core_sizes: sizes.to_vec(),
        total_bytes: 1 << 30,
        distances: Vec::new(),
    };
    machine(&nodes.iter().map(parts).collect::<Vec<_>>(), order)
}

/// A machine, the CPUs that are allowed on it, and how many nodes are to be pretended.
fn machines() -> impl Strategy<Value = (Topology, Vec<CpuId>, Option<usize>)> {
    let parts = (
        prop::collection::vec(1_usize..=3, 0..6),
        prop::sample::select(vec![0_u64, 1 << 30, 1 << 30]),
        prop::collection::vec(10_u32..40, 5),
        any::<bool>(),
    );
    let parts = parts.prop_map(|(core_sizes, total_bytes, distances, tells)| Parts {
        core_sizes,
        total_bytes,
        distances: if tells { distances } else { Vec::new() },
    });
    let nodes = prop::collection::vec(parts, 1..6);
    let order = Just((0..128_u32).collect::<Vec<_>>()).prop_shuffle();
    let allowed = prop::collection::vec(prop::bool::weighted(0.8), 128);
    let simulated = prop::option::of(1_usize..10);
    (nodes, order, allowed, simulated).prop_map(|(nodes, order, allowed, simulated)| {
        let cpus = (0..128_u32).filter(|&cpu| allowed[cpu as usize]);
        let allowed = cpus.map(CpuId).collect();
        (machine(&nodes, &order), allowed, simulated)
    })
}

fn core_of(cores: &[Core], cpu: CpuId) -> usize {
    let core = cores.iter().position(|core| core.cpus.contains(&cpu));
    core.expect("an allowed, online cpu")
}

fn cores_used<'a>(cores: &[Core], pins: impl IntoIterator<Item = &'a Pin>) -> BTreeSet<usize> {
    let used = pins.into_iter().map(|pin| core_of(cores, pin.cpu));
    used.collect()
}

/// The pins of a phase: the first of each node.
fn active(plan: &ThreadPlan, node_threads: &[usize]) -> Vec<Pin> {
    let of_node = |(node, &n): (usize, &usize)| {
        let pins = plan.pins.iter().filter(move |pin| pin.node.0 == node);
        pins.take(n).copied().collect::<Vec<_>>()
    };
    node_threads.iter().enumerate().flat_map(of_node).collect()
}

/// What holds for the threads of each phase.
fn check_phase(plan: &ThreadPlan, cores: &[Core], node_threads: &[usize], n_threads: usize) {
    let nodes = plan.nodes.as_slice();
    let pins = active(plan, node_threads);
    assert_eq!(node_threads.len(), nodes.len());
    assert_eq!(pins.len(), n_threads, "{node_threads:?}");
    assert_eq!(cores_used(cores, &pins).len(), n_threads.min(cores.len()));
    let room = |node: usize| {
        if n_threads > cores.len() || plan.nodes.is_simulated() {
            usize::MAX
        } else {
            nodes[node].cores.len()
        }
    };
    let most = node_threads.iter().max().unwrap();
    if n_threads <= cores.len() || plan.nodes.is_simulated() {
        for (node, &n) in node_threads.iter().enumerate() {
            assert!(n == room(node) || n + 1 >= *most, "{node_threads:?}");
        }
    }
    let first_idle = node_threads
        .iter()
        .position(|&n| n == 0)
        .unwrap_or(nodes.len());
    assert!(
        node_threads[first_idle..].iter().all(|&n| n == 0),
        "the first nodes have the threads"
    );
}

proptest! {
    #[test]
    fn threads_are_dealt_by_the_rules(
        (topology, allowed, simulated) in machines(),
        threads in 1_usize..80,
        threads_batch in 1_usize..80,
    ) {
        let cores = topology.physical_cores(&allowed);
        let batch = Some(threads_batch);
        let Ok(plan) = ThreadPlan::new(&topology, &allowed, Some(threads), batch, simulated) else {
            prop_assert!(cores.is_empty());
            return Ok(());
        };
        prop_assert_eq!(plan.pins.len(), threads.max(threads_batch));
        prop_assert!(plan.pins.is_sorted_by_key(|pin| (pin.node, pin.turn)));
        for pin in &plan.pins {
            prop_assert!(allowed.contains(&pin.cpu));
            let of_node = &plan.nodes.as_slice()[pin.node.0].cores;
            prop_assert!(of_node.iter().any(|core| core.cpus.contains(&pin.cpu)));
        }
        check_phase(&plan, &cores, &plan.node_threads(), threads);
        check_phase(&plan, &cores, &plan.node_threads_batch(), threads_batch);
        // A plan for fewer threads is a part of the plan for more.
        let alone = ThreadPlan::new(&topology, &allowed, Some(threads), None, simulated).unwrap();
        prop_assert_eq!(active(&plan, &plan.node_threads()), alone.pins);
    }

    #[test]
    fn real_nodes_have_all_cores_once_and_memory((topology, allowed, _) in machines()) {
        let cores = topology.physical_cores(&allowed);
        if let Ok(plan) = ThreadPlan::new(&topology, &allowed, None, None, None) {
            let nodes = plan.nodes.as_slice();
            prop_assert_eq!(nodes.iter().map(|node| node.cores.len()).sum::<usize>(), cores.len());
            prop_assert!(nodes.is_sorted_by_key(|node| node.kernel_node));
            let any_memory = topology.nodes.iter().any(|node| node.total_bytes > 0);
            for node in nodes {
                prop_assert!(!node.cores.is_empty());
                let known = |id: NodeId| topology.nodes.iter().find(|node| node.id == id).unwrap();
                let home = known(node.kernel_node.unwrap());
                prop_assert!(home.total_bytes > 0 || !any_memory);
                for core in &node.cores {
                    let own = known(core.node);
                    prop_assert!(own.id == home.id || own.total_bytes == 0);
                }
            }
            let n_cpus: usize = cores.iter().map(|core| core.cpus.len()).sum();
            let all = ThreadPlan::new(&topology, &allowed, Some(n_cpus), None, None).unwrap();
            let cpus: BTreeSet<CpuId> = all.pins.iter().map(|pin| pin.cpu).collect();
            prop_assert_eq!(cpus.len(), n_cpus, "siblings before a second round");
        }
    }

    #[test]
    fn pretended_nodes_share_cores_out_evenly(
        (topology, allowed, _) in machines(),
        n in 1_usize..10,
    ) {
        let cores = topology.physical_cores(&allowed);
        if let Ok(plan) = ThreadPlan::new(&topology, &allowed, None, None, Some(n)) {
            let nodes = plan.nodes.as_slice();
            prop_assert_eq!(nodes.len(), n);
            prop_assert_eq!(plan.nodes.n_cores(), cores.len());
            prop_assert_eq!(plan.n_threads, cores.len());
            let mut n_nodes_of_core: BTreeMap<usize, usize> = BTreeMap::new();
            for node in nodes {
                prop_assert_eq!(node.kernel_node, None);
                let n_cores = cores.len() / n;
                prop_assert!([n_cores.max(1), n_cores + 1].contains(&node.cores.len()));
                for core in &node.cores {
                    *n_nodes_of_core.entry(core_of(&cores, core.cpus[0])).or_default() += 1;
                }
            }
            prop_assert_eq!(n_nodes_of_core.len(), cores.len());
            let (least, most) = (n_nodes_of_core.values().min(), n_nodes_of_core.values().max());
            prop_assert!(most.unwrap() - least.unwrap() <= 1);
        }
    }

    #[test]
    fn the_first_of_a_node_are_on_different_cores(
        (topology, allowed, _) in machines(),
        n in 1_usize..80,
    ) {
        let cores = topology.physical_cores(&allowed);
        if let Ok(plan) = ThreadPlan::new(&topology, &allowed, Some(n), None, None) {
            for of_node in plan.pins.chunk_by(|a, b| a.node == b.node) {
                let n_cores = plan.nodes.as_slice()[of_node[0].node.0].cores.len();
                let first = &of_node[..of_node.len().min(n_cores)];
                prop_assert_eq!(cores_used(&cores, first).len(), first.len());
            }
        }
    }
}

fn cpus(plan: &ThreadPlan) -> Vec<u32> {
    plan.pins.iter().map(|pin| pin.cpu.0).collect()
}

#[test]
fn one_thread_a_core_when_nothing_is_asked() {
    let topology = plain(&[&[2, 2], &[2]], &[0, 3, 1, 4, 2, 5]);
    let plan =
        |threads| ThreadPlan::new(&topology, &topology.online_cpus(), threads, None, None).unwrap();
    assert_eq!(cpus(&plan(None)), [0, 1, 2]);
    assert_eq!(cpus(&plan(Some(7))), [0, 1, 3, 4, 2, 5, 2]);
    assert_eq!(
        plan(None).nodes.kernel_nodes(),
        [Some(NodeId(0)), Some(NodeId(3))]
    );
    assert_eq!(plan(Some(1)).node_threads(), [1, 0]);
}

#[test]
fn fewer_threads_of_one_phase_still_have_cores_of_their_own() {
    // Node 0 has two cores, node 1 six: of 12 threads some are siblings, of the first 8 none.
    let topology = plain(&[&[2, 2], &[2; 6]], &(0..16).collect::<Vec<_>>());
    let online = topology.online_cpus();
    let plan = ThreadPlan::new(&topology, &online, Some(8), Some(12), None).unwrap();
    assert_eq!(plan.node_threads(), [2, 6]);
    assert_eq!(plan.node_threads_batch(), [4, 8]);
}

#[test]
fn cores_of_a_node_without_memory_work_for_the_nearest() {
    let parts = |core_sizes: &[usize], total_bytes, distances: &[u32]| Parts {
        core_sizes: core_sizes.to_vec(),
        total_bytes,
        distances: distances.to_vec(),
    };
    let nodes = [
        parts(&[1], 1 << 30, &[10, 30, 20]),
        parts(&[1, 1], 0, &[30, 10, 20]),
        parts(&[1], 1 << 30, &[20, 20, 10]),
    ];
    let topology = machine(&nodes, &[0, 1, 2, 3]);
    let plan = ThreadPlan::new(&topology, &topology.online_cpus(), None, None, None).unwrap();
    assert_eq!(
        plan.nodes.kernel_nodes(),
        [Some(NodeId(0)), Some(NodeId(6))]
    );
    assert_eq!(plan.node_threads(), [1, 3]);
    assert_eq!(cpus(&plan), [0, 1, 2, 3]);
}

#[test]
fn pretended_nodes_on_one_core_use_its_siblings() {
    let topology = plain(&[&[2]], &[0, 1]);
    let plan = |threads| {
        let online = topology.online_cpus();
        ThreadPlan::new(&topology, &online, threads, None, Some(4)).unwrap()
    };
    assert_eq!(cpus(&plan(Some(4))), [0, 1, 0, 1]);
    assert_eq!(plan(Some(4)).nodes.kernel_nodes(), [None; 4]);
    assert_eq!(plan(Some(6)).node_threads(), [2, 2, 1, 1]);
    assert_eq!(plan(None).node_threads(), [1, 0, 0, 0]);
}

#[test]
fn spread_pins_take_turns() {
    let cpus = [&[0, 1, 2][..], &[3], &[4, 5]];
    let pins = spread_pins(&cpus.map(|cpus| cpus.iter().copied().map(CpuId).collect()));
    let seen: Vec<_> = pins
        .iter()
        .map(|pin| (pin.cpu.0, pin.node, pin.turn))
        .collect();
    let [zero, one, two] = [0, 1, 2].map(NodeIndex);
    let expected = [
        (0, zero, 0),
        (1, zero, 3),
        (2, zero, 5),
        (3, one, 1),
        (4, two, 2),
        (5, two, 4),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn counts_that_make_no_sense_are_refused() {
    let topology = plain(&[&[1]], &[7]);
    let refused = |threads, threads_batch, simulated| {
        let made = ThreadPlan::new(&topology, &[CpuId(7)], threads, threads_batch, simulated);
        made.unwrap_err().to_string()
    };
    for n in [0, MAX_THREADS + 1] {
        let expected = format!("{n}; expected 1 to {MAX_THREADS}");
        assert_eq!(refused(Some(n), None, None), format!("threads: {expected}"));
        assert_eq!(
            refused(None, Some(n), None),
            format!("threads_batch: {expected}")
        );
    }
    for n in [0, MAX_SIMULATED_NODES + 1] {
        let expected = format!("simulate_nodes: {n}; expected 1 to {MAX_SIMULATED_NODES}");
        assert_eq!(refused(None, None, Some(n)), expected);
    }
    let refused = ThreadPlan::new(&topology, &[CpuId(3)], None, None, None);
    assert_eq!(
        refused.unwrap_err().to_string(),
        "cpus: none of 3 is online; expected some of 7"
    );
}

#[test]
fn cpu_range_narrows_the_mask() {
    let mask = [0, 1, 2, 8].map(CpuId);
    assert_eq!(allowed_cpus(&mask, None).unwrap(), mask);
    assert_eq!(
        allowed_cpus(&mask, Some("1-8")).unwrap(),
        [1, 2, 8].map(CpuId)
    );
    let refused = |range| allowed_cpus(&mask, Some(range)).unwrap_err().to_string();
    assert_eq!(
        refused("3-7"),
        "cpu_range: 3-7; expected some of the allowed cpus 0-2,8"
    );
    assert!(refused("1..3").starts_with("cpu_range: 1..3; expected LO-HI"));
}
