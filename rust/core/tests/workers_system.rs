//! What the pool does to the process: affinity, signal masks, idle CPU time, fork.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(unsafe_code, reason = "asks the system what the pool has done")]

use std::mem::zeroed;
use std::sync::Mutex;
use std::time::Duration;

use numamirror_core::error::Error;
use numamirror_core::sys;
use numamirror_core::topology::{CpuId, spread_pins};
use numamirror_core::workers::{Control, Workers};

fn workers(n_threads: usize) -> (Workers, Vec<u32>) {
    let cpus: Vec<u32> = sys::affinity()
        .unwrap()
        .into_iter()
        .cycle()
        .take(n_threads)
        .collect();
    let pins = spread_pins(&[cpus.iter().copied().map(CpuId).collect()]);
    (Workers::new(&pins).unwrap(), cpus)
}

fn keep_on() -> Control {
    Control::Continue
}

/// Which signals the calling thread blocks.
fn blocked_signals() -> Vec<i32> {
    // SAFETY: a zeroed set is valid storage; with a null new set the call only writes to it.
    let set = unsafe {
        let mut set: libc::sigset_t = zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut set);
        set
    };
    // SAFETY: set was filled above; the numbers are those of the standard signals.
    (1..32)
        .filter(|&signal| unsafe { libc::sigismember(&raw const set, signal) } == 1)
        .collect()
}

/// CPU time that the calling thread has used.
fn thread_cpu_time() -> Duration {
    // SAFETY: the call fills the zeroed record.
    let usage = unsafe {
        let mut usage: libc::rusage = zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage
    };
    let micros = |time: libc::timeval| time.tv_sec * 1_000_000 + time.tv_usec;
    Duration::from_micros((micros(usage.ru_utime) + micros(usage.ru_stime)) as u64)
}

#[test]
fn workers_are_pinned_and_deaf_and_the_caller_is_left_alone() {
    let (affinity_before, mask_before) = (sys::affinity().unwrap(), blocked_signals());
    let (workers, cpus) = workers(3);
    let seen = Mutex::new(vec![(Vec::new(), Vec::new()); 3]);
    let job = |team: &numamirror_core::workers::Team<'_>| {
        let found = (sys::affinity().unwrap(), blocked_signals());
        seen.lock().unwrap()[team.worker().0] = found;
    };
    workers.run(3, &job, &mut keep_on).unwrap();
    for (cpu, (affinity, blocked)) in cpus.into_iter().zip(seen.into_inner().unwrap()) {
        assert_eq!(affinity, [cpu]);
        for signal in [
            libc::SIGINT,
            libc::SIGTERM,
            libc::SIGALRM,
            libc::SIGUSR1,
            libc::SIGCHLD,
        ] {
            assert!(blocked.contains(&signal), "signal {signal}");
        }
        assert!(!blocked.contains(&libc::SIGSEGV), "faults are reported");
    }
    assert_eq!(
        (sys::affinity().unwrap(), blocked_signals()),
        (affinity_before, mask_before)
    );
}

#[test]
fn idle_workers_use_no_cpu() {
    let (workers, _) = workers(2);
    let times = || {
        let times = Mutex::new(vec![Duration::ZERO; 2]);
        let job = |team: &numamirror_core::workers::Team<'_>| {
            times.lock().unwrap()[team.worker().0] = thread_cpu_time();
        };
        workers.run(2, &job, &mut keep_on).unwrap();
        times.into_inner().unwrap()
    };
    let before = times();
    // The one sleep of these tests: idleness has to last. CPU time, not elapsed time, is checked.
    std::thread::sleep(Duration::from_millis(300));
    for (before, after) in before.into_iter().zip(times()) {
        let used = after.checked_sub(before).unwrap();
        assert!(used < Duration::from_millis(20), "{used:?} of 300 ms");
    }
}

#[test]
fn a_forked_child_is_refused_and_can_drop_the_pool() {
    let (workers, _) = workers(2);
    workers.run(2, &|_| (), &mut keep_on).unwrap();
    let mut workers = Some(workers);
    // SAFETY: the child only compares process ids, frees, and leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let outcome = workers
            .as_ref()
            .map(|workers| workers.run(2, &|_| (), &mut keep_on));
        let refused = matches!(outcome, Some(Err(Error::Forked { .. })));
        drop(workers.take());
        // SAFETY: ends the child at once, without the parent's exit handlers.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    let mut status = -1;
    // SAFETY: status is a live integer, child a process of ours.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0));
    workers.unwrap().run(2, &|_| (), &mut keep_on).unwrap();
}

#[test]
fn a_pool_may_be_shared_between_threads() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Workers>();
    is_shared::<numamirror_core::memory::Mapping>();
}

#[test]
fn dropping_joins_the_threads() {
    let named = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
        tasks
            .filter_map(|task| name(task.ok()?).ok())
            .filter(|n| n.trim() == "nm-worker-40")
            .count()
    };
    let (workers, _) = workers(41);
    assert_eq!(named(), 1);
    drop(workers);
    assert_eq!(named(), 0);
}
