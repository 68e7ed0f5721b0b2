//! [`FileRange`]: part of a file as it lies in the page cache, mapped for reading.
//!
//! Owns the mapping and gives it back on drop. Knows nothing of tensors; made by the loader.
#![expect(
    unsafe_code,
    reason = "memory from mmap is a raw pointer until it is wrapped here"
)]

use std::fs::File;
use std::io;
use std::ptr::NonNull;

use crate::sys;

/// Some bytes of a file, shared with everybody who has the file open.
///
/// That they are there is checked when the range is made. Nothing can keep others from changing
/// the file later: what they write is seen here, and where they shorten it, a read ends the process
/// with SIGBUS. Users of the bytes therefore check what they read, each time.
#[derive(Debug)]
pub struct FileRange {
    /// Start of the mapping, a page boundary.
    mapped: NonNull<u8>,
    mapped_bytes: usize,
    /// Bytes of the mapping before the range.
    skipped_bytes: usize,
}

// SAFETY: a FileRange owns its mapping as a Box<[u8]> does: no thread-local state is attached to
// it, and munmap may be called from any thread.
unsafe impl Send for FileRange {}

// SAFETY: through &FileRange only &[u8] can be had, of memory that nobody here can write.
unsafe impl Sync for FileRange {}

impl FileRange {
    /// Maps `len_bytes` from `offset` on; nothing is read yet.
    ///
    /// # Errors
    /// `UnexpectedEof` when the file ends before; the kernel's refusal.
    pub fn new(file: &File, offset: u64, len_bytes: usize) -> io::Result<Self> {
        let end = offset.checked_add(len_bytes as u64);
        if len_bytes == 0 || end.is_none_or(|end| end > file.metadata().map_or(0, |m| m.len())) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let skipped_bytes = (offset % sys::page_bytes() as u64) as usize;
        let mapped_bytes = len_bytes + skipped_bytes;
        let mapped = sys::map_file(file, offset - skipped_bytes as u64, mapped_bytes)?;
        Ok(Self {
            mapped: NonNull::new(mapped).ok_or(io::ErrorKind::AddrNotAvailable)?,
            mapped_bytes,
            skipped_bytes,
        })
    }

    /// The bytes. They may differ from one call to the next, when others write the file.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped for reading as long as self lives, and inside the file as it was when
        // mapped. Writers from outside are the stated risk of the type.
        let all = unsafe { std::slice::from_raw_parts(self.mapped.as_ptr(), self.mapped_bytes) };
        &all[self.skipped_bytes..]
    }
}

impl Drop for FileRange {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` and unmapped only here; borrows of self have ended. The call
        // can't fail on a whole mapping, and there would be nothing left to do about it.
        let _ = unsafe { sys::unmap(self.mapped.as_ptr(), self.mapped_bytes) };
    }
}
