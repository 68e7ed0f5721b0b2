//! The pool of workers: barriers, dynamic work, cancelling, panics, many runs.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};
use std::sync::{Mutex, Once};
use std::time::Duration;

use numamirror_core::error::Error;
use numamirror_core::sys;
use numamirror_core::topology::{CpuId, NodeIndex, Pin, spread_pins};
use numamirror_core::workers::{Control, Team, Workers};

/// A protocol that is broken hangs: ends the tests after sixty times what they take.
fn guard_against_hanging() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_secs(90));
            std::process::abort();
        });
    });
}

/// Workers dealt to pretended nodes of the sizes given, round and round the CPUs there are.
fn workers(node_sizes: &[usize]) -> Workers {
    guard_against_hanging();
    let cpus = sys::affinity().unwrap();
    let mut next = cpus.iter().copied().cycle().map(CpuId);
    let of_node = |&size: &usize| next.by_ref().take(size).collect();
    let cpus_of_node: Vec<Vec<CpuId>> = node_sizes.iter().map(of_node).collect();
    Workers::new(&spread_pins(&cpus_of_node)).unwrap()
}

fn keep_on() -> Control {
    Control::Continue
}

fn run(workers: &Workers, n_active: usize, job: impl Fn(&Team<'_>) + Sync) {
    workers.run(n_active, &job, &mut keep_on).unwrap();
}

const SHAPES: [&[usize]; 8] = [
    &[1],
    &[2],
    &[3],
    &[4],
    &[8],
    &[1, 1],
    &[2, 2],
    &[3, 1, 2, 1],
];

#[test]
fn items_of_all_nodes_together_are_handed_out_once() {
    for sizes in SHAPES {
        let workers = workers(sizes);
        for n_items in [0, 1, 2, 7, 64, 1001] {
            let taken: Vec<AtomicUsize> = (0..n_items).map(|_| AtomicUsize::new(0)).collect();
            for n_active in 1..=workers.n_threads() {
                run(&workers, n_active, |team| {
                    while let Some(item) = team.next_item(n_items) {
                        taken[item].fetch_add(1, Relaxed);
                    }
                });
                let expected = |times: &AtomicUsize| times.load(Relaxed) == n_active;
                assert!(taken.iter().all(expected), "{n_items} over {sizes:?}");
            }
        }
        let firsts = Mutex::new(Vec::new());
        run(&workers, workers.n_threads(), |team| {
            let first = team.next_item(usize::MAX).unwrap();
            firsts.lock().unwrap().push(first);
        });
        let mut firsts = firsts.into_inner().unwrap();
        firsts.sort_unstable();
        firsts.dedup();
        assert_eq!(firsts.len(), workers.n_threads(), "no count is too large");
    }
}

#[test]
fn nobody_passes_a_barrier_before_all_have_come() {
    for sizes in SHAPES {
        let workers = workers(sizes);
        let n_workers = workers.n_threads();
        let arrived = AtomicUsize::new(0);
        run(&workers, n_workers, |team| {
            for round in 1..=300 {
                arrived.fetch_add(1, Relaxed);
                assert!(team.barrier());
                assert_eq!(arrived.load(Relaxed), round * n_workers);
                assert!(team.barrier());
            }
        });
        assert_eq!(arrived.into_inner(), 300 * n_workers);
    }
}

#[test]
fn a_barrier_publishes_plain_writes() {
    let workers = workers(&[2, 2]);
    let boxes: Vec<AtomicUsize> = (0..4).map(|_| AtomicUsize::new(0)).collect();
    run(&workers, 4, |team| {
        let me = team.worker().0;
        for round in 1..500 {
            boxes[me].store(round, Relaxed);
            assert!(team.barrier());
            assert!(boxes.iter().all(|value| value.load(Relaxed) == round));
            assert!(team.barrier());
        }
    });
}

#[test]
fn a_team_describes_the_run() {
    let workers = workers(&[3, 1, 2]);
    assert_eq!((workers.n_threads(), workers.n_nodes()), (6, 3));
    // Of each number of active workers: how many each node gets.
    let shares: [&[usize]; 6] = [
        &[1],
        &[1, 1],
        &[1, 1, 1],
        &[2, 1, 1],
        &[2, 1, 2],
        &[3, 1, 2],
    ];
    for n_active in [6, 1, 2, 3, 4, 5, 6, 2] {
        let seen = Mutex::new(Vec::new());
        run(&workers, n_active, |team| {
            assert_eq!(team.n_workers(), n_active);
            assert_eq!(team.n_nodes(), shares[n_active - 1].len());
            assert_eq!(team.n_in_node(), shares[n_active - 1][team.node().0]);
            seen.lock()
                .unwrap()
                .push((team.worker().0, team.node().0, team.index_in_node()));
        });
        let mut seen = seen.into_inner().unwrap();
        seen.sort_unstable();
        let mut expected = Vec::new();
        for (node, &n_in_node) in shares[n_active - 1].iter().enumerate() {
            let first = expected.len();
            expected.extend((0..n_in_node).map(|index| (first + index, node, index)));
        }
        assert_eq!(seen, expected);
    }
}

#[test]
fn every_chunk_is_claimed_once_in_every_phase() {
    for sizes in SHAPES {
        let workers = workers(sizes);
        let claims: Vec<Vec<AtomicU32>> = sizes
            .iter()
            .map(|_| (0..40).map(|_| AtomicU32::new(0)).collect())
            .collect();
        let mut n_runs = 0;
        for n_phases in [1, 2, 3, 50] {
            n_runs += n_phases;
            run(&workers, workers.n_threads(), |team| {
                for phase in 0..n_phases {
                    // Phases without dynamic work lie between those that have some.
                    assert!(phase % 3 != 0 || team.barrier());
                    while let Some(chunk) = team.next_chunk(40) {
                        claims[team.node().0][chunk].fetch_add(1, Relaxed);
                    }
                    assert_eq!(team.next_chunk(40), None);
                    assert!(team.barrier());
                }
            });
            assert!(
                claims
                    .iter()
                    .flatten()
                    .all(|claim| claim.load(Relaxed) == n_runs)
            );
        }
    }
}

#[test]
fn thousands_of_runs_with_changing_counts() {
    let workers = workers(&[2, 1]);
    let sum = AtomicUsize::new(0);
    let mut expected = 0;
    for run_index in 0..3000 {
        let n_active = 1 + run_index % 3;
        let addend = run_index; // borrowed by the job
        run(&workers, n_active, |team| {
            assert!(team.barrier());
            sum.fetch_add(addend, Relaxed);
        });
        expected += n_active * addend;
        assert_eq!(sum.load(Relaxed), expected);
    }
}

#[test]
fn cancelled_by_the_caller_at_one_barrier_for_all() {
    for sizes in SHAPES {
        let workers = workers(sizes);
        let n_workers = workers.n_threads();
        for n_polls_before in [0, 1] {
            let passed: Vec<AtomicUsize> = (0..n_workers).map(|_| AtomicUsize::new(0)).collect();
            let mut n_polls = 0;
            let outcome = workers.run(
                n_workers,
                &|team| {
                    while team.barrier() {
                        passed[team.worker().0].fetch_add(1, Relaxed);
                        std::thread::yield_now();
                    }
                },
                &mut || {
                    n_polls += 1;
                    if n_polls > n_polls_before {
                        Control::Cancel
                    } else {
                        Control::Continue
                    }
                },
            );
            assert!(matches!(outcome, Err(Error::Interrupted)));
            assert_eq!(
                n_polls,
                n_polls_before + 1,
                "not asked again after it said cancel"
            );
            let passed: Vec<_> = passed.into_iter().map(AtomicUsize::into_inner).collect();
            assert!(passed.iter().all(|&count| count == passed[0]), "{passed:?}");
        }
        run(&workers, n_workers, |team| assert!(team.barrier()));
    }
}

#[test]
fn cancelling_also_ends_dynamic_work() {
    let workers = workers(&[2]);
    let outcome = workers.run(
        2,
        &|team| {
            while team.next_chunk(usize::MAX).is_some() {}
            assert!(!team.barrier());
        },
        &mut || Control::Cancel,
    );
    assert!(matches!(outcome, Err(Error::Interrupted)));
}

#[test]
fn a_panic_frees_the_others_and_closes_the_pool() {
    for sizes in SHAPES {
        let workers = workers(sizes);
        let n_workers = workers.n_threads();
        let job = |team: &Team<'_>| {
            for round in 0.. {
                assert!(round != 7 || team.worker().0 != n_workers - 1, "on purpose");
                if !team.barrier() {
                    return;
                }
            }
        };
        for _ in 0..2 {
            let message = workers
                .run(n_workers, &job, &mut keep_on)
                .unwrap_err()
                .to_string();
            let expected = format!("worker {} panicked: on purpose", n_workers - 1);
            assert!(message.ends_with(&expected), "{message}");
        }
    }
}

#[test]
fn all_may_panic_at_once() {
    let workers = workers(&[2, 2]);
    let outcome = workers.run(4, &|_| std::panic::panic_any(5), &mut keep_on);
    assert!(
        outcome
            .unwrap_err()
            .to_string()
            .ends_with("panicked: no message")
    );
}

#[test]
fn a_panic_of_poll_waits_for_the_workers_first() {
    let workers = workers(&[2]);
    let n_running = AtomicUsize::new(0);
    let job = |team: &Team<'_>| {
        n_running.fetch_add(1, Relaxed);
        while team.barrier() {}
        n_running.fetch_sub(1, Relaxed);
    };
    let mut poll = || -> Control { panic!("poll") };
    let caught = catch_unwind(AssertUnwindSafe(|| workers.run(2, &job, &mut poll)));
    assert!(caught.is_err());
    assert_eq!(n_running.load(Relaxed), 0);
    run(&workers, 2, |team| assert!(team.barrier()));
}

#[test]
fn one_run_at_a_time() {
    let workers = workers(&[2]);
    let may_end = AtomicBool::new(false);
    let job = |_: &Team<'_>| {
        while !may_end.load(Acquire) {
            std::thread::yield_now();
        }
    };
    let mut inner = None;
    let outcome = workers.run(1, &job, &mut || {
        inner = Some(workers.run(1, &|_| (), &mut keep_on));
        may_end.store(true, Relaxed);
        Control::Continue
    });
    outcome.unwrap();
    let refused = inner.unwrap().unwrap_err().to_string();
    assert_eq!(
        refused,
        "engine: a call inside another; expected one call at a time"
    );
}

#[test]
fn bad_requests_are_refused() {
    let workers = workers(&[2]);
    for n_active in [0, 3] {
        let refused = workers
            .run(n_active, &|_| (), &mut keep_on)
            .unwrap_err()
            .to_string();
        assert_eq!(
            refused,
            format!("active threads: {n_active}; expected 1 to 2")
        );
    }
    let pin = |cpu, node, turn| Pin {
        cpu: CpuId(cpu),
        node: NodeIndex(node),
        turn,
    };
    let refused = |pins: &[Pin]| Workers::new(pins).unwrap_err().to_string();
    assert_eq!(refused(&[]), "pins: none; expected at least one");
    let (gap, mixed) = ([pin(0, 1, 0)], [pin(0, 0, 0), pin(0, 1, 1), pin(0, 0, 2)]);
    for (pins, found) in [
        (&gap[..], "node 1 in place 0"),
        (&mixed, "node 0 in place 2"),
    ] {
        assert_eq!(
            refused(pins),
            format!("pins: {found}; expected nodes numbered in order, each in one place")
        );
    }
    for turns in [[1, 2, 0], [0, 1, 2], [0, 0, 1]] {
        let pins = [
            pin(0, 0, turns[0]),
            pin(0, 0, turns[1]),
            pin(0, 1, turns[2]),
        ];
        assert!(
            refused(&pins).starts_with("pins: turns of node"),
            "{turns:?}"
        );
    }
    let repeated = [pin(0, 0, 0), pin(0, 0, 3), pin(0, 1, 1)];
    assert_eq!(
        refused(&repeated),
        "pins: turns with gaps; expected each turn once"
    );
    let cpu = sys::affinity().unwrap()[0];
    let refused = refused(&[pin(cpu, 0, 0), pin(60_000, 0, 1)]);
    assert!(
        refused.starts_with("sched_setaffinity to [60000] failed"),
        "{refused}"
    );
}
