//! One word that a thread waits at and another moves on: spin, then yield, then sleep.
//!
//! Knows nothing of barriers, jobs or who may advance it; `barrier` and `workers` build on it.
//! `README.md` in this folder has the protocol and why no wake-up is lost.

use std::hint;
use std::ops::Deref;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread;
use std::time::Duration;

use crate::sys;

/// A value alone on its pair of cache lines (x86 fetches lines in pairs).
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Padded<T>(pub(super) T);

impl<T> Deref for Padded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// How long a wait keeps the CPU before it sleeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// Looks with a pause instruction (10 to 140 cycles) between them.
    pub(super) spins: u32,
    /// Looks with `sched_yield` (about 0.3 µs when nobody else wants the CPU) between them.
    pub(super) yields: u32,
}

impl Patience {
    /// Inside a run: the others are about to arrive.
    pub(super) const IN_RUN: Self = Self {
        spins: 10_000,
        yields: 100,
    };
    /// Inside a run with two workers on one CPU: the other can't arrive while we spin.
    pub(super) const CROWDED: Self = Self {
        spins: 0,
        yields: 100,
    };
    /// Between runs: the caller, who may need this very CPU, decides when there is work.
    pub(super) const BETWEEN_RUNS: Self = Self {
        spins: 500,
        yields: 10,
    };
}

/// Somebody sleeps at the word: whoever changes it must wake.
const SLEEPING: u32 = 1;
/// Set by [`Event::advance`] at will: the run is cancelled.
pub(super) const CANCELLED: u32 = 2;
/// Set once and for all: nothing will come any more.
pub(super) const ABORTED: u32 = 4;
/// The rest of the word counts how often it was moved on; wrapping is harmless, as nobody is ever
/// more than one step behind.
const STEP: u32 = 8;
const EPOCH: u32 = !(STEP - 1);

/// The number of steps an [`Event`] has made when it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Epoch(u32);

impl Epoch {
    /// Where a new [`Event`] stands.
    pub(super) const START: Self = Self(0);
}

/// A word that moves on in steps. One thread at a time advances it; any number wait.
#[derive(Debug, Default)]
pub(super) struct Event(AtomicU32);

impl Event {
    /// Where the word stands; to be asked before doing what lets another thread advance it.
    pub(super) fn epoch(&self) -> Epoch {
        Epoch(self.0.load(Relaxed) & EPOCH)
    }

    /// Moves on by one step with `flags`; what was written before is seen by those who waited.
    pub(super) fn advance(&self, flags: u32) {
        let mut old = self.0.load(Relaxed);
        loop {
            let new = (old & EPOCH).wrapping_add(STEP) | (old & ABORTED) | flags;
            match self.0.compare_exchange_weak(old, new, Release, Relaxed) {
                Ok(_) => break,
                Err(now) => old = now,
            }
        }
        if old & SLEEPING != 0 {
            sys::futex_wake_all(&self.0);
        }
    }

    /// Ends every wait at this word, now and later.
    pub(super) fn abort(&self) {
        if self.0.fetch_or(ABORTED, Release) & SLEEPING != 0 {
            sys::futex_wake_all(&self.0);
        }
    }

    /// Waits until the word has left `seen` (or is aborted).
    ///
    /// Returns: the flags it has now.
    pub(super) fn wait(&self, seen: Epoch, patience: Patience) -> u32 {
        for _ in 0..patience.spins {
            if let Some(flags) = self.passed(seen) {
                return flags;
            }
            hint::spin_loop();
        }
        for _ in 0..patience.yields {
            if let Some(flags) = self.passed(seen) {
                return flags;
            }
            thread::yield_now();
        }
        loop {
            if let Some(flags) = self.passed(seen) {
                return flags;
            }
            self.sleep(seen, None);
        }
    }

    /// Sleeps until the word has left `seen`, a signal arrives or `limit` has passed.
    ///
    /// Returns: whether the word has left `seen`.
    pub(super) fn wait_asleep(&self, seen: Epoch, limit: Duration) -> bool {
        loop {
            if self.passed(seen).is_some() {
                return true;
            }
            if !self.sleep(seen, Some(limit)) {
                return self.passed(seen).is_some();
            }
        }
    }

    /// Whether a thread sleeps, or has said that it is about to.
    #[cfg(test)]
    pub(super) fn has_sleeper(&self) -> bool {
        self.0.load(Relaxed) & SLEEPING != 0
    }

    fn passed(&self, seen: Epoch) -> Option<u32> {
        let now = self.0.load(Acquire);
        (now & EPOCH != seen.0 || now & ABORTED != 0).then_some(now & (CANCELLED | ABORTED))
    }

    /// Announces the sleep in the word itself, then sleeps while it stays as announced.
    fn sleep(&self, seen: Epoch, limit: Option<Duration>) -> bool {
        let now = self.0.load(Relaxed);
        if now & EPOCH != seen.0 || now & ABORTED != 0 {
            return true;
        }
        let announced = now | SLEEPING;
        if self
            .0
            .compare_exchange(now, announced, Relaxed, Relaxed)
            .is_err()
        {
            return true;
        }
        sys::futex_wait(&self.0, announced, limit)
    }
}

#[cfg(test)]
mod tests {
    use super::{ABORTED, CANCELLED, Event, Patience};
    use std::thread;
    use std::time::Duration;

    #[test]
    fn two_threads_hand_the_turn_over_from_every_depth_of_waiting() {
        let asleep = Patience {
            spins: 0,
            yields: 0,
        };
        for patience in [Patience::IN_RUN, Patience::CROWDED, asleep] {
            let (ping, pong) = (Event::default(), Event::default());
            let (ping_seen, pong_seen) = (ping.epoch(), pong.epoch());
            thread::scope(|scope| {
                scope.spawn(|| {
                    let mut seen = ping_seen;
                    for _ in 0..2000 {
                        ping.wait(seen, patience);
                        seen = ping.epoch();
                        pong.advance(CANCELLED);
                    }
                });
                let mut seen = pong_seen;
                for _ in 0..2000 {
                    ping.advance(0);
                    assert_eq!(pong.wait(seen, patience), CANCELLED);
                    seen = pong.epoch();
                }
            });
        }
    }

    #[test]
    fn abort_ends_a_sleep_and_every_later_wait() {
        let event = Event::default();
        let seen = event.epoch();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                event.wait(
                    seen,
                    Patience {
                        spins: 0,
                        yields: 0,
                    },
                )
            });
            while !event.has_sleeper() {
                thread::yield_now();
            }
            event.abort();
            assert_eq!(waiter.join().unwrap(), ABORTED);
        });
        event.advance(0);
        assert_eq!(event.wait(event.epoch(), Patience::IN_RUN), ABORTED);
    }

    #[test]
    fn a_limited_sleep_ends_without_a_step() {
        let event = Event::default();
        assert!(!event.wait_asleep(event.epoch(), Duration::from_millis(1)));
        let seen = event.epoch();
        event.advance(0);
        assert!(event.wait_asleep(seen, Duration::from_mins(1)));
    }
}
