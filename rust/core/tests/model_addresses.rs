//! Where loaded models lie. One test, so that the process has no other arenas.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod models;

use std::fs;

use models::{Random, anywhere, file, random_rows, workers};
use numamirror_core::buffer::Buffer;
use numamirror_core::isa;
use numamirror_core::load::{Source, load};
use numamirror_core::memory::{HUGE_PAGE_BYTES as HUGE, NodeArenas};
use numamirror_core::weights::{Layout, Role, TensorSpec, Weights};
use numamirror_core::workers::Control;

/// First byte of the second node's arena, of two: no arena of more nodes reaches it.
const UPPER: usize = 0x4000_0000_0000;
const LOWER: usize = 0x2000_0000_0000;

/// A matrix of 2.1 MiB in a buffer, on this many nodes with a thread each.
fn model(buffer: &str, n_nodes: usize) -> Weights {
    let spec = TensorSpec {
        name: "matrix".into(),
        type_name: "Q8_0".into(),
        n_rows: 2048,
        n_cols: 1024,
        role: Role::Matrix,
    };
    let bytes = random_rows("Q8_0", 2048, 1024, &mut Random(3));
    let nodes = vec![1; n_nodes];
    let buffer = Buffer::by_name(buffer, n_nodes).unwrap();
    let isa = isa::choose(None).unwrap();
    let layout = Layout::on_nodes(&[spec], &[buffer], &nodes, isa).unwrap();
    let (files, sources) = ([file(&bytes)], [Source { file: 0, offset: 0 }]);
    let (memory, workers) = (anywhere(n_nodes), workers(&nodes));
    let go_on = &mut |_| Control::Continue;
    load(layout, &memory, &files, &sources, &workers, go_on).unwrap()
}

/// Ranges that `/proc/self/maps` has where arenas may lie; pieces of one are joined.
fn mapped() -> Vec<(usize, usize)> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let mut found: Vec<(usize, usize)> = Vec::new();
    for line in maps.lines() {
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let [start, end] = [start, end].map(|it| usize::from_str_radix(it, 16).unwrap());
        match found.last_mut() {
            _ if !(LOWER..UPPER + (1 << 40)).contains(&start) => {}
            Some(last) if last.1 == start => last.1 = end,
            _ => found.push((start, end)),
        }
    }
    found
}

fn bases(arenas: &NodeArenas) -> Vec<usize> {
    let bases = arenas
        .iter()
        .map(|(_, arena)| arena.base_ptr().addr().get());
    bases.collect()
}

/// Asserts that the kernel shows exactly these arenas, this many bytes at each address.
fn assert_mapped(starts: &[usize], n_bytes: usize) {
    let expected: Vec<_> = starts
        .iter()
        .map(|&start| (start, start + n_bytes))
        .collect();
    assert_eq!(mapped(), expected);
}

#[test]
fn models_lie_at_the_addresses_of_their_nodes() {
    assert_mapped(&[], 0);
    // A copy of 2.1 MiB takes two huge pages, half of it one.
    for (buffer, n_bytes) in [("MIRROR", 2 * HUGE), ("SPLIT", HUGE)] {
        let first = model(buffer, 2);
        assert_eq!(bases(first.arenas()), [LOWER, UPPER]);
        assert_mapped(&[LOWER, UPPER], n_bytes);
        // The second model gets the next offset, the same on both nodes and a huge page apart; a
        // third that of the first.
        let next = n_bytes + HUGE;
        let second = model(buffer, 2);
        assert_eq!(bases(second.arenas()), [LOWER + next, UPPER + next]);
        assert_mapped(&[LOWER, LOWER + next, UPPER, UPPER + next], n_bytes);
        drop(first);
        assert_mapped(&[LOWER + next, UPPER + next], n_bytes);
        let third = model(buffer, 2);
        assert_eq!(bases(third.arenas()), [LOWER, UPPER]);
        drop((second, third));
        assert_mapped(&[], 0);
    }
    for (n_nodes, n_strides) in [(3, 4), (5, 8), (8, 8)] {
        let weights = model("MIRROR", n_nodes);
        let stride = |node| LOWER + node * (UPPER - LOWER) / n_strides;
        let starts: Vec<_> = (0..n_nodes).map(stride).collect();
        assert_mapped(&starts, 2 * HUGE);
        assert!(mapped().iter().all(|&(_, end)| end <= UPPER));
        drop(weights);
        assert_mapped(&[], 0);
    }
}
