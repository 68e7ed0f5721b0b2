//! The state that a pool's threads and its caller share, and the hand-over of a job.
//!
//! Knows nothing of starting, pinning or joining threads: `workers` does that and is the only
//! caller. The protocol is in `README.md`.
#![expect(
    unsafe_code,
    reason = "a job's borrow is erased while the workers have it"
)]

use std::any::Any;
use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicPtr};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::barrier::Barrier;
use super::event::{Epoch, Event, Padded, Patience};
use super::seats::{Seat, Seats};
use super::team::Team;
use crate::error::Result;
use crate::topology::Pin;

/// The job of one run; lives in the caller's frame until all workers have finished.
pub(super) struct Job<'a>(pub(super) &'a (dyn Fn(&Team<'_>) + Sync));

/// What the threads of a pool and its caller share.
pub(super) struct Pool {
    seats: Seats,
    barrier: Barrier,
    job: AtomicPtr<Job<'static>>,
    stopping: AtomicBool,
    done: Padded<Event>,
    /// What the first panic said; locked by panicking workers and, outside runs, by the caller.
    panicked: Mutex<Option<String>>,
}

impl Pool {
    /// A pool without threads yet: one seat a pin.
    pub(super) fn new(pins: &[Pin]) -> Result<Self> {
        let seats = Seats::new(pins)?;
        Ok(Self {
            barrier: Barrier::new(seats.n_nodes()),
            seats,
            job: AtomicPtr::new(ptr::null_mut()),
            stopping: AtomicBool::new(false),
            done: Padded::default(),
            panicked: Mutex::new(None),
        })
    }

    pub(super) fn n_threads(&self) -> usize {
        self.seats.n_seats()
    }

    pub(super) fn n_nodes(&self) -> usize {
        self.seats.n_nodes()
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
        self.seats.share_out(n_active);
        self.barrier.prepare();
        self.job
            .store(ptr::from_ref(job).cast_mut().cast(), Relaxed);
        let seen = self.done.epoch();
        self.seats.wake_first();
        let mut cancelled = false;
        while !self.done.wait_asleep(seen, interval) {
            if !cancelled && wants_cancel() {
                self.barrier.cancel();
                cancelled = true;
            }
        }
    }

    /// The life of the thread in `seat`: wait, run, wait, … until the pool stops.
    pub(super) fn serve(&self, seat: usize) {
        let seat = self.seats.get(seat);
        let mut seen = Epoch::START;
        loop {
            seat.dispatch.wait(seen, Patience::BETWEEN_RUNS);
            seen = seat.dispatch.epoch();
            if self.stopping.load(Relaxed) {
                return;
            }
            self.seats.wake_next(seat);
            self.run_job(seat);
            if self.seats.is_last_to_finish(seat) {
                self.done.advance(0);
            }
        }
    }

    /// Tells all threads to end. Only while no run is on.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Relaxed);
        self.seats.wake_all();
    }

    fn run_job(&self, seat: &Seat) {
        let team = self.seats.team(seat, &self.barrier);
        // SAFETY: `run` stored a pointer to a live Job before it advanced the dispatch word that
        // led here, and keeps the Job borrowed until `done`, which needs this worker counted as finished.
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
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("n_threads", &self.n_threads())
            .finish_non_exhaustive()
    }
}
