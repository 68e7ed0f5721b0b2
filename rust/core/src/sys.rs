//! Every raw Linux call of the engine, each behind a safe signature or a stated contract.
//!
//! Holds no policy: which CPU, how much memory and what to do about a refusal is decided by
//! `topology`, `memory` and `exec`, the only callers.
#![expect(unsafe_code, reason = "system calls are foreign functions")]

mod memory;

use std::io;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::error::{Error, Result};

pub use memory::{
    address_space_limit_bytes, advise_huge, advise_no_fork, bind, bind_thread, can_populate,
    commit, data_limit_bytes, interleave, map_file, map_huge, nodes_of_pages, populate, reserve,
    reserve_at, reserve_over, unmap,
};

/// Largest CPU number looked for, well above the kernel's `NR_CPUS` (8192 at most).
pub const MAX_CPUS: usize = 1 << 16;

/// Bits of one word of an affinity mask.
const WORD_BITS: usize = u64::BITS as usize;

/// Size in bytes of the smallest page.
#[must_use]
pub fn page_bytes() -> usize {
    // SAFETY: sysconf only reads a constant of the system.
    let answer = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(answer).unwrap_or(4096)
}

/// Process id of the caller, looked up anew each time, so that it differs in a forked child.
#[must_use]
pub fn process_id() -> u32 {
    std::process::id()
}

/// Numbers of the CPUs that the calling thread may run on, ascending.
pub fn affinity() -> Result<Vec<u32>> {
    // The kernel refuses a mask shorter than its own: start at 1024 CPUs and double.
    let mut words = vec![0_u64; 1024 / WORD_BITS];
    loop {
        let n_bytes = words.len() * size_of::<u64>();
        // SAFETY: the kernel writes at most n_bytes into the buffer of that size; 0 is ourselves.
        let answer = unsafe { libc::sched_getaffinity(0, n_bytes, words.as_mut_ptr().cast()) };
        if answer == 0 {
            return Ok(set_bits(&words));
        }
        let source = io::Error::last_os_error();
        if source.raw_os_error() != Some(libc::EINVAL) || words.len() * WORD_BITS >= MAX_CPUS {
            return Err(system("sched_getaffinity", source));
        }
        words = vec![0; words.len() * 2];
    }
}

/// Restricts the calling thread, and no other, to the CPUs given.
pub fn set_affinity(cpus: &[u32]) -> Result<()> {
    if cpus.iter().any(|&cpu| cpu as usize >= MAX_CPUS) {
        let source = io::Error::from_raw_os_error(libc::EINVAL);
        return Err(system(&format!("sched_setaffinity to {cpus:?}"), source));
    }
    let n_words = cpus
        .iter()
        .map(|&cpu| cpu as usize / WORD_BITS + 1)
        .max()
        .unwrap_or(1);
    let mut words = vec![0_u64; n_words];
    for &cpu in cpus {
        words[cpu as usize / WORD_BITS] |= 1 << (cpu as usize % WORD_BITS);
    }
    let n_bytes = words.len() * size_of::<u64>();
    // SAFETY: the kernel reads n_bytes from the buffer of that size; 0 is the calling thread.
    let answer = unsafe { libc::sched_setaffinity(0, n_bytes, words.as_ptr().cast()) };
    if answer == 0 {
        Ok(())
    } else {
        Err(system(
            &format!("sched_setaffinity to {cpus:?}"),
            io::Error::last_os_error(),
        ))
    }
}

fn set_bits(words: &[u64]) -> Vec<u32> {
    (0..words.len() * WORD_BITS)
        .filter(|&bit| words[bit / WORD_BITS] >> (bit % WORD_BITS) & 1 == 1)
        .map(|bit| bit as u32)
        .collect()
}

/// Blocks, in the calling thread, every signal but those that report a fault of the thread itself.
///
/// A fault that is blocked kills the process without its handler, so a crash reporter (Python's
/// `faulthandler`) would be silenced.
pub fn block_signals() -> Result<()> {
    let faults = [
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGILL,
        libc::SIGABRT,
    ];
    // SAFETY: a signal set of zeros is valid storage for sigfillset, which fills it before use.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: set is a live signal set, and the numbers are valid signals.
    let answer = unsafe {
        libc::sigfillset(&raw mut set);
        for signal in faults.into_iter().chain([libc::SIGTRAP, libc::SIGSYS]) {
            libc::sigdelset(&raw mut set, signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut())
    };
    match answer {
        0 => Ok(()),
        code => Err(system(
            "pthread_sigmask",
            io::Error::from_raw_os_error(code),
        )),
    }
}

/// Sleeps while `word` holds `expected`, at most for `timeout`.
///
/// Also returns at once when the word differs, on a signal, and for no reason: look again.
///
/// Returns: false if the time ran out or a signal came.
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> bool {
    let limit = timeout.map(|t| libc::timespec {
        tv_sec: t.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(t.subsec_nanos()),
    });
    let limit_ptr = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: word and limit are live for the call; the kernel only reads them.
    let answer = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, expected, limit_ptr) };
    answer == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN)
}

/// Wakes every thread that sleeps on `word`.
pub fn futex_wake_all(word: &AtomicU32) {
    let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: only the address of the live word is used, as a key.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, i32::MAX) };
}

fn system(call: &str, source: io::Error) -> Error {
    Error::System {
        call: call.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    #[test]
    fn affinity_of_a_thread_is_what_was_set() {
        let before = super::affinity().unwrap();
        let last = *before.last().unwrap();
        std::thread::spawn(move || {
            super::set_affinity(&[last]).unwrap();
            assert_eq!(super::affinity().unwrap(), [last]);
        })
        .join()
        .unwrap();
        assert_eq!(super::affinity().unwrap(), before);
        let refused = super::set_affinity(&[60_000]).unwrap_err();
        assert!(super::set_affinity(&[u32::MAX]).is_err() && super::set_affinity(&[]).is_err());
        assert!(
            refused
                .to_string()
                .starts_with("sched_setaffinity to [60000] failed")
        );
    }

    #[test]
    fn futex_wait_returns_at_once_when_the_word_differs() {
        assert!(super::futex_wait(&AtomicU32::new(1), 2, None));
    }
}
