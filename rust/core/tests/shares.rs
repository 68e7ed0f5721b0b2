//! Every row has one owner, and in every phase exactly one node whose threads work on it.

use numamirror_core::topology::{MAX_THREADS, NodeIndex, OwnedRange, phase_owners, row_shares};
use proptest::prelude::*;

/// Threads of each node in two phases; some nodes have none.
fn phases() -> impl Strategy<Value = (Vec<usize>, Vec<usize>)> {
    let n_threads = || prop_oneof![Just(0), 1..9_usize, Just(MAX_THREADS)];
    prop::collection::vec((n_threads(), n_threads()), 1..9)
        .prop_map(|nodes| nodes.into_iter().unzip())
}

proptest! {
    #[test]
    fn every_unit_has_one_owner(
        (threads, _) in phases(),
        n_units in any::<usize>(),
        few in 0_usize..40,
    ) {
        for n_units in [n_units, few, usize::MAX] {
            let shares = row_shares(n_units, &threads);
            prop_assert_eq!(shares.len(), threads.len());
            prop_assert_eq!((shares[0].start, shares[shares.len() - 1].end), (0, n_units));
            prop_assert!(shares.windows(2).all(|pair| pair[0].end == pair[1].start));
            let total: usize = threads.iter().sum();
            for (share, &n) in shares.iter().zip(&threads) {
                prop_assert!(share.start <= share.end);
                if total > 0 {
                    prop_assert!(n > 0 || share.is_empty());
                    let exact = n_units as u128 * n as u128 / total as u128;
                    prop_assert!((share.len() as u128).abs_diff(exact) <= 1, "in proportion");
                }
            }
        }
    }

    #[test]
    fn every_phase_works_on_all_rows((threads, phase) in phases(), n_units in 0_usize..300) {
        let shares = row_shares(n_units, &threads);
        let work = phase_owners(&shares, &phase);
        let anyone = phase.iter().any(|&n| n > 0);
        let mut times = vec![0; n_units];
        for (worker, ranges) in work.iter().enumerate() {
            prop_assert!(ranges.is_empty() || phase[worker] > 0 || !anyone);
            prop_assert!(ranges.is_sorted_by_key(|owned| owned.units.start));
            for OwnedRange { owner, units } in ranges {
                prop_assert!(!units.is_empty());
                let owned = &shares[owner.0];
                prop_assert!(owned.start <= units.start && units.end <= owned.end);
                let is_theirs = owner.0 == worker || phase[owner.0] == 0;
                prop_assert!(is_theirs, "rows of another node that works itself");
                units.clone().for_each(|unit| times[unit] += 1);
            }
        }
        prop_assert!(times.iter().all(|&n| n == 1));
    }
}

#[test]
fn shares_follow_the_threads() {
    assert_eq!(row_shares(10, &[1, 1]), [0..5, 5..10]);
    assert_eq!(row_shares(10, &[4, 1]), [0..8, 8..10]);
    assert_eq!(row_shares(3, &[1, 0, 1, 1]), [0..1, 1..1, 1..2, 2..3]);
    assert_eq!(row_shares(3, &[0, 0]), [0..3, 3..3]);
    assert_eq!(row_shares(usize::MAX, &[1, 1])[1].end, usize::MAX);
}

#[test]
fn rows_of_a_node_without_threads_are_dealt_to_the_others() {
    let owned = |owner, units| OwnedRange {
        owner: NodeIndex(owner),
        units,
    };
    let work = phase_owners(&[0..8, 8..16, 16..20], &[1, 0, 3]);
    assert_eq!(work[0], [owned(0, 0..8), owned(1, 8..10)]);
    assert_eq!(work[1], []);
    assert_eq!(work[2], [owned(1, 10..16), owned(2, 16..20)]);
}
