//! Which pages a range of memory has, from the text of `/proc/self/smaps`.
//!
//! Knows nothing of mappings, arenas or nodes; both report on their own addresses with it.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::ops::Range;

use crate::error::{Error, Result};

/// What the pages of a range of memory are at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageReport {
    /// Bytes mapped, whole pages.
    pub mapped_bytes: u64,
    /// Bytes in memory (touched and not swapped out).
    pub resident_bytes: u64,
    /// Of these, bytes in huge pages, transparent ones or of the hugetlb pool.
    pub huge_bytes: u64,
    /// Largest page size that the range was mapped with; transparent huge pages don't count.
    pub kernel_page_bytes: u64,
}

/// Reads what `range` consists of just now.
pub(super) fn page_report(range: Range<usize>) -> Result<PageReport> {
    let smaps = File::open("/proc/self/smaps").map(BufReader::new);
    smaps
        .and_then(|smaps| report_from_smaps(smaps, range))
        .map_err(|source| Error::System {
            call: "reading /proc/self/smaps".into(),
            source,
        })
}

/// Sums the areas that lie inside `range`.
///
/// Source: Linux `Documentation/filesystems/proc.rst`, "smaps".
fn report_from_smaps(smaps: impl BufRead, range: Range<usize>) -> io::Result<PageReport> {
    let mut report = PageReport::default();
    let mut inside = false;
    for line in smaps.lines() {
        let line = line?;
        if let Some(area) = area_of(&line) {
            inside = range.start <= area.start && area.end <= range.end;
            continue;
        }
        let Some((field, value)) = line.split_once(':').filter(|_| inside) else {
            continue;
        };
        let kib = value
            .trim()
            .strip_suffix("kB")
            .and_then(|kib| kib.trim().parse::<u64>().ok());
        let bytes = kib.unwrap_or(0) * 1024;
        match field {
            "Size" => report.mapped_bytes += bytes,
            "Rss" => report.resident_bytes += bytes,
            "AnonHugePages" => report.huge_bytes += bytes,
            // Not part of Rss.
            "Private_Hugetlb" | "Shared_Hugetlb" => {
                report.resident_bytes += bytes;
                report.huge_bytes += bytes;
            }
            "KernelPageSize" => report.kernel_page_bytes = report.kernel_page_bytes.max(bytes),
            _ => {}
        }
    }
    Ok(report)
}

/// The addresses of a line that opens an area: `7f00-7f10 rw-p …`.
pub(super) fn area_of(line: &str) -> Option<Range<usize>> {
    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
    Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
}

#[cfg(test)]
mod tests {
    use super::{PageReport, report_from_smaps};

    #[test]
    fn report_sums_the_areas_inside_and_skips_the_others() {
        let smaps = "1000-3000 rw-p 0 0:0 0 [heap]\nSize: 8 kB\nRss: 4 kB\n\
            3000-5000 rw-p 0 0:0 0\nSize: 8 kB\nKernelPageSize: 4 kB\nRss: 8 kB\nAnonHugePages: 4 kB\n\
            VmFlags: rd wr hg\n\
            5000-6000 rw-p 0 0:0 0\nSize: 4 kB\nRss: 0 kB\nAnonHugePages: x kB\n";
        let report = report_from_smaps(smaps.as_bytes(), 0x3000..0x6000).unwrap();
        let expected = PageReport {
            mapped_bytes: 12288,
            resident_bytes: 8192,
            huge_bytes: 4096,
            kernel_page_bytes: 4096,
        };
        assert_eq!(report, expected);
    }
}
