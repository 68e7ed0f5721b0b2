//! Which pages a range of memory has, from the text of `/proc/self/smaps`.
//!
//! Pure text. Knows nothing of mappings; `Mapping::page_report` is the only caller.

use std::io::{self, BufRead};
use std::ops::Range;

/// What the pages of a mapping are at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageReport {
    /// Bytes mapped, whole pages.
    pub mapped_bytes: u64,
    /// Bytes in memory (touched and not swapped out).
    pub resident_bytes: u64,
    /// Of these, bytes in transparent huge pages.
    pub huge_bytes: u64,
}

/// Sums the areas that lie inside `range`.
///
/// Source: Linux `Documentation/filesystems/proc.rst`, "smaps".
pub(super) fn report_from_smaps(
    smaps: impl BufRead,
    range: Range<usize>,
) -> io::Result<PageReport> {
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
        let total = match field {
            "Size" => &mut report.mapped_bytes,
            "Rss" => &mut report.resident_bytes,
            "AnonHugePages" => &mut report.huge_bytes,
            _ => continue,
        };
        let kib = value
            .trim()
            .strip_suffix("kB")
            .and_then(|kib| kib.trim().parse::<u64>().ok());
        *total += kib.unwrap_or(0) * 1024;
    }
    Ok(report)
}

/// The addresses of a line that opens an area: `7f00-7f10 rw-p …`.
fn area_of(line: &str) -> Option<Range<usize>> {
    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
    Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
}

#[cfg(test)]
mod tests {
    use super::{PageReport, report_from_smaps};

    #[test]
    fn report_sums_the_areas_inside_and_skips_the_others() {
        let smaps = "1000-3000 rw-p 0 0:0 0 [heap]\nSize: 8 kB\nRss: 4 kB\n\
            3000-5000 rw-p 0 0:0 0\nSize: 8 kB\nRss: 8 kB\nAnonHugePages: 4 kB\nVmFlags: rd wr hg\n\
            5000-6000 rw-p 0 0:0 0\nSize: 4 kB\nRss: 0 kB\nAnonHugePages: x kB\n";
        let report = report_from_smaps(smaps.as_bytes(), 0x3000..0x6000).unwrap();
        let expected = PageReport {
            mapped_bytes: 12288,
            resident_bytes: 8192,
            huge_bytes: 4096,
        };
        assert_eq!(report, expected);
    }
}
