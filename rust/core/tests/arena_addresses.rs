//! Node arenas: addresses, leases, limits, forked children.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(unsafe_code, reason = "maps, limits and forks around the arenas")]

use std::fs;
use std::path::Path;
use std::process::Command;

use numamirror_core::error::{Error, MemoryLimit, Result};
use numamirror_core::memory::{
    HUGE_PAGE_BYTES as HUGE, NodeArenas, PageKind, base_address, stride_bytes,
};
use numamirror_core::workers::NodeIndex;

/// Names the test that a process was started for.
const ALONE: &str = "NUMAMIRROR_TEST_ALONE";

/// Runs `body` in a process where no other test maps anything.
fn alone(name: &str, body: impl FnOnce()) {
    if std::env::var(ALONE).is_ok_and(|wanted| wanted == name) {
        return body();
    }
    let this = std::env::current_exe().unwrap();
    let arguments = ["--exact", name, "--nocapture", "--test-threads=1"];
    let output = Command::new(this).args(arguments).env(ALONE, name).output();
    let output = output.unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
}

fn no_sysfs() -> &'static Path {
    Path::new("/nonexistent")
}

fn unbound(sizes_bytes: &[usize]) -> Result<NodeArenas> {
    NodeArenas::reserve("test", sizes_bytes, &vec![None; sizes_bytes.len()])
}

fn start(arenas: &NodeArenas, node: usize) -> usize {
    arenas.arena(NodeIndex(node)).base_ptr().addr().get()
}

/// Lines of `/proc/self/maps` whose area is exactly that of a node's arena.
fn is_mapped(start: usize, reserved_bytes: usize) -> bool {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let area = format!("{start:x}-{:x} ", start + reserved_bytes);
    maps.lines().any(|line| line.starts_with(&area))
}

#[test]
fn arenas_lie_at_the_bases_of_their_nodes() {
    alone("arenas_lie_at_the_bases_of_their_nodes", || {
        for n_nodes in [1, 2, 3, 5, 8] {
            let sizes: Vec<_> = (0..n_nodes).map(|node| node * 3_000_000 + 1).collect();
            let arenas = unbound(&sizes).unwrap();
            for (node, arena) in arenas.iter() {
                let base = base_address(n_nodes, node);
                assert_eq!(arena.base_ptr().addr().get(), base);
                assert_eq!(arena.len_bytes(), sizes[node.0]);
                let reserved_bytes = sizes[node.0].next_multiple_of(HUGE);
                assert_eq!(arena.reserved_bytes(), reserved_bytes);
                assert!(
                    is_mapped(base, reserved_bytes),
                    "node {} of {n_nodes}",
                    node.0
                );
                assert!(n_nodes <= 2 || base + reserved_bytes <= 0x4000_0000_0000);
            }
        }
        let two = unbound(&[1, 1]).unwrap();
        assert!(is_mapped(0x2000_0000_0000, HUGE) && is_mapped(0x4000_0000_0000, HUGE));
        // The next model gets the next offset, and the first one again when it is free.
        let next = unbound(&[1, 5 * HUGE]).unwrap();
        assert_eq!(start(&next, 0), 0x2000_0000_0000 + 2 * HUGE);
        drop(two);
        assert!(!is_mapped(0x2000_0000_0000, HUGE));
        assert_eq!(start(&unbound(&[HUGE]).unwrap(), 0), 0x2000_0000_0000);
    });
}

#[test]
fn models_of_different_node_counts_live_side_by_side() {
    let mut models = Vec::new();
    for (value, n_nodes) in (1_u8..).zip([2, 4, 8, 1, 8, 3, 2]) {
        let mut arenas = unbound(&vec![usize::from(value) * 700_001; n_nodes]).unwrap();
        arenas.commit(PageKind::Small, no_sysfs()).unwrap();
        let offset = start(&arenas, 0) - base_address(n_nodes, NodeIndex(0));
        for (node, arena) in arenas.iter() {
            let found = arena.base_ptr().addr().get() - base_address(n_nodes, node);
            assert_eq!(found, offset, "the same on every node");
            assert_eq!(arenas.at(node, 9).addr().get(), start(&arenas, node.0) + 9);
        }
        arenas
            .as_mut_slices()
            .into_iter()
            .for_each(|s| s.fill(value));
        models.push((value, arenas));
    }
    for (value, arenas) in &mut models {
        let mut slices = arenas.as_mut_slices().into_iter();
        assert!(slices.all(|slice| slice.iter().all(|byte| byte == value)));
    }
}

#[test]
fn threads_may_reserve_and_drop_at_the_same_time() {
    let life = |value: u8| {
        for round in 1..40 {
            let mut arenas = unbound(&[round * 100_003, 1, 4096]).unwrap();
            arenas.commit(PageKind::Small, no_sysfs()).unwrap();
            for slice in arenas.as_mut_slices() {
                slice.fill(value);
                assert!(slice.iter().all(|&byte| byte == value));
            }
        }
    };
    std::thread::scope(|scope| {
        for value in 1..=4 {
            scope.spawn(move || life(value));
        }
    });
}

#[test]
fn a_foreign_occupant_is_named() {
    alone("a_foreign_occupant_is_named", || {
        let this = std::env::current_exe().unwrap();
        let file = fs::File::open(&this).unwrap();
        let address = std::ptr::without_provenance_mut(0x4000_0000_0000 + HUGE);
        let flags = libc::MAP_PRIVATE | libc::MAP_FIXED_NOREPLACE;
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        // SAFETY: NOREPLACE touches no other mapping; nobody reads this one.
        let mapped = unsafe { libc::mmap(address, 4096, libc::PROT_READ, flags, fd, 0) };
        assert_eq!(mapped, address);
        unbound(&[1, HUGE]).unwrap();
        let refused = unbound(&[1, HUGE + 1]).unwrap_err();
        let (text, name) = (refused.to_string(), this.to_string_lossy().into_owned());
        let opening = "addresses 0x400000000000 to 0x400000400000 for test are taken by: \
            400000200000-400000201000 r--p ";
        assert!(text.starts_with(opening) && text.ends_with(&name), "{text}");
        assert!(refused.hint().is_some());
        assert!(!is_mapped(0x2000_0000_0000, HUGE), "nothing is left behind");
        // SAFETY: the mapping made above.
        assert_eq!(unsafe { libc::munmap(mapped, 4096) }, 0);
        assert_eq!(
            start(&unbound(&[1, HUGE + 1]).unwrap(), 1),
            0x4000_0000_0000
        );
    });
}

fn limit(resource: libc::__rlimit_resource_t, bytes: u64) {
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: limit is a live record.
    assert_eq!(unsafe { libc::setrlimit(resource, &raw const limit) }, 0);
}

#[test]
fn a_limit_on_address_space_is_named() {
    alone("a_limit_on_address_space_is_named", || {
        limit(libc::RLIMIT_AS, 8 << 30);
        let refused = unbound(&[5 << 30, 5 << 30]).unwrap_err();
        let Error::MemoryLimit {
            wanted_bytes,
            limit: MemoryLimit::AddressSpace,
            limit_bytes,
            used_bytes,
            ..
        } = &refused
        else {
            panic!("{refused}");
        };
        assert_eq!((*wanted_bytes, *limit_bytes), (10 << 30, 8 << 30));
        assert!(*used_bytes < 2 << 30, "what was had so far is not counted");
        let opening = "not enough memory for test: 10737418240 bytes asked for, RLIMIT_AS is ";
        assert!(refused.to_string().starts_with(opening), "{refused}");
        assert!(refused.hint().unwrap().contains("ulimit -v unlimited"));
        unbound(&[1 << 30, 1 << 30]).unwrap();
    });
}

#[test]
fn a_limit_on_data_is_named() {
    alone("a_limit_on_data_is_named", || {
        limit(libc::RLIMIT_DATA, 1 << 30);
        let mut arenas = unbound(&[2 << 30]).unwrap();
        let refused = arenas.commit(PageKind::Small, no_sysfs()).unwrap_err();
        assert!(
            refused
                .to_string()
                .contains("RLIMIT_DATA is 1073741824 bytes")
        );
        assert!(refused.hint().unwrap().contains("ulimit -d unlimited"));
    });
}

#[test]
fn sizes_beyond_a_nodes_range_are_refused() {
    for size in [stride_bytes(8) + 1, usize::MAX, usize::MAX - HUGE] {
        let refused = unbound(&[1, 1, 1, 1, size]).unwrap_err();
        let text = refused.to_string();
        assert!(
            text.contains("the address range of a node is 4398046511104 bytes"),
            "{text}"
        );
    }
}

#[test]
fn a_forked_child_has_neither_the_memory_nor_a_say() {
    alone("a_forked_child_has_neither_the_memory_nor_a_say", || {
        let mut arenas = Some(unbound(&[HUGE]).unwrap());
        let it = arenas.as_mut().unwrap();
        it.commit(PageKind::Small, no_sysfs()).unwrap();
        it.as_mut_slices()[0].fill(7);
        let pointer = it.at(NodeIndex(0), 0).as_ptr();
        // SAFETY: the child asks about addresses, frees, and leaves by _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the range is only looked up: it is not there, which is the answer.
            let answer = unsafe { libc::msync(pointer.cast(), HUGE, libc::MS_ASYNC) };
            drop(arenas.take());
            // SAFETY: ends the child at once, without the parent's exit handlers.
            unsafe { libc::_exit(i32::from(answer == 0)) };
        }
        let mut status = -1;
        // SAFETY: status is a live integer, child a process of ours.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((waited, status), (child, 0));
        assert!(
            arenas.unwrap().as_mut_slices()[0]
                .iter()
                .all(|&byte| byte == 7)
        );
    });
}

#[test]
fn arenas_may_be_shared_between_threads() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<NodeArenas>();
}
