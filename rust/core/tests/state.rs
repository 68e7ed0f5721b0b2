//! The table of sequences and blocks: what is admitted, refused, taken back and freed.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod models;

use std::collections::HashMap;

use models::items;
use numamirror_core::batch::{Batch, BatchItem};
use numamirror_core::error::{Error, Result};
use numamirror_core::state::{CacheSpec, CacheType, Sequences, StateLimits, cache_bytes};
use proptest::prelude::*;

const BLOCK: usize = 64;

fn limits(n_ctx: usize, n_parallel: usize) -> StateLimits {
    StateLimits {
        n_ctx,
        n_parallel,
        k_type: CacheType::F16,
        v_type: CacheType::F32,
    }
}

const SPEC: CacheSpec = CacheSpec {
    n_head_kv: 2,
    k_dim: 8,
    v_dim: 3,
};

fn state(n_ctx: usize, n_parallel: usize) -> Sequences {
    on_nodes(n_ctx, n_parallel, 1)
}

fn on_nodes(n_ctx: usize, n_parallel: usize, n_nodes: usize) -> Sequences {
    Sequences::new(&limits(n_ctx, n_parallel), n_nodes).unwrap()
}

/// The node that a position's block lies on.
fn home(position: usize, n_nodes: usize) -> usize {
    position / 1024 % n_nodes
}

/// Blocks on each node of sequences of these lengths, counted one by one.
fn blocks_by_node(lengths: impl Iterator<Item = usize>, n_nodes: usize) -> Vec<usize> {
    let mut blocks = vec![0; n_nodes];
    for position in lengths.flat_map(|length| (0..length).step_by(BLOCK)) {
        blocks[home(position, n_nodes)] += 1;
    }
    blocks
}

/// Items of one sequence from `first` to `end`.
fn span(sequence: u32, first: usize, end: usize) -> Vec<BatchItem> {
    items(sequence, first, &vec![7; end - first])
}

/// Admits the items into a new batch, whose runs must cover its rows.
fn admit(state: &mut Sequences, items: &[BatchItem]) -> Result<Batch> {
    let mut batch = Batch::default();
    state.admit(items, &mut batch)?;
    check_runs(state, &batch);
    Ok(batch)
}

/// Runs cover all rows in order, each in one block of its sequence, no block twice.
fn check_runs(state: &Sequences, batch: &Batch) {
    let mut next_row = 0;
    for (i, run) in batch.runs().iter().enumerate() {
        assert!(
            batch.runs()[..i]
                .iter()
                .all(|other| other.block != run.block)
        );
        assert_eq!(run.first_row, next_row);
        assert!(run.n_rows > 0 && run.first_slot + run.n_rows <= BLOCK);
        let first = batch.rows()[run.first_row];
        for (step, row) in batch.rows()[next_row..next_row + run.n_rows]
            .iter()
            .enumerate()
        {
            assert_eq!(row.sequence, first.sequence);
            assert_eq!(row.position, first.position + step);
            assert_eq!(row.position % BLOCK, run.first_slot + step);
            assert_eq!(state.blocks(row.sequence)[row.position / BLOCK], run.block);
        }
        next_row += run.n_rows;
    }
    assert_eq!(next_row, batch.rows().len());
}

fn room(error: &Error) -> (usize, usize) {
    match *error {
        Error::ContextFull { wanted, room } => (wanted, room),
        _ => panic!("expected a full context, got {error}"),
    }
}

#[test]
fn bytes_are_those_of_whole_blocks() {
    let block = 2 * (2 * 8 * BLOCK * 2 + 2 * 3 * BLOCK * 4);
    assert_eq!(
        cache_bytes(&[SPEC, SPEC], &limits(65, 3), 1),
        [2 * 3 * block]
    );
    // 17 + 1 blocks a sequence: a chunk on one node, the rest on the other.
    let (one, two) = (3 * 16 * block, 3 * 2 * block);
    let bytes = cache_bytes(&[SPEC, SPEC], &limits(1024 + 65, 3), 3);
    assert_eq!(bytes, [one, two, 0]);
}

#[test]
fn contexts_of_nothing_and_of_too_much_are_refused() {
    for (n_ctx, n_parallel) in [
        (0, 1),
        (1, 0),
        (1 << 33, 1),
        (64, usize::MAX),
        (usize::MAX, 2),
    ] {
        let error = Sequences::new(&limits(n_ctx, n_parallel), 1).unwrap_err();
        assert!(matches!(error, Error::BadRequest { .. }), "{error}");
    }
}

#[test]
fn rows_are_sorted_and_outputs_keep_the_callers_order() {
    let mut state = state(128, 3);
    let mut mixed = Vec::new();
    for position in [2, 0, 1] {
        for sequence in [9, 4] {
            mixed.push(BatchItem {
                sequence,
                position,
                token: sequence * 10 + position,
                wants_logits: position != 1,
            });
        }
    }
    let batch = admit(&mut state, &mixed).unwrap();
    let tokens: Vec<usize> = batch.rows().iter().map(|row| row.token).collect();
    assert_eq!(tokens, [40, 41, 42, 90, 91, 92]);
    let outputs: Vec<usize> = batch.outputs().iter().map(|&row| tokens[row]).collect();
    assert_eq!(outputs, [92, 42, 90, 40]);
    assert_eq!(
        (state.n_past(4), state.n_past(9), state.n_past(5)),
        (3, 3, 0)
    );
}

#[test]
fn positions_are_consecutive_and_start_no_later_than_the_end() {
    let mut state = state(256, 2);
    admit(&mut state, &span(0, 0, 10)).unwrap();
    let twice = [span(0, 10, 12), span(0, 11, 12)].concat();
    let gap = [span(0, 10, 12), span(0, 13, 14)].concat();
    let good_and_bad = [span(1, 0, 70), span(0, 11, 12)].concat();
    let unknown = span(5, 1, 2);
    for items in [twice, gap, good_and_bad, unknown] {
        let error = admit(&mut state, &items).unwrap_err();
        assert!(matches!(&error, Error::BadRequest { name, .. } if name.contains("sequence")));
    }
    assert_eq!(
        (state.n_past(0), state.n_past(1), state.n_past(5)),
        (10, 0, 0)
    );
    admit(&mut state, &span(0, 10, 11)).unwrap();
}

#[test]
fn a_sequence_can_be_written_anew_from_any_earlier_position() {
    let mut state = state(512, 1);
    admit(&mut state, &span(0, 0, 300)).unwrap();
    let batch = admit(&mut state, &span(0, 100, 130)).unwrap();
    assert_eq!(state.n_past(0), 130);
    assert_eq!(state.blocks(batch.rows()[0].sequence).len(), 3);
    // Five blocks are free again, and no more.
    admit(&mut state, &span(1, 0, 320)).unwrap();
    assert_eq!(
        room(&admit(&mut state, &span(2, 0, 1)).unwrap_err()),
        (64, 0)
    );
}

#[test]
fn a_context_ends_where_it_says_although_its_last_block_goes_on() {
    let mut state = state(100, 1);
    admit(&mut state, &span(0, 0, 98)).unwrap();
    assert_eq!(
        room(&admit(&mut state, &span(0, 98, 101)).unwrap_err()),
        (3, 2)
    );
    assert_eq!(state.n_past(0), 98);
    admit(&mut state, &span(0, 98, 100)).unwrap();
    assert_eq!(
        room(&admit(&mut state, &span(0, 100, 101)).unwrap_err()),
        (1, 0)
    );
}

#[test]
fn a_refused_batch_leaves_everything_as_it_was() {
    let mut state = state(128, 2);
    let mut batch = Batch::default();
    state.admit(&span(0, 0, 60), &mut batch).unwrap();
    let before: Vec<_> = state.blocks(0).to_vec();
    // Each alone would fit; three blocks are free and five are asked for.
    let too_much = [span(0, 60, 128), span(1, 0, 128), span(2, 0, 65)].concat();
    let (wanted, room) = room(&state.admit(&too_much, &mut batch).unwrap_err());
    assert_eq!((wanted, room), (5 * BLOCK, 3 * BLOCK));
    assert_eq!(
        (state.n_past(0), state.n_past(1), state.n_past(2)),
        (60, 0, 0)
    );
    assert_eq!(state.blocks(0), before);
    assert_eq!(
        (batch.rows().len(), batch.outputs().len()),
        (60, 60),
        "the last pass's batch"
    );
    admit(&mut state, &[span(0, 60, 64), span(1, 0, 128)].concat()).unwrap();
    admit(&mut state, &span(2, 0, 64)).unwrap();
}

#[test]
fn blocks_given_back_in_a_pass_serve_the_others_of_the_same_pass() {
    let mut state = state(256, 1);
    admit(&mut state, &span(7, 0, 256)).unwrap();
    // 7 comes after 3 in the order of rows, and gives back three blocks.
    admit(&mut state, &[span(3, 0, 192), span(7, 10, 11)].concat()).unwrap();
    assert_eq!((state.n_past(3), state.n_past(7)), (192, 11));
}

#[test]
fn a_pass_taken_back_frees_what_it_took() {
    let mut state = state(256, 1);
    admit(&mut state, &span(0, 0, 10)).unwrap();
    let batch = admit(&mut state, &[span(0, 10, 100), span(1, 0, 100)].concat()).unwrap();
    state.retract(&batch);
    assert_eq!((state.n_past(0), state.n_past(1)), (10, 0));
    admit(&mut state, &span(2, 0, 192)).unwrap();
    assert_eq!(room(&admit(&mut state, &span(3, 0, 1)).unwrap_err()).1, 0);
}

#[test]
fn removed_sequences_free_their_blocks_and_their_place() {
    let mut state = state(128, 1);
    state.remove(12);
    for round in 0..5 {
        let batch = admit(&mut state, &span(round, 0, 128)).unwrap();
        assert_eq!(batch.rows()[0].sequence, 0, "the place is used again");
        state.remove(round);
        assert_eq!(state.n_past(round), 0);
    }
    // A pass of a sequence that is gone when it is taken back.
    let batch = admit(&mut state, &span(0, 0, 100)).unwrap();
    state.remove(0);
    state.retract(&batch);
    admit(&mut state, &span(1, 0, 128)).unwrap();
}

#[test]
fn many_sequences_share_the_pool() {
    let mut state = state(64, 300);
    let batch: Vec<_> = (0..300)
        .rev()
        .flat_map(|sequence| span(sequence * 7, 0, 2))
        .collect();
    admit(&mut state, &batch).unwrap();
    assert_eq!(
        room(&admit(&mut state, &span(1, 0, 1)).unwrap_err()),
        (64, 0)
    );
    state.remove(7 * 150);
    admit(&mut state, &span(1, 0, 64)).unwrap();
}

#[test]
fn as_many_sequences_as_promised_fit_whatever_the_nodes_and_then_nothing() {
    for n_nodes in 1..=5 {
        for n_ctx in [1, 64, 1000, 1024, 1025, 3000, 5 * 1024 + 70] {
            let n_parallel = 3;
            let mut state = on_nodes(n_ctx, n_parallel, n_nodes);
            // They grow in turn, by steps of their own.
            let mut ends = [0; 3];
            while ends.iter().any(|&end| end < n_ctx) {
                for (sequence, end) in ends.iter_mut().enumerate() {
                    let next = (*end + 300 + 250 * sequence).min(n_ctx);
                    if next > *end {
                        admit(&mut state, &span(sequence as u32, *end, next)).unwrap();
                    }
                    *end = next;
                }
            }
            for sequence in 0..n_parallel {
                let blocks = state.blocks(sequence);
                assert_eq!(blocks.len(), n_ctx.div_ceil(BLOCK));
                for (i, block) in blocks.iter().enumerate() {
                    assert_eq!(block.node().0, home(i * BLOCK, n_nodes));
                }
            }
            let error = admit(&mut state, &span(9, 0, 1)).unwrap_err();
            assert_eq!(room(&error), (64, 0), "{n_nodes} nodes, {n_ctx} positions");
        }
    }
}

#[test]
fn a_full_node_is_told_with_its_own_numbers() {
    let mut state = on_nodes(4096, 1, 2);
    admit(&mut state, &span(0, 0, 1024 + 64)).unwrap();
    // Node 0 has 16 blocks left, node 1 has 31.
    let error = admit(&mut state, &[span(1, 0, 1025), span(2, 0, 1)].concat()).unwrap_err();
    assert_eq!(room(&error), (1024 + 64, 1024));
    admit(&mut state, &span(1, 0, 2048)).unwrap();
    let error = admit(&mut state, &span(0, 1024 + 64, 2049)).unwrap_err();
    assert_eq!(room(&error), (64, 0));
    admit(&mut state, &span(0, 1024 + 64, 2048)).unwrap();
}

#[derive(Debug, Clone)]
enum Action {
    /// (sequence, positions before the end at which to start, tokens).
    Admit(Vec<(u32, usize, usize)>),
    Retract,
    Remove(u32),
}

fn action() -> impl Strategy<Value = Action> {
    let group = (
        0..6_u32,
        prop_oneof![6 => Just(0), 2 => 0..150_usize, 1 => 0..2000_usize],
        prop_oneof![3 => 1..150_usize, 1 => 900..1200_usize],
    );
    prop_oneof![
        6 => prop::collection::vec(group, 1..4).prop_map(Action::Admit),
        1 => Just(Action::Retract),
        2 => (0..6_u32).prop_map(Action::Remove),
    ]
}

const N_CTX: usize = 2200;

proptest! {
    /// A map of lengths predicts every answer.
    #[test]
    fn states_are_as_simple_as_a_map_of_lengths(
        actions in prop::collection::vec(action(), 1..40),
        n_nodes in 1..5_usize,
    ) {
        let mut state = on_nodes(N_CTX, 3, n_nodes);
        let pools = blocks_by_node([N_CTX; 3].into_iter(), n_nodes);
        let mut lengths: HashMap<u32, usize> = HashMap::new();
        let mut last: Option<(Batch, Vec<(u32, usize)>)> = None;
        for action in actions {
            match action {
                Action::Admit(mut groups) => {
                    groups.sort_unstable();
                    groups.dedup_by_key(|group| group.0);
                    let mut after = lengths.clone();
                    let (mut batch, mut starts) = (Vec::new(), Vec::new());
                    for (sequence, back, n_tokens) in groups {
                        let held = lengths.get(&sequence).copied().unwrap_or(0);
                        let first = held.saturating_sub(back);
                        batch.extend(span(sequence, first, first + n_tokens).into_iter().rev());
                        after.insert(sequence, first + n_tokens);
                        starts.push((sequence, first));
                    }
                    let blocks = blocks_by_node(after.values().copied(), n_nodes);
                    let fits = after.values().all(|&n| n <= N_CTX)
                        && blocks.iter().zip(&pools).all(|(blocks, pool)| blocks <= pool);
                    let answer = admit(&mut state, &batch);
                    prop_assert_eq!(answer.is_ok(), fits, "{:?}", answer);
                    if let Ok(batch) = answer {
                        lengths = after;
                        last = Some((batch, starts));
                    }
                }
                Action::Retract => if let Some((batch, starts)) = last.take() {
                    state.retract(&batch);
                    lengths.extend(starts);
                },
                Action::Remove(sequence) => {
                    state.remove(sequence);
                    lengths.remove(&sequence);
                    last = None;
                }
            }
            for sequence in 0..6 {
                let expected = lengths.get(&sequence).copied().unwrap_or(0);
                prop_assert_eq!(state.n_past(sequence), expected);
            }
        }
    }
}
