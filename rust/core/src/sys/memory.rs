//! The calls about memory: reserving, mapping, binding to nodes, asking where pages lie.
//!
//! Addresses and sizes are the callers' (`memory`); answers are the system's own error codes, for
//! the callers to put into words.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;

/// What memory without access and without a claim on the commit limit is mapped with.
const RESERVED: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// Reserves address space without access, anywhere. `len_bytes` is a multiple of the page size.
pub fn reserve(len_bytes: usize) -> io::Result<*mut u8> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no other.
    let answer = unsafe { libc::mmap(ptr::null_mut(), len_bytes, libc::PROT_NONE, flags, -1, 0) };
    mapped(answer)
}

/// Makes part of a reservation readable and writable; it reads as zeros.
///
/// # Safety
/// `ptr .. ptr + len_bytes` is whole pages inside a live reservation of the caller's.
pub unsafe fn commit(ptr: *mut u8, len_bytes: usize) -> io::Result<()> {
    // SAFETY: the caller vouches for the range.
    check(unsafe { libc::mprotect(ptr.cast(), len_bytes, libc::PROT_READ | libc::PROT_WRITE) })
}

/// Asks for transparent 2 MiB pages. The answer says that the kernel listened, not that it will.
///
/// # Safety
/// `ptr .. ptr + len_bytes` is whole pages inside a live mapping of the caller's.
pub unsafe fn advise_huge(ptr: *mut u8, len_bytes: usize) -> io::Result<()> {
    // SAFETY: the caller vouches for the range; the advice does not change its content.
    check(unsafe { libc::madvise(ptr.cast(), len_bytes, libc::MADV_HUGEPAGE) })
}

/// Gives a range back to the system.
///
/// # Safety
/// `ptr .. ptr + len_bytes` is a live mapping of the caller's to which no reference is left.
pub unsafe fn unmap(ptr: *mut u8, len_bytes: usize) -> io::Result<()> {
    // SAFETY: the caller vouches for the range.
    check(unsafe { libc::munmap(ptr.cast(), len_bytes) })
}

/// Reserves address space without access at `address`, never in place of something else.
///
/// `address` and `len_bytes` are multiples of the page size.
///
/// # Errors
/// `EEXIST` when part of the range is taken, `ENOMEM` when a limit is reached.
pub fn reserve_at(address: usize, len_bytes: usize) -> io::Result<*mut u8> {
    let flags = RESERVED | libc::MAP_FIXED_NOREPLACE;
    let hint = ptr::without_provenance_mut(address);
    // SAFETY: MAP_FIXED_NOREPLACE touches no other mapping.
    let answer = unsafe { libc::mmap(hint, len_bytes, libc::PROT_NONE, flags, -1, 0) };
    let pointer = mapped(answer)?;
    if pointer.addr() == address {
        return Ok(pointer);
    }
    // Kernels before 4.17 take the address for a wish.
    // SAFETY: the mapping just made, of which nobody else knows.
    unsafe { unmap(pointer, len_bytes)? };
    Err(io::Error::from_raw_os_error(libc::EEXIST))
}

/// Turns a range back into a reservation: its content and pages are given up.
///
/// # Safety
/// `pointer .. pointer + len_bytes` is address space of the caller's to which no reference is left.
pub unsafe fn reserve_over(pointer: *mut u8, len_bytes: usize) -> io::Result<()> {
    let flags = RESERVED | libc::MAP_FIXED;
    // SAFETY: the caller vouches for the range that is replaced.
    let answer = unsafe { libc::mmap(pointer.cast(), len_bytes, libc::PROT_NONE, flags, -1, 0) };
    mapped(answer).map(|_| ())
}

/// Maps 2 MiB pages of the hugetlb pool over a reservation; they are claimed, not yet taken.
///
/// A first touch is a SIGBUS when the pool has run out after all: use [`populate`]. After an error
/// the range may be unmapped.
///
/// # Safety
/// `pointer .. pointer + len_bytes`, both multiples of 2 MiB, is a live reservation of the
/// caller's.
pub unsafe fn map_huge(pointer: *mut u8, len_bytes: usize) -> io::Result<()> {
    let flags = libc::MAP_PRIVATE
        | libc::MAP_ANONYMOUS
        | libc::MAP_FIXED
        | libc::MAP_HUGETLB
        | libc::MAP_HUGE_2MB;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the caller vouches for the range that is replaced.
    let answer = unsafe { libc::mmap(pointer.cast(), len_bytes, access, flags, -1, 0) };
    mapped(answer).map(|_| ())
}

/// Maps part of a file for reading, shared with all who have its pages in memory.
///
/// What others write to the file is seen through the mapping; where they cut it off, a read is a
/// SIGBUS. `len_bytes` is not 0, `offset` a multiple of the page size.
pub fn map_file(file: &File, offset: u64, len_bytes: usize) -> io::Result<*mut u8> {
    let past_all = |_| io::Error::from_raw_os_error(libc::EOVERFLOW);
    let offset = libc::off_t::try_from(offset).map_err(past_all)?;
    let (access, flags) = (libc::PROT_READ, libc::MAP_SHARED);
    // SAFETY: a new mapping at an address of the kernel's choice touches no other; the descriptor
    // is open.
    let answer = unsafe {
        libc::mmap(
            ptr::null_mut(),
            len_bytes,
            access,
            flags,
            file.as_raw_fd(),
            offset,
        )
    };
    mapped(answer)
}

/// Whether the kernel has [`populate`] (Linux 5.14).
#[must_use]
pub fn can_populate() -> bool {
    // SAFETY: an empty range; the kernel looks at the advice first and at no memory.
    unsafe { libc::madvise(ptr::null_mut(), 0, libc::MADV_POPULATE_WRITE) == 0 }
}

/// Gives every page of a range memory, as a write to it would, but with an error for a signal.
///
/// # Errors
/// `ENOMEM` or `EFAULT` when there is no memory of that kind, `EINVAL` without [`can_populate`].
///
/// # Safety
/// `pointer .. pointer + len_bytes` is whole pages inside a live, writable mapping of the caller's.
pub unsafe fn populate(pointer: *mut u8, len_bytes: usize) -> io::Result<()> {
    loop {
        // SAFETY: the caller vouches for the range; its content does not change.
        let answer =
            check(unsafe { libc::madvise(pointer.cast(), len_bytes, libc::MADV_POPULATE_WRITE) });
        match answer {
            Err(source) if source.raw_os_error() == Some(libc::EINTR) => {}
            other => return other,
        }
    }
}

/// Keeps a range out of children made by `fork`.
///
/// # Safety
/// `pointer .. pointer + len_bytes` is whole pages inside a live mapping of the caller's; nothing
/// that a child does may rely on it.
pub unsafe fn advise_no_fork(pointer: *mut u8, len_bytes: usize) -> io::Result<()> {
    // SAFETY: the caller vouches for the range.
    check(unsafe { libc::madvise(pointer.cast(), len_bytes, libc::MADV_DONTFORK) })
}

/// Binds the pages that a range will get to one node; pages that it has stay where they are.
///
/// # Errors
/// `EPERM` where a container forbids it, `EINVAL` for a node without memory that is allowed here.
///
/// # Safety
/// `pointer .. pointer + len_bytes` is whole pages inside a live mapping of the caller's.
pub unsafe fn bind(pointer: *mut u8, len_bytes: usize, node: u32) -> io::Result<()> {
    // SAFETY: the caller vouches for the range.
    unsafe { set_policy(pointer, len_bytes, libc::MPOL_BIND, &[node]) }
}

/// Deals the pages that a range will get to several nodes, in turn.
///
/// # Errors
/// As for [`bind`].
///
/// # Safety
/// As for [`bind`].
pub unsafe fn interleave(pointer: *mut u8, len_bytes: usize, nodes: &[u32]) -> io::Result<()> {
    // SAFETY: the caller vouches for the range.
    unsafe { set_policy(pointer, len_bytes, libc::MPOL_INTERLEAVE, nodes) }
}

/// # Safety
/// As for [`bind`].
unsafe fn set_policy(
    pointer: *mut u8,
    len_bytes: usize,
    mode: libc::c_int,
    nodes: &[u32],
) -> io::Result<()> {
    let mask = node_mask(nodes);
    // SAFETY: the caller vouches for the range; the kernel reads the mask's bits, and one less
    // than it is told.
    check_long(unsafe {
        libc::syscall(
            libc::SYS_mbind,
            pointer,
            len_bytes,
            mode,
            mask.as_ptr(),
            mask_bits(&mask) + 1,
            0,
        )
    })
}

/// Sets the memory policy of the calling thread, and no other: one node, or the default.
pub fn bind_thread(node: Option<u32>) -> io::Result<()> {
    let mask = node.map(|node| node_mask(&[node])).unwrap_or_default();
    let (mode, bits) = if mask.is_empty() {
        (libc::MPOL_DEFAULT, 0)
    } else {
        (libc::MPOL_BIND, mask_bits(&mask) + 1)
    };
    // SAFETY: the kernel reads the mask's bits, and one less than it is told.
    check_long(unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, mask.as_ptr(), bits) })
}

/// The node of the page at each address.
///
/// # Returns
/// Node numbers; a negative error code where there is no page.
pub fn nodes_of_pages(addresses: &[usize]) -> io::Result<Vec<i32>> {
    let mut nodes = vec![-libc::ENOENT; addresses.len()];
    let no_nodes: *const libc::c_int = ptr::null();
    // SAFETY: without target nodes nothing moves; one status an address is written, as many as
    // `nodes` has; 0 is ourselves. The addresses are looked up, not followed.
    check_long(unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            addresses.len(),
            addresses.as_ptr(),
            no_nodes,
            nodes.as_mut_ptr(),
            0,
        )
    })?;
    Ok(nodes)
}

/// The process's limit on address space (`ulimit -v`), if it has one.
#[must_use]
pub fn address_space_limit_bytes() -> Option<u64> {
    let mut limit = no_limit();
    // SAFETY: the call fills the record.
    let answer = unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) };
    (answer == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// The process's limit on private writable memory (`ulimit -d`), if it has one.
#[must_use]
pub fn data_limit_bytes() -> Option<u64> {
    let mut limit = no_limit();
    // SAFETY: the call fills the record.
    let answer = unsafe { libc::getrlimit(libc::RLIMIT_DATA, &raw mut limit) };
    (answer == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

fn no_limit() -> libc::rlimit {
    libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    }
}

fn node_mask(nodes: &[u32]) -> Vec<u64> {
    let n_words = nodes.iter().map(|&node| node as usize / 64 + 1).max();
    let mut mask = vec![0_u64; n_words.unwrap_or(0)];
    for &node in nodes {
        mask[node as usize / 64] |= 1 << (node % 64);
    }
    mask
}

fn mask_bits(mask: &[u64]) -> usize {
    mask.len() * u64::BITS as usize
}

fn mapped(answer: *mut libc::c_void) -> io::Result<*mut u8> {
    if answer == libc::MAP_FAILED {
        Err(io::Error::last_os_error())
    } else {
        Ok(answer.cast())
    }
}

fn check_long(answer: libc::c_long) -> io::Result<()> {
    check(if answer < 0 { -1 } else { 0 })
}

fn check(answer: libc::c_int) -> io::Result<()> {
    if answer == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
