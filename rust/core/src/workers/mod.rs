//! [`Workers`]: a pool of pinned threads that run one job at a time, all of them together.
//!
//! Holds the threads and the hand-over of a job; knows nothing of ops, programs or memory. Called
//! by the executor for each forward pass and by the loader. The protocol is in `README.md`.

mod barrier;
mod event;
mod pool;
mod seats;
mod team;

use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use self::pool::{Job, Pool};
use crate::error::{Error, Result};
use crate::sys;
use crate::topology::Pin;

pub use self::team::{Team, WorkerIndex};
pub use crate::topology::NodeIndex;

/// How often the caller of a run looks up from its sleep.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// What the caller of a run wants when it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Carry on.
    Continue,
    /// End the run at its next barrier.
    Cancel,
}

/// A pool of worker threads, one a pin, asleep unless a job runs. Dropping it joins them.
pub struct Workers {
    pool: Arc<Pool>,
    threads: Vec<JoinHandle<()>>,
    owner_pid: u32,
    busy: AtomicBool,
}

impl Workers {
    /// Starts one thread a pin and waits until each is on its CPU.
    ///
    /// The caller's own affinity and signal mask are left alone.
    ///
    /// # Args
    /// `pins`: contiguous by node, as [`crate::topology::ThreadPlan`] has them.
    ///
    /// # Errors
    /// [`Error::BadRequest`] for no pins, or nodes or turns that are not numbered as there;
    /// [`Error::System`] when a thread can't be started or pinned.
    pub fn new(pins: &[Pin]) -> Result<Self> {
        let pool = Arc::new(Pool::new(pins)?);
        let mut workers = Self {
            pool,
            threads: Vec::with_capacity(pins.len()),
            owner_pid: sys::process_id(),
            busy: AtomicBool::new(false),
        };
        let (started, answers) = mpsc::channel();
        for (thread, pin) in pins.iter().enumerate() {
            let (pool, started, cpu) = (Arc::clone(&workers.pool), started.clone(), pin.cpu.0);
            let body = move || {
                let ready = sys::block_signals().and_then(|()| sys::set_affinity(&[cpu]));
                let go_on = ready.is_ok();
                // The other end is gone only if an earlier thread could not be started.
                let heard = started.send(ready).is_ok();
                drop(started);
                if go_on && heard {
                    pool.serve(thread);
                }
            };
            let name = format!("nm-worker-{thread}");
            let handle = thread::Builder::new()
                .name(name)
                .spawn(body)
                .map_err(|source| Error::System {
                    call: format!("starting worker thread {thread}"),
                    source,
                })?;
            workers.threads.push(handle);
        }
        drop(started);
        // An early return drops `workers`, which stops and joins those that did start.
        answers.into_iter().collect::<Result<()>>()?;
        Ok(workers)
    }

    /// Threads of the pool: the largest `n_active` that [`Self::run`] takes.
    #[must_use]
    pub fn n_threads(&self) -> usize {
        self.pool.n_threads()
    }

    /// Nodes of the pool's pins.
    #[must_use]
    pub fn n_nodes(&self) -> usize {
        self.pool.n_nodes()
    }

    /// Runs `job` on `n_active` workers at once and returns when all have finished.
    ///
    /// The caller sleeps meanwhile and calls `poll` about every 50 ms and after a signal. What the
    /// caller wrote before is visible to the job, and what the job wrote to the caller afterwards.
    ///
    /// # Args
    /// `n_active`: 1 to [`Self::n_threads`]: of each node the first ones, as many as
    /// [`crate::topology::active_in_node`] says.
    /// `job`: called once on each worker; may borrow from the caller.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if `poll` asked for it (what the job did is then incomplete);
    /// [`Error::Internal`] if a worker panicked, now or in an earlier run; [`Error::Forked`] in a
    /// child process; [`Error::BadRequest`] for a bad count or while another run is on.
    pub fn run(
        &self,
        n_active: usize,
        job: &(dyn Fn(&Team<'_>) + Sync),
        poll: &mut dyn FnMut() -> Control,
    ) -> Result<()> {
        let user = sys::process_id();
        if user != self.owner_pid {
            return Err(Error::Forked {
                owner: self.owner_pid,
                user,
            });
        }
        if !(1..=self.n_threads()).contains(&n_active) {
            let expected = format!("1 to {}", self.n_threads());
            return Err(bad_request(
                "active threads",
                &n_active.to_string(),
                &expected,
            ));
        }
        if self.busy.swap(true, Acquire) {
            return Err(bad_request(
                "engine",
                "a call inside another",
                "one call at a time",
            ));
        }
        let outcome = self.run_alone(n_active, &Job(job), poll);
        self.busy.store(false, Release);
        outcome.unwrap_or_else(|payload| panic::resume_unwind(payload))
    }

    /// The outer result is `Err` if `poll` panicked; the workers have finished even then.
    fn run_alone(
        &self,
        n_active: usize,
        job: &Job<'_>,
        poll: &mut dyn FnMut() -> Control,
    ) -> thread::Result<Result<()>> {
        if let Some(panic) = self.pool.panic_message() {
            return Ok(Err(Error::Internal(format!(
                "workers stopped earlier: {panic}"
            ))));
        }
        let mut answer = Ok(Control::Continue);
        self.pool.run(n_active, job, POLL_INTERVAL, &mut || {
            // A panic must not leave this frame while workers use the job.
            answer = panic::catch_unwind(AssertUnwindSafe(&mut *poll));
            !matches!(answer, Ok(Control::Continue))
        });
        Ok(match (self.pool.panic_message(), answer?) {
            (Some(panic), _) => Err(Error::Internal(panic)),
            (None, Control::Cancel) => Err(Error::Interrupted),
            (None, Control::Continue) => Ok(()),
        })
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let threads = std::mem::take(&mut self.threads);
        if sys::process_id() != self.owner_pid {
            // Only the thread that called fork exists in a child: there is nobody to join.
            std::mem::forget(threads);
            return;
        }
        self.pool.stop();
        for thread in threads {
            // Panics of jobs are caught inside; there is nothing to hear here.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Workers");
        fields
            .field("n_threads", &self.n_threads())
            .field("n_nodes", &self.n_nodes());
        fields.finish_non_exhaustive()
    }
}

fn bad_request(name: &str, found: &str, expected: &str) -> Error {
    Error::BadRequest {
        name: name.into(),
        found: found.into(),
        expected: expected.into(),
    }
}
