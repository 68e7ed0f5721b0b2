//! Machines as `/sys` shows them, from the plain to the odd.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fake_sysfs;

use std::path::Path;

use fake_sysfs::Tree;
use numamirror_core::topology::{
    CpuId, NodeId, PagePool, Topology, available_memory_bytes, numa_balancing, page_pools,
    transparent_page_mode,
};

const GIB: u64 = 1 << 20; // in KiB

fn read(tree: &Tree) -> Topology {
    Topology::read(tree.root(), tree.root()).unwrap()
}

/// (node, CPUs) of each core.
fn cores(topology: &Topology) -> Vec<(u32, Vec<u32>)> {
    let numbers = |cpus: &[CpuId]| cpus.iter().map(|cpu| cpu.0).collect();
    topology
        .cores
        .iter()
        .map(|core| (core.node.0, numbers(&core.cpus)))
        .collect()
}

#[test]
fn one_node_with_siblings_half_the_count_apart() {
    let tree = Tree::new();
    tree.online("0-7\n").node(0, "0-7", 16 * GIB, "10\n");
    for cpu in 0..4 {
        tree.core(&[cpu, cpu + 4]);
    }
    let topology = read(&tree);
    let expected = [
        (0, vec![0, 4]),
        (0, vec![1, 5]),
        (0, vec![2, 6]),
        (0, vec![3, 7]),
    ];
    assert_eq!(cores(&topology), expected);
    let node = &topology.nodes[0];
    assert_eq!((node.total_bytes, node.free_bytes), (16 << 30, 8 << 30));
    assert_eq!(node.distances, [(NodeId(0), 10)]);
}

#[test]
fn two_nodes_with_neighbouring_siblings_and_half_of_them_allowed() {
    let tree = Tree::new();
    tree.online("0-7")
        .node(0, "0-3", GIB, "10 21")
        .node(1, "4-7", GIB, "21 10");
    for cpu in [0, 2, 4, 6] {
        tree.core(&[cpu, cpu + 1]);
    }
    let topology = read(&tree);
    assert_eq!(
        topology.nodes[1].distances,
        [(NodeId(0), 21), (NodeId(1), 10)]
    );
    let allowed = [1, 4, 5, 99].map(CpuId);
    let restricted = topology.physical_cores(&allowed);
    assert_eq!(restricted.len(), 2);
    assert_eq!(
        (restricted[0].node, &restricted[0].cpus[..]),
        (NodeId(0), &[CpuId(1)][..])
    );
    assert_eq!(restricted[1].cpus, [CpuId(4), CpuId(5)]);
}

#[test]
fn four_and_eight_nodes_with_interleaved_cpus() {
    for n_nodes in [4, 8] {
        let tree = Tree::new();
        tree.online(&format!("0-{}", 2 * n_nodes - 1));
        let distances = vec!["10"; n_nodes as usize].join(" ");
        for node in 0..n_nodes {
            tree.node(node, &format!("{node},{}", node + n_nodes), GIB, &distances);
            tree.core(&[node]).core(&[node + n_nodes]);
        }
        let topology = read(&tree);
        assert_eq!(topology.nodes.len(), n_nodes as usize);
        assert_eq!(
            cores(&topology)[2..4],
            [(1, vec![1]), (1, vec![1 + n_nodes])]
        );
    }
}

#[test]
fn gaps_in_ids_memory_without_cpus_and_cpus_without_memory() {
    let tree = Tree::new();
    tree.online("0-1,6")
        .node(0, "0-1", GIB, "10 20 30")
        .node(2, "", GIB, "20 10 40");
    tree.node(10, "6", 0, "30 40 10")
        .write("devices/system/node/has_cpu", "0,10");
    tree.write("devices/system/node/nodeX/cpulist", "not a node");
    let topology = read(&tree);
    assert_eq!(
        cores(&topology),
        [(0, vec![0]), (0, vec![1]), (10, vec![6])]
    );
    assert_eq!(topology.nodes[1].cpus, []);
    assert_eq!(
        (topology.nodes[2].id, topology.nodes[2].total_bytes),
        (NodeId(10), 0)
    );
    assert_eq!(topology.nodes[2].distances[1], (NodeId(2), 40));
}

#[test]
fn offline_cpus_are_nowhere() {
    let tree = Tree::new();
    tree.online("0,2-3")
        .node(0, "0-3", GIB, "10")
        .core(&[0, 1])
        .core(&[2, 3]);
    let topology = read(&tree);
    assert_eq!(cores(&topology), [(0, vec![0]), (0, vec![2, 3])]);
    assert_eq!(topology.online_cpus(), [0, 2, 3].map(CpuId));
}

#[test]
fn without_nodes_one_node_has_all_cpus_and_the_machines_memory() {
    let tree = Tree::new();
    tree.online("0-2").core(&[0, 2]);
    tree.write(
        "meminfo",
        "MemTotal: 2048 kB\nMemFree: 512 kB\nMemAvailable:   1024 kB\n",
    );
    let topology = read(&tree);
    assert_eq!(cores(&topology), [(0, vec![0, 2]), (0, vec![1])]);
    assert_eq!(
        (topology.nodes[0].total_bytes, topology.nodes[0].free_bytes),
        (2 << 20, 512 << 10)
    );
    assert_eq!(topology.nodes[0].cpus, [0, 1, 2].map(CpuId));
    assert_eq!(available_memory_bytes(tree.root()), Some(1 << 20));
    assert_eq!(available_memory_bytes(Path::new("/nowhere")), None);
}

#[test]
fn without_a_list_of_online_cpus_each_cpu_speaks_for_itself() {
    let tree = Tree::new();
    tree.core(&[0, 1])
        .core(&[2, 3])
        .write("devices/system/cpu/cpu1/online", "0\n");
    tree.write("devices/system/cpu/cpu3/online", "1\n")
        .write("devices/system/cpu/cpufreq/x", "");
    assert_eq!(cores(&read(&tree)), [(0, vec![0]), (0, vec![2, 3])]);
}

#[test]
fn newer_name_of_the_sibling_list_wins_and_a_cpu_of_no_node_goes_to_the_first() {
    let tree = Tree::new();
    tree.online("0-4")
        .node(1, "0-1", GIB, "10 20")
        .node(2, "2-3", GIB, "20 10")
        .core(&[0]);
    tree.write("devices/system/cpu/cpu0/topology/core_cpus_list", "0-1\n");
    assert_eq!(cores(&read(&tree))[..2], [(1, vec![0, 1]), (1, vec![4])]);
}

#[test]
fn a_file_that_makes_no_sense_is_named() {
    let cases = [
        ("devices/system/cpu/online", "0-x"),
        ("devices/system/cpu/online", ""),
        ("devices/system/node/node0/cpulist", "3-1"),
        (
            "devices/system/node/node0/meminfo",
            "Node 0 MemTotal: lots kB",
        ),
        ("devices/system/node/node0/distance", "10 20"),
        ("devices/system/node/node0/distance", "\u{fffd}"),
        (
            "devices/system/cpu/cpu1/topology/thread_siblings_list",
            "1,,2",
        ),
    ];
    for (path, text) in cases {
        let tree = Tree::new();
        tree.online("0-1")
            .node(0, "0-1", GIB, "10")
            .core(&[0])
            .core(&[1])
            .write(path, text);
        let refused = Topology::read(tree.root(), tree.root())
            .unwrap_err()
            .to_string();
        assert!(refused.contains(path), "{refused}");
    }
    let nowhere = Path::new("/nowhere");
    assert!(
        Topology::read(nowhere, nowhere)
            .unwrap_err()
            .to_string()
            .contains("/nowhere")
    );
}

#[test]
fn this_machine_can_be_read() {
    let topology = Topology::read(Path::new("/sys"), Path::new("/proc")).unwrap();
    let allowed: Vec<_> = numamirror_core::sys::affinity()
        .unwrap()
        .into_iter()
        .map(CpuId)
        .collect();
    assert!(!topology.physical_cores(&allowed).is_empty());
    assert!(
        topology
            .nodes
            .iter()
            .any(|node| node.total_bytes >= node.free_bytes.max(1))
    );
}

#[test]
fn page_pools_are_those_of_the_nodes_or_else_of_the_machine() {
    let tree = Tree::new();
    tree.online("0")
        .node(0, "0", GIB, "10 20")
        .node(2, "", GIB, "20 10");
    let pool = |dir: &str, name: &str, n_pages: &str, n_free: &str| {
        let dir = format!("{dir}/{name}");
        tree.write(&format!("{dir}/nr_hugepages"), n_pages)
            .write(&format!("{dir}/free_hugepages"), n_free);
    };
    let of = |node, page_bytes, n_pages, n_free_pages| PagePool {
        node,
        page_bytes,
        n_pages,
        n_free_pages,
    };
    let pools = || page_pools(tree.root(), &read(&tree)).unwrap();
    assert_eq!(pools(), []);
    pool("kernel/mm/hugepages", "hugepages-2048kB", "7\n", "6\n");
    assert_eq!(pools(), [of(None, 2 << 20, 7, 6)]);
    let node = |id: u32| format!("devices/system/node/node{id}/hugepages");
    pool(&node(2), "hugepages-1048576kB", "2\n", "0\n");
    pool(&node(2), "hugepages-2048kB", "5\n", "4\n");
    pool(&node(0), "hugepages-2048kB", "2\n", "2\n");
    let (zero, two) = (Some(NodeId(0)), Some(NodeId(2)));
    let expected = [
        of(zero, 2 << 20, 2, 2),
        of(two, 2 << 20, 5, 4),
        of(two, 1 << 30, 2, 0),
    ];
    assert_eq!(pools(), expected);
    pool(&node(0), "hugepages-2048kB", "many", "2\n");
    let refused = page_pools(tree.root(), &read(&tree))
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("nr_hugepages: many; expected a number"),
        "{refused}"
    );
}

#[test]
fn modes_of_the_kernel_are_read_or_unknown() {
    let tree = Tree::new();
    assert_eq!(transparent_page_mode(tree.root()).unwrap(), None);
    assert_eq!(numa_balancing(tree.root()).unwrap(), None);
    let path = "kernel/mm/transparent_hugepage/enabled";
    tree.write(path, "always [madvise] never\n")
        .write("sys/kernel/numa_balancing", "1\n");
    let mode = transparent_page_mode(tree.root()).unwrap();
    assert_eq!(mode.as_deref(), Some("madvise"));
    assert_eq!(numa_balancing(tree.root()).unwrap(), Some(1));
    tree.write(path, "madvise\n")
        .write("sys/kernel/numa_balancing", "on\n");
    let refused = transparent_page_mode(tree.root()).unwrap_err().to_string();
    assert!(
        refused.contains("madvise; expected one word in brackets"),
        "{refused}"
    );
    assert!(numa_balancing(tree.root()).is_err());
}
