//! Lists of CPU numbers as the kernel and the `--cpu-range` flag write them: `0-3,8,10-11`.
//!
//! Pure text. Knows neither which CPUs exist nor which are allowed; called by `topology::read` for
//! files and by the engine for the flag.

use super::CpuId;
use crate::sys::MAX_CPUS;

/// Parses `LO-HI[,...]`; blank text is the empty list.
///
/// Returns: the CPUs, ascending, each once; `None` when the text is anything else, a range runs
/// backwards, or a number is beyond what Linux can have.
///
/// Source: Linux `Documentation/admin-guide/kernel-parameters.rst`, "cpu lists".
#[must_use]
pub fn parse_cpu_list(text: &str) -> Option<Vec<CpuId>> {
    let mut cpus = Vec::new();
    let text = text.trim();
    if text.is_empty() {
        return Some(cpus);
    }
    for piece in text.split(',') {
        let (low, high) = piece.split_once('-').unwrap_or((piece, piece));
        let (low, high) = (parse_number(low)?, parse_number(high)?);
        if low > high || high as usize >= MAX_CPUS || cpus.len() > MAX_CPUS {
            return None;
        }
        cpus.extend((low..=high).map(CpuId));
    }
    cpus.sort_unstable();
    cpus.dedup();
    Some(cpus)
}

/// Writes a list the way the kernel does, for messages.
#[must_use]
pub fn format_cpu_list(cpus: &[CpuId]) -> String {
    let mut pieces: Vec<(u32, u32)> = Vec::new();
    for &CpuId(cpu) in cpus {
        match pieces.last_mut() {
            Some((_, high)) if high.checked_add(1) == Some(cpu) => *high = cpu,
            _ => pieces.push((cpu, cpu)),
        }
    }
    let written = pieces.iter().map(|&(low, high)| {
        if low == high {
            low.to_string()
        } else {
            format!("{low}-{high}")
        }
    });
    written.collect::<Vec<_>>().join(",")
}

/// Digits only: `u32::from_str` would also take a plus sign.
fn parse_number(text: &str) -> Option<u32> {
    let text = text.trim();
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::{CpuId, format_cpu_list, parse_cpu_list};
    use proptest::prelude::*;

    fn numbers(text: &str) -> Option<Vec<u32>> {
        parse_cpu_list(text).map(|cpus| cpus.into_iter().map(|cpu| cpu.0).collect())
    }

    #[test]
    fn reads_what_the_kernel_writes() {
        assert_eq!(numbers("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(numbers("5,1-2,2"), Some(vec![1, 2, 5]));
        assert_eq!(numbers(" \n"), Some(vec![]));
    }

    #[test]
    fn refuses_everything_else() {
        for text in [
            "a",
            "1-",
            "-1",
            "3-1",
            "1,,2",
            "1-2-3",
            "+1",
            "0-4000000000",
            "0x1",
            "1 2",
        ] {
            assert_eq!(numbers(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn writing_and_reading_gives_the_same(set in prop::collection::btree_set(0_u32..600, 0..60)) {
            let cpus: Vec<CpuId> = set.into_iter().map(CpuId).collect();
            prop_assert_eq!(parse_cpu_list(&format_cpu_list(&cpus)), Some(cpus));
        }

        #[test]
        fn odd_text_never_panics(text in "[0-9,\\- a+]{0,24}|.{0,24}") {
            let _ = parse_cpu_list(&text);
        }
    }
}
