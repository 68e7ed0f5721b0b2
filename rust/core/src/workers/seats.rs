//! Who sits where: the threads of a pool by node, which of them a run needs, and how they are woken.
//!
//! Knows nothing of jobs or of what a thread does once awake; `pool` is the only caller. The
//! protocol is in `README.md`.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};

use super::barrier::{Arrivals, Barrier, Place};
use super::event::{Event, Padded, Patience};
use super::team::Team;
use crate::error::{Error, Result};
use crate::topology::{Pin, active_in_node};

/// Each thread that wakes wakes this many others: 64 threads are awake after three steps.
const FAN_OUT: usize = 4;

/// One thread's letter box.
#[derive(Debug)]
pub(super) struct Seat {
    node: usize,
    index_in_node: usize,
    /// A thread of an earlier turn is bound to the same CPU.
    shares_cpu: bool,
    /// Waited at between runs.
    pub(super) dispatch: Padded<Event>,
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

/// All seats, contiguous by node, and the numbers of the present run.
///
/// The numbers are written by the caller between runs; the dispatch events order them.
#[derive(Debug)]
pub(super) struct Seats {
    /// One a seat.
    pins: Box<[Pin]>,
    all: Box<[Seat]>,
    nodes: Box<[NodeShare]>,
    n_active: AtomicUsize,
    /// Nodes that have active workers: always the first ones.
    n_active_nodes: AtomicU32,
    /// Two active workers are on one CPU.
    crowded: AtomicBool,
    finished_nodes: Arrivals,
}

impl Seats {
    /// Lays the seats out by node; the pins have to be contiguous by node.
    pub(super) fn new(pins: &[Pin]) -> Result<Self> {
        check_order(pins)?;
        let (all, nodes) = lay_out(pins);
        Ok(Self {
            pins: pins.into(),
            all,
            nodes,
            n_active: AtomicUsize::new(0),
            n_active_nodes: AtomicU32::new(0),
            crowded: AtomicBool::new(false),
            finished_nodes: Arrivals::default(),
        })
    }

    pub(super) fn n_seats(&self) -> usize {
        self.all.len()
    }

    pub(super) fn n_nodes(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn get(&self, seat: usize) -> &Seat {
        &self.all[seat]
    }

    /// Gives each node its part of `n_active` workers.
    ///
    /// Only while no run is on.
    pub(super) fn share_out(&self, n_active: usize) {
        if self.n_active.load(Relaxed) == n_active {
            return;
        }
        for node in &self.nodes {
            let of_node = &self.pins[node.first_seat..node.first_seat + node.n_seats];
            let n_in_node = active_in_node(of_node, n_active);
            node.n_active.store(n_in_node as u32, Relaxed);
        }
        let (mut first_worker, mut n_active_nodes, mut crowded) = (0, 0, false);
        for node in &self.nodes {
            let n_in_node = node.n_active.load(Relaxed) as usize;
            let seats = &self.all[node.first_seat..node.first_seat + n_in_node];
            crowded |= seats.iter().any(|seat| seat.shares_cpu);
            n_active_nodes += u32::from(n_in_node > 0);
            node.first_worker.store(first_worker, Relaxed);
            first_worker += n_in_node;
        }
        self.n_active.store(n_active, Relaxed);
        self.n_active_nodes.store(n_active_nodes, Relaxed);
        self.crowded.store(crowded, Relaxed);
    }

    /// Starts a run: every node's first worker, and all others, are woken from here on.
    pub(super) fn wake_first(&self) {
        self.all[0].dispatch.advance(0);
    }

    /// Wakes every thread directly.
    pub(super) fn wake_all(&self) {
        for seat in &self.all {
            seat.dispatch.advance(0);
        }
    }

    /// Passes the start of a run on, as a tree over the nodes and one inside each node.
    pub(super) fn wake_next(&self, seat: &Seat) {
        let below = |index: usize| FAN_OUT * index + 1..=FAN_OUT * index + FAN_OUT;
        if seat.index_in_node == 0 {
            let n_nodes = self.n_active_nodes.load(Relaxed) as usize;
            for node in below(seat.node).take_while(|&node| node < n_nodes) {
                self.all[self.nodes[node].first_seat].dispatch.advance(0);
            }
        }
        let node = &self.nodes[seat.node];
        let n_in_node = node.n_active.load(Relaxed) as usize;
        for index in below(seat.index_in_node).take_while(|&index| index < n_in_node) {
            self.all[node.first_seat + index].dispatch.advance(0);
        }
    }

    /// Counts a worker of the run as finished.
    pub(super) fn is_last_to_finish(&self, seat: &Seat) -> bool {
        let node = &self.nodes[seat.node];
        node.finished.arrive(node.n_active.load(Relaxed))
            && self
                .finished_nodes
                .arrive(self.n_active_nodes.load(Relaxed))
    }

    /// What the job of the present run gets to see on this seat.
    pub(super) fn team<'a>(&self, seat: &Seat, barrier: &'a Barrier) -> Team<'a> {
        let node = &self.nodes[seat.node];
        let crowded = self.crowded.load(Relaxed);
        Team {
            barrier,
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
        }
    }
}

/// Refuses pins that are not contiguous by node, by turn within it, first turns in node order.
fn check_order(pins: &[Pin]) -> Result<()> {
    let bad = |found: String, expected: &str| {
        Err(Error::BadRequest {
            name: "pins".to_owned(),
            found,
            expected: expected.to_owned(),
        })
    };
    if pins.is_empty() {
        return bad("none".to_owned(), "at least one");
    }
    for (node, run) in pins.chunk_by(|a, b| a.node == b.node).enumerate() {
        let first = run[0];
        if first.node.0 != node {
            let found = format!("node {} in place {node}", first.node.0);
            return bad(found, "nodes numbered in order, each in one place");
        }
        if first.turn != node || !run.is_sorted_by(|a, b| a.turn < b.turn) {
            let found = format!("turns of node {node} out of order");
            return bad(
                found,
                "each node's first turn before any second, then ascending",
            );
        }
    }
    let mut turns: Vec<usize> = pins.iter().map(|pin| pin.turn).collect();
    turns.sort_unstable();
    if turns.iter().enumerate().any(|(turn, &found)| found != turn) {
        return bad("turns with gaps".to_owned(), "each turn once");
    }
    Ok(())
}

/// Seats by node, and the nodes in order.
type Layout = (Box<[Seat]>, Box<[NodeShare]>);

fn lay_out(pins: &[Pin]) -> Layout {
    let mut seats = Vec::with_capacity(pins.len());
    let mut nodes = Vec::new();
    for run in pins.chunk_by(|a, b| a.node == b.node) {
        let first_seat = seats.len();
        seats.extend(run.iter().enumerate().map(|(index_in_node, pin)| {
            Seat {
                node: nodes.len(),
                index_in_node,
                shares_cpu: pins
                    .iter()
                    .any(|other| other.cpu == pin.cpu && other.turn < pin.turn),
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
    (seats.into(), nodes.into())
}
