//! [`Mapping`]: memory at an address of the kernel's choice, on no node in particular.
//!
//! Owns the bytes and gives them back on drop. Knows nothing of tensors or nodes; used by weights,
//! sequence state and the activation arena. A mapping is made in two steps, reserve (no access)
//! then commit, so that other ways to place it need to change only the first.
#![expect(
    unsafe_code,
    reason = "memory from mmap is a raw pointer until it is wrapped here"
)]

use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use crate::error::{Error, Result};
use crate::sys;

use super::HUGE_PAGE_BYTES;
use super::smaps::{PageReport, page_report};

/// Anonymous memory of an exact size, zeroed, page-aligned (2 MiB from 2 MiB on).
///
/// At both ends lies a page without access: a read or write past the end is a fault at its
/// place, and the kernel never joins the mapping with a neighbour, so that its entry in
/// `/proc/self/smaps` is about these bytes and no others.
#[derive(Debug)]
pub struct Mapping {
    /// First byte, inside the reservation.
    base: NonNull<u8>,
    len_bytes: usize,
    /// `len_bytes` in whole pages: what is readable and writable.
    committed_bytes: usize,
    reserved: NonNull<u8>,
    reserved_bytes: usize,
    huge_pages_asked: bool,
}

// SAFETY: a Mapping owns its range as a Box<[u8]> does: no thread-local state is attached to it,
// and munmap may be called from any thread.
unsafe impl Send for Mapping {}

// SAFETY: through &Mapping only &[u8] and a raw pointer can be had. Plain bytes may be read from
// many threads; whoever writes through the pointer takes on the duty stated at `base_ptr`.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len_bytes` zeroed bytes; no page is touched yet.
    ///
    /// # Args
    /// `what`: what the memory is for, in words for an error message.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] when the kernel refuses (its commit limit, `RLIMIT_AS`, nonsense
    /// sizes).
    pub fn new(what: &str, len_bytes: usize) -> Result<Self> {
        Self::try_new(len_bytes).map_err(|source| Error::OutOfMemory {
            what: what.to_owned(),
            wanted_bytes: len_bytes,
            source,
        })
    }

    fn try_new(len_bytes: usize) -> io::Result<Self> {
        let page = sys::page_bytes();
        let align = if len_bytes >= HUGE_PAGE_BYTES {
            HUGE_PAGE_BYTES
        } else {
            page
        };
        let too_large = || io::Error::from_raw_os_error(libc::ENOMEM);
        let committed_bytes = len_bytes
            .max(1)
            .checked_next_multiple_of(page)
            .ok_or_else(too_large)?;
        // The base needs at least a page before it, at most `align`, and a page behind the end.
        let reserved_bytes = committed_bytes
            .checked_add(align + page)
            .ok_or_else(too_large)?;
        let reserved = NonNull::new(sys::reserve(reserved_bytes)?).ok_or_else(too_large)?;
        let offset = (reserved.addr().get() + page).next_multiple_of(align) - reserved.addr().get();
        let mut mapping = Self {
            // SAFETY: page <= offset <= align, so that offset + committed_bytes + page stays within
            // the reservation.
            base: unsafe { reserved.add(offset) },
            len_bytes,
            committed_bytes,
            reserved,
            reserved_bytes,
            huge_pages_asked: false,
        };
        // SAFETY: whole pages inside the reservation just made, by the sizes above.
        unsafe { sys::commit(mapping.base.as_ptr(), committed_bytes)? };
        if len_bytes >= HUGE_PAGE_BYTES {
            // A kernel without transparent huge pages refuses: page_report shows the outcome.
            // SAFETY: the same range.
            let answer = unsafe { sys::advise_huge(mapping.base.as_ptr(), committed_bytes) };
            mapping.huge_pages_asked = answer.is_ok();
        }
        Ok(mapping)
    }

    /// Size as asked for.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Whether the kernel took the request for 2 MiB pages (it may still not have any).
    #[must_use]
    pub fn huge_pages_asked(&self) -> bool {
        self.huge_pages_asked
    }

    /// Address of the first byte, valid for `len_bytes` until the mapping is dropped.
    ///
    /// Whoever writes through it makes sure that no other thread accesses the same bytes, and no
    /// slice from [`Self::as_slice`] covers them, at that time.
    #[must_use]
    pub fn base_ptr(&self) -> NonNull<u8> {
        self.base
    }

    /// All bytes, for reading from any thread.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: base .. base + len_bytes is committed, zeroed by the kernel, and lives as long
        // as self; writers through base_ptr keep off (its contract).
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len_bytes) }
    }

    /// All bytes, for writing.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in as_slice; &mut self makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len_bytes) }
    }

    /// Cuts the mapping into disjoint parts that threads can fill side by side.
    ///
    /// # Args
    /// `ranges`: byte ranges, ascending, not overlapping, within the mapping; gaps are left alone.
    ///
    /// # Errors
    /// [`Error::Internal`] naming the first range that breaks the rule.
    pub fn split_mut(&mut self, ranges: &[Range<usize>]) -> Result<Vec<&mut [u8]>> {
        let len_bytes = self.len_bytes;
        let mut rest = self.as_mut_slice();
        let mut rest_start = 0;
        let mut parts = Vec::with_capacity(ranges.len());
        for range in ranges {
            if range.start < rest_start || range.end < range.start || range.end > len_bytes {
                let place = format!("{range:?}, expected within {rest_start}..{len_bytes}");
                return Err(Error::Internal(format!("split of a mapping at {place}")));
            }
            let (_, tail) = rest.split_at_mut(range.start - rest_start);
            let (part, tail) = tail.split_at_mut(range.len());
            parts.push(part);
            rest = tail;
            rest_start = range.end;
        }
        Ok(parts)
    }

    /// Asks the kernel what the mapping consists of just now. Walks its page tables: not for loops.
    pub fn page_report(&self) -> Result<PageReport> {
        let start = self.base.addr().get();
        page_report(start..start + self.committed_bytes)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: reserved by try_new and unmapped only here; borrows of self have ended. The call
        // can't fail on a whole mapping, and there would be nothing left to do about it.
        let _ = unsafe { sys::unmap(self.reserved.as_ptr(), self.reserved_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::{HUGE_PAGE_BYTES, Mapping, PageReport};
    use std::ops::Range;

    #[test]
    fn is_zeroed_aligned_and_of_the_exact_size() {
        for len_bytes in [0, 1, 4096, 5000, HUGE_PAGE_BYTES, HUGE_PAGE_BYTES + 4097] {
            let mut mapping = Mapping::new("test", len_bytes).unwrap();
            let align = if len_bytes >= HUGE_PAGE_BYTES {
                HUGE_PAGE_BYTES
            } else {
                4096
            };
            assert_eq!(mapping.base_ptr().addr().get() % align, 0);
            assert_eq!(mapping.len_bytes(), len_bytes);
            assert!(mapping.as_slice().iter().all(|&byte| byte == 0));
            mapping.as_mut_slice().fill(7);
            assert_eq!(mapping.as_slice().len(), len_bytes);
        }
    }

    #[test]
    fn parts_are_disjoint_and_filled_side_by_side() {
        let mut mapping = Mapping::new("test", 10_000).unwrap();
        let mut parts = mapping
            .split_mut(&[0..4000, 4000..4000, 5000..10_000])
            .unwrap();
        std::thread::scope(|scope| {
            for (value, part) in (1..).zip(&mut parts) {
                scope.spawn(move || part.fill(value));
            }
        });
        let bytes = mapping.as_slice();
        assert!(bytes[..4000].iter().all(|&b| b == 1) && bytes[5000..].iter().all(|&b| b == 3));
        assert!(bytes[4000..5000].iter().all(|&b| b == 0));
    }

    #[test]
    #[expect(
        clippy::reversed_empty_ranges,
        reason = "such a range has to be refused"
    )]
    fn bad_parts_are_refused() {
        let mut mapping = Mapping::new("test", 100).unwrap();
        let refused: [&[Range<usize>]; 4] = [
            &[0..101, 101..101],
            &[0..50, 49..60],
            &[50..60, 0..9],
            &[0..1, 9..3],
        ];
        for ranges in refused {
            assert!(mapping.split_mut(ranges).is_err(), "{ranges:?}");
        }
    }

    #[test]
    fn too_much_is_an_error_that_names_it() {
        for len_bytes in [usize::MAX, usize::MAX / 2] {
            let refused = Mapping::new("weights", len_bytes).unwrap_err().to_string();
            let opening = format!("not enough memory for weights: {len_bytes} bytes asked for: ");
            assert!(refused.starts_with(&opening), "{refused}");
        }
    }

    #[test]
    fn report_counts_touched_pages_of_this_mapping_only() {
        let mut mapping = Mapping::new("test", 3 * HUGE_PAGE_BYTES).unwrap();
        let mut neighbour = Mapping::new("test", 3 * HUGE_PAGE_BYTES).unwrap();
        neighbour.as_mut_slice().fill(1);
        let mapped_bytes = 3 * HUGE_PAGE_BYTES as u64;
        let untouched = PageReport {
            mapped_bytes,
            kernel_page_bytes: 4096,
            ..PageReport::default()
        };
        assert_eq!(mapping.page_report().unwrap(), untouched);
        mapping.as_mut_slice().fill(1);
        let report = mapping.page_report().unwrap();
        assert_eq!(report.resident_bytes, mapped_bytes);
        assert!(report.huge_bytes <= mapped_bytes);
    }

    #[test]
    fn dropped_memory_is_given_back() {
        let mapping = Mapping::new("test", 64 * HUGE_PAGE_BYTES).unwrap();
        let start = mapping.base_ptr().addr().get();
        let area = format!("{start:x}-{:x} ", start + mapping.len_bytes());
        let maps = || std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(maps().contains(&area));
        drop(mapping);
        assert!(!maps().contains(&area));
    }
}
