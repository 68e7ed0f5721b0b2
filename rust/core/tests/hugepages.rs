//! Arenas of 2 MiB pages from the pool. Needs a pool, or the right to make one: skipped otherwise.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod seccomp;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use numamirror_core::error::Error;
use numamirror_core::memory::{HUGE_PAGE_BYTES as HUGE, NodeArenas, PageKind, first_touch};
use numamirror_core::sys;
use numamirror_core::topology::{CpuId, NodeId, Topology, spread_pins};
use numamirror_core::workers::{Control, Workers};

const PAGES_NEEDED: u64 = 8;

/// A node's pool, grown for the test; as before on drop.
struct Pool {
    folder: PathBuf,
    before: u64,
    /// Held while the pool is not as it was, against other runs of this test.
    _turn: fs::File,
}

impl Pool {
    /// `None` when pages can't be had.
    fn grow(node: NodeId) -> Option<Self> {
        let folder = format!("/sys/devices/system/node/node{}/hugepages", node.0);
        let folder = Path::new(&folder).join("hugepages-2048kB");
        let turn = fs::File::open(folder.join("nr_hugepages")).ok()?;
        turn.lock().ok()?;
        let mut pool = Self {
            before: 0,
            folder,
            _turn: turn,
        };
        pool.before = pool.number("nr_hugepages");
        let wanted = (pool.before + PAGES_NEEDED).to_string();
        // A refusal shows in the number of free pages.
        let _ = fs::write(pool.folder.join("nr_hugepages"), wanted);
        (pool.number("free_hugepages") >= PAGES_NEEDED).then_some(pool)
    }

    fn number(&self, file: &str) -> u64 {
        let text = fs::read_to_string(self.folder.join(file)).unwrap();
        text.trim().parse().unwrap()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = fs::write(self.folder.join("nr_hugepages"), self.before.to_string());
    }
}

fn hugetlb_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("HugetlbPages:"));
    line.unwrap()
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap()
}

/// Workers of two pretended nodes.
fn workers() -> Workers {
    let cpus = sys::affinity().unwrap();
    let ends = [cpus[0], cpus[cpus.len() - 1]];
    Workers::new(&spread_pins(&ends.map(|cpu| vec![CpuId(cpu)]))).unwrap()
}

fn use_and_drop(pool: &Pool, node: NodeId, kernel_nodes: &[Option<NodeId>]) {
    let free = pool.number("free_hugepages");
    let sizes = [2 * HUGE + 1, HUGE];
    let mut arenas = NodeArenas::reserve("test", &sizes, kernel_nodes).unwrap();
    let got = arenas.commit(PageKind::Huge2M, Path::new("/sys")).unwrap();
    assert_eq!((got.pages, &got.reason), (PageKind::Huge2M, &None));
    assert_eq!(hugetlb_kib(), 0, "nothing is touched yet");
    let progress = &mut |_| Control::Continue;
    assert_eq!(first_touch(&mut arenas, &workers(), progress).unwrap(), got);
    assert_eq!(hugetlb_kib(), 4 * 2048);
    for (index, arena) in arenas.iter() {
        let report = arenas.page_report(index).unwrap();
        assert_eq!(report.sizes.kernel_page_bytes, HUGE as u64);
        assert_eq!(report.sizes.huge_bytes, arena.reserved_bytes() as u64);
        assert_eq!(report.sizes.resident_bytes, arena.reserved_bytes() as u64);
        if kernel_nodes[index.0].is_some() {
            assert!(
                report
                    .share(node)
                    .is_none_or(|share| got.bind_refused || share > 0.999)
            );
        }
    }
    arenas.as_mut_slices().into_iter().for_each(|s| s.fill(9));
    drop(arenas);
    assert_eq!(hugetlb_kib(), 0);
    assert_eq!(
        pool.number("free_hugepages"),
        free,
        "all pages are given back"
    );
}

/// What a limit of the control group below the pool does: the claim succeeds, the touch does not.
fn pages_that_run_out(pool: &Pool, node: NodeId) {
    let free = pool.number("free_hugepages");
    let advice = Some(libc::MADV_POPULATE_WRITE);
    let life = || {
        if !seccomp::refuse(libc::SYS_madvise, advice, libc::ENOMEM) {
            return;
        }
        let mut arenas = NodeArenas::reserve("test", &[HUGE, HUGE], &[Some(node); 2]).unwrap();
        let got = arenas.commit(PageKind::Huge2M, Path::new("/sys")).unwrap();
        assert_eq!(got.pages, PageKind::Huge2M);
        // The filter refuses ordinary pages as well, so the fallback ends in an error.
        let refused = first_touch(&mut arenas, &workers(), &mut |_| Control::Continue);
        assert!(
            matches!(refused, Err(Error::OutOfMemory { .. })),
            "{refused:?}"
        );
        let got = arenas.committed().unwrap();
        assert!(got.pages < PageKind::Huge2M);
        assert!(
            got.reason
                .as_deref()
                .unwrap()
                .starts_with("2 MiB pages ran out on arena ")
        );
        assert_eq!(pool.number("free_hugepages"), free);
        arenas.as_mut_slices().into_iter().for_each(|s| s.fill(1));
    };
    // The filter stays with the thread that installs it.
    std::thread::scope(|scope| scope.spawn(life).join().unwrap());
}

#[test]
fn pool_pages_are_used_and_given_back() {
    let topology = Topology::read(Path::new("/sys"), Path::new("/proc")).unwrap();
    let node = topology.nodes.iter().find(|node| node.total_bytes > 0);
    let node = node.unwrap().id;
    let Some(pool) = Pool::grow(node) else {
        let _ = writeln!(std::io::stderr(), "skipped: no pool of 2 MiB pages");
        return;
    };
    use_and_drop(&pool, node, &[Some(node), Some(node)]);
    if topology.nodes.len() == 1 {
        use_and_drop(&pool, node, &[None, None]);
    }
    pages_that_run_out(&pool, node);
    let more = (pool.number("free_hugepages") as usize + 1) * HUGE;
    let mut arenas = NodeArenas::reserve("test", &[1, more], &[Some(node); 2]).unwrap();
    let got = arenas.commit(PageKind::Huge2M, Path::new("/sys")).unwrap();
    assert!(got.pages < PageKind::Huge2M && got.reason.unwrap().starts_with("too few 2 MiB"));
}
