//! Which CPU each thread gets, on random machines.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};

use numamirror_core::topology::{
    Core, CpuId, MAX_THREADS, Node, NodeId, Pin, Topology, allowed_cpus, plan_pins,
};
use proptest::prelude::*;

/// A machine from the sizes of each node's cores; CPU numbers are given out in `order`.
fn machine(nodes: &[Vec<usize>], order: &[u32]) -> Topology {
    let mut numbers = order.iter().copied().map(CpuId);
    let mut topology = Topology {
        nodes: Vec::new(),
        cores: Vec::new(),
    };
    for (id, sizes) in nodes.iter().enumerate() {
        let id = NodeId(3 * id as u32);
        let mut cpus = Vec::new();
        for &n_siblings in sizes {
            let mut siblings: Vec<_> = numbers.by_ref().take(n_siblings).collect();
            siblings.sort_unstable();
            cpus.extend(&siblings);
            topology.cores.push(Core {
                node: id,
                cpus: siblings,
            });
        }
        cpus.sort_unstable();
        let distances = Vec::new();
        topology.nodes.push(Node {
            id,
            cpus,
            total_bytes: 0,
            free_bytes: 0,
            distances,
        });
    }
    topology
}

fn machines() -> impl Strategy<Value = (Topology, Vec<CpuId>)> {
    let nodes = prop::collection::vec(prop::collection::vec(1_usize..=3, 0..6), 1..6);
    let order = Just((0..128_u32).collect::<Vec<_>>()).prop_shuffle();
    let allowed = prop::collection::vec(prop::bool::weighted(0.8), 128);
    (nodes, order, allowed).prop_map(|(nodes, order, allowed)| {
        let topology = machine(&nodes, &order);
        let cpus = (0..128_u32)
            .filter(|&cpu| allowed[cpu as usize])
            .map(CpuId)
            .collect();
        (topology, cpus)
    })
}

fn cores_used(cores: &[Core], pins: &[Pin]) -> BTreeSet<usize> {
    let core_of = |pin: &Pin| {
        cores
            .iter()
            .position(|core| core.cpus.contains(&pin.cpu))
            .unwrap()
    };
    pins.iter().map(core_of).collect()
}

proptest! {
    #[test]
    fn threads_are_dealt_by_the_rules((topology, allowed) in machines(), n_threads in 1_usize..80) {
        let cores = topology.physical_cores(&allowed);
        let Ok(pins) = plan_pins(&topology, &allowed, Some(n_threads)) else {
            prop_assert!(cores.is_empty());
            return Ok(());
        };
        prop_assert_eq!(pins.len(), n_threads);
        prop_assert!(pins.is_sorted_by_key(|pin| pin.node), "contiguous by node");
        for pin in &pins {
            prop_assert!(allowed.contains(&pin.cpu));
            let node = topology.nodes.iter().find(|node| node.cpus.contains(&pin.cpu)).unwrap();
            prop_assert_eq!(node.id, pin.node);
        }
        // Cores before siblings, siblings before a second round.
        prop_assert_eq!(cores_used(&cores, &pins).len(), n_threads.min(cores.len()));
        let n_cpus: usize = cores.iter().map(|core| core.cpus.len()).sum();
        let mut uses: BTreeMap<CpuId, usize> = BTreeMap::new();
        for pin in &pins {
            *uses.entry(pin.cpu).or_default() += 1;
        }
        prop_assert_eq!(uses.len(), n_threads.min(n_cpus));
        if n_threads <= cores.len() {
            let mut counts: BTreeMap<NodeId, (usize, usize)> = BTreeMap::new();
            for core in &cores {
                counts.entry(core.node).or_default().1 += 1;
            }
            for pin in &pins {
                counts.entry(pin.node).or_default().0 += 1;
            }
            let most = counts.values().map(|count| count.0).max().unwrap();
            for (n_dealt, n_cores) in counts.into_values() {
                prop_assert!(n_dealt == n_cores || n_dealt + 1 >= most, "balanced within one");
            }
        }
    }

    #[test]
    fn the_first_of_a_node_are_on_different_cores((topology, allowed) in machines(), n in 1_usize..80) {
        let cores = topology.physical_cores(&allowed);
        if let Ok(pins) = plan_pins(&topology, &allowed, Some(n)) {
            for of_node in pins.chunk_by(|a, b| a.node == b.node) {
                let n_cores = cores.iter().filter(|core| core.node == of_node[0].node).count();
                let first = &of_node[..of_node.len().min(n_cores)];
                prop_assert_eq!(cores_used(&cores, first).len(), first.len());
            }
        }
    }
}

#[test]
fn one_thread_a_core_when_nothing_is_asked() {
    let topology = machine(&[vec![2, 2], vec![2]], &[0, 3, 1, 4, 2, 5]);
    let pins = plan_pins(&topology, &topology.online_cpus(), None).unwrap();
    assert_eq!(
        pins.iter().map(|pin| pin.cpu.0).collect::<Vec<_>>(),
        [0, 1, 2]
    );
    let pins = plan_pins(&topology, &topology.online_cpus(), Some(7)).unwrap();
    assert_eq!(
        pins.iter().map(|pin| pin.cpu.0).collect::<Vec<_>>(),
        [0, 1, 3, 4, 2, 5, 2]
    );
}

#[test]
fn counts_that_make_no_sense_are_refused() {
    let topology = machine(&[vec![1]], &[7]);
    for n_threads in [0, MAX_THREADS + 1] {
        let refused = plan_pins(&topology, &[CpuId(7)], Some(n_threads))
            .unwrap_err()
            .to_string();
        assert_eq!(
            refused,
            format!("threads: {n_threads}; expected 1 to {MAX_THREADS}")
        );
    }
    let refused = plan_pins(&topology, &[CpuId(3)], None)
        .unwrap_err()
        .to_string();
    assert_eq!(refused, "cpus: none of 3 is online; expected some of 7");
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
