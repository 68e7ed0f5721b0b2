//! Why the kernel refused addresses or memory, from what it says about the process.
//!
//! Reads files of `/proc` and finds the reason; the wording is `error`'s. Called by `arena` and
//! `commit` after a refusal only.

use std::fs;
use std::io;
use std::ops::Range;

use super::smaps::area_of;
use crate::error::{Error, MemoryLimit};
use crate::sys;

/// The error for addresses that something else has.
pub(super) fn address_taken(what: &str, wanted: Range<usize>) -> Error {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let occupant = occupant(&maps, &wanted).unwrap_or("unknown (gone from /proc/self/maps)");
    Error::AddressTaken {
        what: what.to_owned(),
        start: wanted.start,
        end: wanted.end,
        occupant: occupant.to_owned(),
    }
}

/// The error for memory that was refused with `ENOMEM`: the limit that it would break, if one can
/// be named.
pub(super) fn out_of_memory(what: &str, wanted_bytes: usize, source: io::Error) -> Error {
    let wanted = wanted_bytes as u64;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let mode = fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap_or_default();
    let commit_limit = field_bytes(&meminfo, "CommitLimit").filter(|_| mode.trim() == "2");
    let candidates = [
        (
            MemoryLimit::AddressSpace,
            sys::address_space_limit_bytes(),
            &status,
            "VmSize",
        ),
        (
            MemoryLimit::Data,
            sys::data_limit_bytes(),
            &status,
            "VmData",
        ),
        (MemoryLimit::Commit, commit_limit, &meminfo, "Committed_AS"),
    ];
    for (limit, limit_bytes, text, used) in candidates {
        let (Some(limit_bytes), Some(used_bytes)) = (limit_bytes, field_bytes(text, used)) else {
            continue;
        };
        if used_bytes.saturating_add(wanted) > limit_bytes {
            return Error::MemoryLimit {
                what: what.to_owned(),
                wanted_bytes: wanted,
                limit,
                limit_bytes,
                used_bytes,
            };
        }
    }
    Error::OutOfMemory {
        what: what.to_owned(),
        wanted_bytes,
        source,
    }
}

/// The line of the first area that overlaps `wanted`, its columns one blank apart.
fn occupant<'a>(maps: &'a str, wanted: &Range<usize>) -> Option<&'a str> {
    maps.lines().find(|line| {
        area_of(line).is_some_and(|area| area.start < wanted.end && wanted.start < area.end)
    })
}

/// Value of `VmSize:   1234 kB` in bytes.
pub(super) fn field_bytes(text: &str, field: &str) -> Option<u64> {
    let value = text
        .lines()
        .find_map(|line| line.split_once(':').filter(|(name, _)| *name == field))?
        .1;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::{field_bytes, occupant};

    #[test]
    fn the_occupant_is_the_first_area_that_overlaps() {
        let maps = "1000-3000 r-xp 0 08:01 1 /bin/a\n5000-6000 rw-p 0 0:0 0 [heap]\n";
        let line = |start, end| occupant(maps, &(start..end));
        assert_eq!(
            line(0x2000, 0x9000),
            Some("1000-3000 r-xp 0 08:01 1 /bin/a")
        );
        assert_eq!(line(0x3000, 0x5001), Some("5000-6000 rw-p 0 0:0 0 [heap]"));
        assert_eq!(line(0x3000, 0x5000), None);
    }

    #[test]
    fn fields_are_read_by_their_whole_name() {
        let text = "VmSizeX:\t9 kB\nVmSize:\t  12 kB\nOdd:\tx kB\n";
        assert_eq!(field_bytes(text, "VmSize"), Some(12 * 1024));
        assert_eq!(field_bytes(text, "Odd"), None);
        assert_eq!(field_bytes(text, "Missing"), None);
    }
}
