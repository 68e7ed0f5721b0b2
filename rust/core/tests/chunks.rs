//! Attention over chunks where they lie: the same bits as in one go, on any nodes and workers.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod models;

use std::sync::OnceLock;

use models::{Dims, How, Random, TINY, executor, forward, items, llama, plainly, random_data};
use numamirror_core::exec::Executor;
use numamirror_core::program::Program;
use numamirror_core::workers::NodeIndex;

/// Positions of the longest runs: past the borders of two chunks.
const N_POSITIONS: usize = 2056;

/// Positions that are fed token by token: around the borders.
const SLOWLY: [std::ops::Range<usize>; 2] = [1019..1029, 2044..N_POSITIONS];

/// Past the border of one chunk.
const SHORT: usize = 1029;

fn how(nodes: &'static [usize]) -> How {
    How {
        nodes,
        max_rows: N_POSITIONS,
        n_ctx: N_POSITIONS,
        ..plainly()
    }
}

fn model() -> (Program, Vec<Vec<u8>>, Vec<u32>) {
    let dims = Dims {
        matrix_type: "Q8_0",
        ..TINY
    };
    let program = Program::from_json(&llama(&dims).to_string()).unwrap();
    let data = random_data(&program, 5);
    let tokens = Random(11).tokens(N_POSITIONS, dims.n_vocab);
    (program, data, tokens)
}

/// The bits of the logits after every token, all fed at once to one worker.
fn at_once() -> &'static [Vec<u32>] {
    static LOGITS: OnceLock<Vec<Vec<u32>>> = OnceLock::new();
    LOGITS.get_or_init(|| {
        let (program, data, tokens) = model();
        let mut executor = executor(&program, &data, &how(&[1])).unwrap();
        let bits = forward(&mut executor, &items(0, 0, &tokens)).unwrap();
        bits.chunks_exact(program.n_vocab())
            .map(<[u32]>::to_vec)
            .collect()
    })
}

/// Feeds the tokens one by one where `SLOWLY` says, else many at once, and compares.
fn feed_slowly(executor: &mut Executor, tokens: &[u32], what: &str) {
    let (expected, mut end) = (at_once(), 0);
    for slowly in SLOWLY {
        if slowly.end > tokens.len() {
            break;
        }
        let found = forward(executor, &items(0, end, &tokens[end..slowly.start])).unwrap();
        assert!(
            found == expected[end..slowly.start].concat(),
            "{what}: {end}"
        );
        for position in slowly.clone() {
            let found = forward(executor, &items(0, position, &tokens[position..=position]));
            assert!(found.unwrap() == expected[position], "{what}: {position}");
        }
        end = slowly.end;
    }
}

#[test]
fn token_by_token_is_as_in_one_go_on_any_nodes_and_workers() {
    let (program, data, tokens) = model();
    // Workers on each node, in a pass of one token, and positions. Nodes without workers in a pass
    // leave their chunks to the others.
    let all = usize::MAX;
    let runs: [(&[usize], usize, usize); 10] = [
        (&[1], all, SHORT),
        (&[2], all, SHORT),
        (&[3], all, SHORT),
        (&[4], all, SHORT),
        (&[1, 1], all, SHORT),
        (&[2, 2], 1, SHORT),
        (&[1, 1, 1], all, SHORT),
        (&[2, 1], all, N_POSITIONS),
        (&[2, 1, 1], all, N_POSITIONS),
        (&[1, 1, 1], 2, N_POSITIONS),
    ];
    for (nodes, n_threads, n_positions) in runs {
        let how = How {
            n_threads,
            ..how(nodes)
        };
        let mut executor = executor(&program, &data, &how).unwrap();
        let what = format!("workers {nodes:?}, {n_threads} in a pass of one token");
        feed_slowly(&mut executor, &tokens[..n_positions], &what);
    }
}

#[test]
fn every_position_of_two_chunks_is_as_in_one_go() {
    let (program, data, tokens) = model();
    let mut executor = executor(&program, &data, &how(&[1, 1])).unwrap();
    for (position, expected) in at_once()[..1100].iter().enumerate() {
        let found = forward(
            &mut executor,
            &items(7, position, &tokens[position..=position]),
        );
        assert!(&found.unwrap() == expected, "{position}");
    }
}

/// Where sequences begin to be fed together, and how many tokens of each a pass has.
const TOGETHER: [(usize, usize); 4] = [(2044, 1), (3, 2), (1019, 3), (1023, 1)];

#[test]
fn sequences_of_any_length_share_a_pass_on_any_nodes() {
    let (program, data, tokens) = model();
    let expected = at_once();
    // 7 tokens a pass are few; 5 times as many are not.
    let runs: [(&[usize], usize); 4] = [(&[2], 1), (&[1, 1], 5), (&[2, 1], 1), (&[2, 1, 1], 1)];
    for (nodes, times) in runs {
        let how = How {
            n_parallel: 4,
            n_ctx: N_POSITIONS + 64,
            ..how(nodes)
        };
        let mut executor = executor(&program, &data, &how).unwrap();
        let mut ends = TOGETHER.map(|(start, _)| start);
        for (sequence, end) in (0..).zip(ends) {
            forward(&mut executor, &items(sequence, 0, &tokens[..end])).unwrap();
        }
        for _ in 0..6 / times {
            let (mut batch, mut wanted) = (Vec::new(), Vec::new());
            for ((sequence, end), (_, step)) in (0..).zip(&mut ends).zip(TOGETHER) {
                let next = (*end + step * times).min(N_POSITIONS);
                batch.extend(items(sequence, *end, &tokens[*end..next]));
                wanted.extend(expected[*end..next].concat());
                *end = next;
            }
            let found = forward(&mut executor, &batch).unwrap();
            assert!(found == wanted, "workers {nodes:?}, ends {ends:?}");
        }
    }
}

#[test]
fn a_context_written_anew_is_as_the_first_time() {
    let (program, data, tokens) = model();
    let mut executor = executor(&program, &data, &how(&[1, 1])).unwrap();
    let expected = at_once();
    forward(&mut executor, &items(0, 0, &tokens[..SHORT])).unwrap();
    for first in [1026, 1023, 1024, 64] {
        let end = first + 20;
        let found = forward(&mut executor, &items(0, first, &tokens[first..end])).unwrap();
        assert!(found == expected[first..end].concat(), "{first}");
    }
}

#[test]
fn each_node_has_the_memory_of_its_chunks_and_no_more() {
    let (program, data, _) = model();
    let executor = executor(&program, &data, &how(&[1, 1])).unwrap();
    // Keys and values of 2 heads of 16, f16, for 4 sequences of 2 chunks and a block.
    let block = 64 * 2 * (2 * 16 * 2);
    let bytes = |node| {
        let arena = executor.cache().arenas().arena(NodeIndex(node));
        arena.len_bytes()
    };
    assert_eq!([0, 1].map(bytes), [4 * (16 + 1) * block, 4 * 16 * block]);
}

#[test]
fn partial_results_take_a_bounded_room_whatever_the_context() {
    let (program, _, _) = model();
    // Four heads, each with 16 values, a maximum and a sum.
    let row = 4 * (16 + 2);
    assert_eq!(program.partial_elems(1, 1024), row);
    assert_eq!(program.partial_elems(2, 1025), 2 * 2 * row);
    assert_eq!(
        program.partial_elems(32, 4096),
        program.partial_elems(4096, 4096)
    );
    for n_ctx in [1 << 24, 1 << 32, usize::MAX] {
        assert_eq!(
            program.partial_elems(512, n_ctx) * size_of::<f32>(),
            32 << 20
        );
    }
}
