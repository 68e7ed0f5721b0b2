//! The state that a pool's threads and its caller share, and the hand-over of a job.
//!
//! Knows nothing of starting, pinning or joining threads: `workers` does that and is the only
//! caller. The protocol is in `README.md`.
#![expect(
    unsafe_code,
    reason = "a job's borrow is erased while the workers have it"
)]

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::barrier::{Arrivals, Barrier, Place};
use super::event::{Epoch, Event, Padded, Patience};
use super::team::Team;
use crate::error::{Error, Result};
use crate::topology::Pin;

/// Each thread that wakes wakes this many others: 64 threads are awake after three steps.
const FAN_OUT: usize = 4;

/// The job of one run; lives in the caller's frame until all workers have finished.
pub(super) struct Job<'a>(pub(super) &'a (dyn Fn(&Team<'_>) + Sync));

/// One thread's letter box.
#[derive(Debug)]
struct Seat {
    node: usize,
    index_in_node: usize,
    /// An earlier thread is bound to the same CPU.
    shares_cpu: bool,
    dispatch: Padded<Event>,
}

/// The part of a node in a run. Written by the caller between runs only.
#[derive(Debug)]
struct NodeShare {
    first_seat: usize,
    n_seats: usize,
    n_active: AtomicU32,
    first_worker: AtomicUsize,
    finished: Arrivals,
}

/// What the threads of a pool and its caller share.
pub(super) struct Pool {
    seats: Box<[Seat]>,
    nodes: Box<[NodeShare]>,
    barrier: Barrier,
    job: AtomicPtr<Job<'static>>,
    /// Of the present run: workers, nodes that have any, and whether two are on one CPU.
    n_active: AtomicUsize,
    n_active_nodes: AtomicU32,
    crowded: AtomicBool,
    stopping: AtomicBool,
    finished_nodes: Arrivals,
    done: Padded<Event>,
    /// What the first panic said; locked by panicking workers and, outside runs, by the caller.
    panicked: Mutex<Option<String>>,
}

impl Pool {
    /// Lays the seats out by node.
    pub(super) fn new(pins: &[Pin]) -> Result<Self> {
        let (seats, nodes) = lay_out(pins)?;
        Ok(Self {
            barrier: Barrier::new(nodes.len()),
            seats,
            nodes,
            job: AtomicPtr::new(ptr::null_mut()),
            n_active: AtomicUsize::new(0),
            n_active_nodes: AtomicU32::new(0),
            crowded: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            finished_nodes: Arrivals::default(),
            done: Padded::default(),
            panicked: Mutex::new(None),
        })
    }

    pub(super) fn n_threads(&self) -> usize {
        self.seats.len()
    }

    pub(super) fn n_nodes(&self) -> usize {
        self.nodes.len()
    }

    /// What the first worker that panicked said, if one has.
    pub(super) fn panic_message(&self) -> Option<String> {
        self.panicked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Runs `job` on `n_active` workers; asks `wants_cancel` now and then until it says yes.
    ///
    /// Returns when no worker uses `job` any more. One call at a time; `wants_cancel` must not
    /// panic.
    pub(super) fn run(
        &self,
        n_active: usize,
        job: &Job<'_>,
        interval: Duration,
        wants_cancel: &mut dyn FnMut() -> bool,
    ) {
        if self.n_active.load(Relaxed) != n_active {
            self.share_out(n_active);
        }
        self.barrier.prepare();
        self.job
            .store(ptr::from_ref(job).cast_mut().cast(), Relaxed);
        let seen = self.done.epoch();
        self.seats[0].dispatch.advance(0);
        let mut cancelled = false;
        while !self.done.wait_asleep(seen, interval) {
            if !cancelled && wants_cancel() {
                self.barrier.cancel();
                cancelled = true;
            }
        }
    }

    /// Deals `n_active` workers to the nodes, one after the other to whoever has fewest.
    fn share_out(&self, n_active: usize) {
        for node in &self.nodes {
            node.n_active.store(0, Relaxed);
        }
        for _ in 0..n_active {
            let has_room =
                |node: &&NodeShare| (node.n_active.load(Relaxed) as usize) < node.n_seats;
            let fewest = self
                .nodes
                .iter()
                .filter(has_room)
                .min_by_key(|n| n.n_active.load(Relaxed));
            if let Some(node) = fewest {
                node.n_active.fetch_add(1, Relaxed);
            }
        }
        let (mut first_worker, mut n_active_nodes, mut crowded) = (0, 0, false);
        for node in &self.nodes {
            let n_in_node = node.n_active.load(Relaxed) as usize;
            let seats = &self.seats[node.first_seat..node.first_seat + n_in_node];
            crowded |= seats.iter().any(|seat| seat.shares_cpu);
            n_active_nodes += u32::from(n_in_node > 0);
            node.first_worker.store(first_worker, Relaxed);
            first_worker += n_in_node;
        }
        self.n_active.store(n_active, Relaxed);
        self.n_active_nodes.store(n_active_nodes, Relaxed);
        self.crowded.store(crowded, Relaxed);
    }

    /// The life of the thread in `seat`: wait, run, wait, … until the pool stops.
    pub(super) fn serve(&self, seat: usize) {
        let seat = &self.seats[seat];
        let mut seen = Epoch::START;
        loop {
            seat.dispatch.wait(seen, Patience::BETWEEN_RUNS);
            seen = seat.dispatch.epoch();
            if self.stopping.load(Relaxed) {
                return;
            }
            self.wake_next(seat);
            self.run_job(seat);
            self.finish(seat.node);
        }
    }

    /// Tells all threads to end. Only while no run is on.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Relaxed);
        for seat in &self.seats {
            seat.dispatch.advance(0);
        }
    }

    /// Passes the start of a run on, as a tree over the nodes and one inside each node.
    fn wake_next(&self, seat: &Seat) {
        let below = |index: usize| FAN_OUT * index + 1..=FAN_OUT * index + FAN_OUT;
        if seat.index_in_node == 0 {
            let n_nodes = self.n_active_nodes.load(Relaxed) as usize;
            for node in below(seat.node).take_while(|&node| node < n_nodes) {
                self.seats[self.nodes[node].first_seat].dispatch.advance(0);
            }
        }
        let node = &self.nodes[seat.node];
        let n_in_node = node.n_active.load(Relaxed) as usize;
        for index in below(seat.index_in_node).take_while(|&index| index < n_in_node) {
            self.seats[node.first_seat + index].dispatch.advance(0);
        }
    }

    fn run_job(&self, seat: &Seat) {
        let node = &self.nodes[seat.node];
        let crowded = self.crowded.load(Relaxed);
        let team = Team {
            barrier: &self.barrier,
            place: Place {
                node: seat.node,
                n_in_node: node.n_active.load(Relaxed),
                n_nodes: self.n_active_nodes.load(Relaxed),
                patience: if crowded {
                    Patience::CROWDED
                } else {
                    Patience::IN_RUN
                },
            },
            index_in_node: seat.index_in_node,
            first_of_node: node.first_worker.load(Relaxed),
            n_workers: self.n_active.load(Relaxed),
            phase: Cell::new(0),
        };
        // SAFETY: `run` stored a pointer to a live Job before it advanced the dispatch word that
        // led here, and keeps the Job borrowed until `done`, which needs our `finish` first.
        let job = unsafe { &*self.job.load(Relaxed) };
        if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(|| (job.0)(&team))) {
            self.note_panic(&team, payload);
        }
    }

    /// The others may be waiting for this worker, who won't come: lets them go.
    fn note_panic(&self, team: &Team<'_>, payload: Box<dyn Any + Send>) {
        let text = payload.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        let text = text.unwrap_or_else(|| "no message".to_owned());
        // Dropping a stranger's payload could panic again, with nobody left to catch it.
        std::mem::forget(payload);
        let mut panicked = self.panicked.lock().unwrap_or_else(PoisonError::into_inner);
        panicked.get_or_insert_with(|| format!("worker {} panicked: {text}", team.worker().0));
        drop(panicked);
        self.barrier.abort();
    }

    fn finish(&self, node: usize) {
        let n_in_node = self.nodes[node].n_active.load(Relaxed);
        let n_nodes = self.n_active_nodes.load(Relaxed);
        if self.nodes[node].finished.arrive(n_in_node) && self.finished_nodes.arrive(n_nodes) {
            self.done.advance(0);
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("n_threads", &self.n_threads())
            .finish_non_exhaustive()
    }
}

/// Seats by node, and the nodes by order of appearance.
type Layout = (Box<[Seat]>, Box<[NodeShare]>);

fn lay_out(pins: &[Pin]) -> Result<Layout> {
    let bad = |found: String, expected: &str| Error::BadRequest {
        name: "pins".to_owned(),
        found,
        expected: expected.to_owned(),
    };
    let mut seats = Vec::with_capacity(pins.len());
    let mut nodes = Vec::new();
    for run in pins.chunk_by(|a, b| a.node == b.node) {
        let first_seat = seats.len();
        if pins[..first_seat].iter().any(|pin| pin.node == run[0].node) {
            return Err(bad(
                format!("node {} twice", run[0].node.0),
                "contiguous by node",
            ));
        }
        seats.extend(run.iter().enumerate().map(|(index_in_node, pin)| {
            Seat {
                node: nodes.len(),
                index_in_node,
                shares_cpu: pins[..first_seat + index_in_node]
                    .iter()
                    .any(|earlier| earlier.cpu == pin.cpu),
                dispatch: Padded::default(),
            }
        }));
        nodes.push(NodeShare {
            first_seat,
            n_seats: run.len(),
            n_active: AtomicU32::new(0),
            first_worker: AtomicUsize::new(0),
            finished: Arrivals::default(),
        });
    }
    if seats.is_empty() {
        return Err(bad("none".to_owned(), "at least one"));
    }
    Ok((seats.into(), nodes.into()))
}
