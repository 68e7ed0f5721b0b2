//! Node arenas: kinds of pages, binding, first touch and its proof.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod seccomp;

use std::fs;
use std::path::{Path, PathBuf};

use numamirror_core::error::Result;
use numamirror_core::memory::{
    Evidence, HUGE_PAGE_BYTES as HUGE, NodeArenas, PageKind, first_touch, touch_pieces,
};
use numamirror_core::sys;
use numamirror_core::topology::{CpuId, NodeId, Topology, spread_pins};
use numamirror_core::workers::{Control, NodeIndex, Workers};

/// A folder of files that is removed on drop.
struct Tree(PathBuf);

impl Tree {
    fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let root = std::env::temp_dir().join(format!("numamirror-{}-{name}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Self(root)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn no_sysfs() -> &'static Path {
    Path::new("/nonexistent")
}

fn unbound(sizes_bytes: &[usize]) -> Result<NodeArenas> {
    NodeArenas::reserve("test", sizes_bytes, &vec![None; sizes_bytes.len()])
}

/// One worker a pretended node, on whatever CPUs there are.
fn workers(n_nodes: usize) -> Workers {
    let cpus = sys::affinity().unwrap();
    let cpus = cpus.iter().cycle().take(n_nodes);
    let pins = spread_pins(&cpus.map(|&cpu| vec![CpuId(cpu)]).collect::<Vec<_>>());
    Workers::new(&pins).unwrap()
}

fn keep_on(_: u64) -> Control {
    Control::Continue
}

/// A real node that has memory.
fn real_node() -> NodeId {
    let topology = Topology::read(Path::new("/sys"), Path::new("/proc")).unwrap();
    let node = topology.nodes.iter().find(|node| node.total_bytes > 0);
    node.unwrap().id
}

const POOL: &str = "hugepages/hugepages-2048kB";

#[test]
fn pools_that_are_too_small_are_counted_in_the_reason() {
    let in_node = format!("devices/system/node/node0/{POOL}/free_hugepages");
    let free = format!("kernel/mm/{POOL}/free_hugepages");
    let promised = format!("kernel/mm/{POOL}/resv_hugepages");
    let files = [(&*in_node, "2\n"), (&*free, "5\n"), (&*promised, "3\n")];
    let tree = Tree::new("pools", &files);
    let node = Some(NodeId(0));
    let sizes = [2 * HUGE, 1, HUGE + 1];
    let mut arenas = NodeArenas::reserve("test", &sizes, &[node, None, node]).unwrap();
    let got = arenas.commit(PageKind::Huge2M, &tree.0).unwrap();
    let expected = "too few 2 MiB pages (node 0: 4 needed, 2 free; all nodes: 5 needed, 2 free)";
    assert!(
        got.reason.as_deref().unwrap().starts_with(expected),
        "{got:?}"
    );
    assert!(got.pages < PageKind::Huge2M);
    first_touch(&mut arenas, &workers(2), &mut keep_on).unwrap();
    arenas.as_mut_slices().into_iter().for_each(|s| s.fill(1));
}

#[test]
fn a_pool_that_promised_too_much_leads_to_ordinary_pages() {
    let tree = Tree::new(
        "liar",
        &[(&*format!("kernel/mm/{POOL}/free_hugepages"), "9999999")],
    );
    let mut arenas = unbound(&[4096, 1 << 40]).unwrap();
    let got = arenas.commit(PageKind::Huge2M, &tree.0).unwrap();
    let reason = got.reason.as_deref().unwrap();
    assert!(reason.starts_with("2 MiB pages were refused: "), "{reason}");
    assert!(got.pages < PageKind::Huge2M);
    let first = &mut arenas.as_mut_slices()[0];
    first.fill(1);
}

#[test]
fn switched_off_transparent_pages_are_announced() {
    let file = "kernel/mm/transparent_hugepage/enabled";
    let tree = Tree::new("never", &[(file, "always madvise [never]\n")]);
    let mut arenas = unbound(&[1]).unwrap();
    let got = arenas.commit(PageKind::Transparent, &tree.0).unwrap();
    assert_eq!(got.pages, PageKind::Small);
    assert!(
        got.reason
            .unwrap()
            .contains("transparent huge pages are switched off")
    );
    let wished = unbound(&[1])
        .unwrap()
        .commit(PageKind::Small, &tree.0)
        .unwrap();
    assert_eq!((wished.pages, wished.reason), (PageKind::Small, None));
}

#[test]
fn pieces_cover_each_arena_once_and_belong_to_its_nodes_threads() {
    let sizes = [1, 9 * HUGE + 5, 6 << 30, 0, 600 * HUGE];
    let arenas = unbound(&sizes).unwrap();
    for n_nodes in [1, 2, 5, 8] {
        let pieces = touch_pieces(&arenas, n_nodes);
        assert_eq!(pieces.len(), n_nodes);
        let mut ends = [0; 5];
        for (owner, piece) in (0..)
            .zip(pieces)
            .flat_map(|(i, p)| p.into_iter().map(move |p| (i, p)))
        {
            let node = piece.node.0;
            assert_eq!(owner, node % n_nodes);
            assert_eq!(piece.bytes.start, ends[node]);
            assert!(
                (HUGE..=16 << 20).contains(&piece.bytes.len()) && piece.bytes.len() % HUGE == 0
            );
            ends[node] = piece.bytes.end;
        }
        for (node, arena) in arenas.iter() {
            assert_eq!(ends[node.0], arena.reserved_bytes());
        }
    }
}

#[test]
fn first_touch_makes_everything_resident_whoever_has_threads() {
    for n_worker_nodes in [1, 2, 3, 5] {
        let mut arenas = unbound(&[5000, 9 * HUGE + 1, HUGE]).unwrap();
        let team = workers(n_worker_nodes);
        assert!(
            first_touch(&mut arenas, &team, &mut keep_on).is_err(),
            "not committed"
        );
        let got = arenas
            .commit(PageKind::Transparent, Path::new("/sys"))
            .unwrap();
        let mut touched = 0;
        let progress = &mut |bytes| {
            touched = bytes;
            Control::Continue
        };
        assert_eq!(first_touch(&mut arenas, &team, progress).unwrap(), got);
        assert_eq!(touched, 12 * HUGE as u64);
        for (node, arena) in arenas.iter() {
            let report = arenas.page_report(node).unwrap();
            assert_eq!(report.sizes.mapped_bytes, arena.reserved_bytes() as u64);
            assert_eq!(report.sizes.resident_bytes, report.sizes.mapped_bytes);
            assert_eq!(report.sizes.kernel_page_bytes, 4096);
        }
        let mut slices = arenas.as_mut_slices().into_iter();
        assert!(slices.all(|slice| slice.iter().all(|&byte| byte == 0)));
    }
}

#[test]
fn bound_pages_are_on_their_node_and_that_is_read_back() {
    let node = real_node();
    let mut arenas = NodeArenas::reserve("test", &[5000, 70 * HUGE], &[Some(node); 2]).unwrap();
    let untouched = arenas.page_report(NodeIndex(1)).unwrap();
    assert_eq!(
        (untouched.share(node), untouched.sizes.resident_bytes),
        (None, 0)
    );
    let got = arenas
        .commit(PageKind::Transparent, Path::new("/sys"))
        .unwrap();
    first_touch(&mut arenas, &workers(2), &mut keep_on).unwrap();
    let maps = fs::read_to_string("/proc/self/numa_maps").unwrap_or_default();
    let begin = format!(
        "{:x} bind:{} ",
        arenas.arena(NodeIndex(1)).base_ptr().addr(),
        node.0
    );
    assert!(
        maps.is_empty() || got.bind_refused || maps.contains(&begin),
        "{maps}"
    );
    for (index, n_samples) in [(0, 2), (1, 70)] {
        let report = arenas.page_report(NodeIndex(index)).unwrap();
        if report.evidence == Evidence::MovePages {
            assert_eq!(report.pages_by_node.values().sum::<u64>(), n_samples);
        }
        if report.evidence != Evidence::Unknown && !got.bind_refused {
            assert_eq!(report.share(node), Some(1.0));
        }
    }
}

#[test]
fn interleaved_pages_are_touched_by_all_nodes_in_turn_and_found_where_they_are() {
    let mut arenas = NodeArenas::reserve("test", &[9 * HUGE, 1], &[Some(real_node()); 2]).unwrap();
    arenas.interleave(4 * HUGE..9 * HUGE);
    let of_node = |node: usize| {
        let pieces = touch_pieces(&arenas, 2)[node].clone().into_iter();
        let first = pieces.filter(|piece| piece.node.0 == 0);
        first
            .map(|piece| piece.bytes.start / HUGE)
            .collect::<Vec<_>>()
    };
    assert_eq!(of_node(0), [0, 1, 2, 3, 4, 6, 8]);
    assert_eq!(of_node(1), [5, 7]);
    arenas
        .commit(PageKind::Transparent, Path::new("/sys"))
        .unwrap();
    first_touch(&mut arenas, &workers(2), &mut keep_on).unwrap();
    let report = arenas.page_report(NodeIndex(0)).unwrap();
    assert_eq!(report.sizes.resident_bytes, 9 * HUGE as u64);
    let (pages, evidence) = arenas.interleaved_pages();
    if evidence == Evidence::MovePages {
        assert_eq!(pages.into_values().sum::<u64>(), 5 * HUGE as u64 / 4096);
        assert_eq!(report.pages_by_node.into_values().sum::<u64>(), 64);
    }
}

#[test]
fn a_node_that_does_not_exist_is_named() {
    let mut arenas = NodeArenas::reserve("test", &[1], &[Some(NodeId(1000))]).unwrap();
    match arenas.commit(PageKind::Small, no_sysfs()) {
        Ok(got) => assert!(got.bind_refused),
        Err(error) => assert!(
            error
                .to_string()
                .starts_with("mbind of test to node 1000 failed")
        ),
    }
}

#[test]
fn a_node_without_free_memory_is_an_error_and_not_the_end() {
    let node = real_node();
    let file = format!("devices/system/node/node{}/meminfo", node.0);
    let text = "Node 0 MemTotal: 1000000 kB\nNode 0 MemFree: 10000 kB\n\
        Node 0 Active(file): 5000 kB\nNode 0 Inactive(file): 2000 kB\n";
    let tree = Tree::new("full", &[(&*file, text)]);
    let mut arenas = NodeArenas::reserve("test", &[3 * HUGE], &[Some(node)]).unwrap();
    arenas.commit(PageKind::Small, &tree.0).unwrap();
    let refused = first_touch(&mut arenas, &workers(1), &mut keep_on).unwrap_err();
    let expected = format!(
        "not enough memory on node {} for test: 6291456 more bytes needed, 17408000 are free, of \
         which 20480000 are kept for others",
        node.0
    );
    assert_eq!(refused.to_string(), expected);
}

#[test]
fn a_container_that_forbids_binding_still_gets_its_pages() {
    let calls = [
        libc::SYS_mbind,
        libc::SYS_set_mempolicy,
        libc::SYS_move_pages,
    ];
    if !calls
        .iter()
        .all(|&call| seccomp::refuse(call, None, libc::EPERM))
    {
        return;
    }
    let node = real_node();
    // The second node does not exist: nothing but its number is used.
    let nodes = [Some(node), Some(NodeId(node.0 + 1))];
    let mut arenas = NodeArenas::reserve("test", &[3 * HUGE, 1], &nodes).unwrap();
    arenas.interleave(2 * HUGE..3 * HUGE);
    let got = arenas
        .commit(PageKind::Transparent, Path::new("/sys"))
        .unwrap();
    assert!(got.bind_refused);
    first_touch(&mut arenas, &workers(1), &mut keep_on).unwrap();
    let report = arenas.page_report(NodeIndex(0)).unwrap();
    assert_eq!(report.sizes.resident_bytes, 3 * HUGE as u64);
    let n_pages = report.pages_by_node.values().sum::<u64>();
    match report.evidence {
        Evidence::NumaMaps => assert_eq!(n_pages, 3 * HUGE as u64 / 4096),
        evidence => assert_eq!((evidence, n_pages), (Evidence::Unknown, 0)),
    }
}

#[test]
fn memory_that_runs_out_is_an_error() {
    if !seccomp::refuse(
        libc::SYS_madvise,
        Some(libc::MADV_POPULATE_WRITE),
        libc::ENOMEM,
    ) {
        return;
    }
    let mut arenas = unbound(&[HUGE]).unwrap();
    arenas.commit(PageKind::Small, no_sysfs()).unwrap();
    let refused = first_touch(&mut arenas, &workers(2), &mut keep_on).unwrap_err();
    let text = refused.to_string();
    assert!(
        text.starts_with("not enough memory for test: 2097152 bytes asked for: "),
        "{text}"
    );
}
