//! What an arena's pages really are: the node of a sample of them, and their size.
//!
//! Asks the kernel, believes nothing that was asked for. Called after loading, for the table that
//! the user sees.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;

use super::HUGE_PAGE_BYTES;
use super::arena::NodeArenas;
use super::smaps::{PageReport, page_report};
use crate::error::Result;
use crate::sys;
use crate::topology::NodeId;
use crate::workers::NodeIndex;

/// Pages looked at in an arena, at least, as far as it has as many.
const MIN_SAMPLES: usize = 64;

/// Where the knowledge about nodes is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// A sample of pages, by `move_pages`.
    MovePages,
    /// All pages, by `/proc/self/numa_maps`.
    NumaMaps,
    /// The kernel does not say.
    Unknown,
}

/// What an arena consists of at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArenaReport {
    /// Pages on each kernel node, of those that `evidence` covers.
    pub pages_by_node: BTreeMap<NodeId, u64>,
    /// Where that is from.
    pub evidence: Evidence,
    /// Sizes in bytes.
    pub sizes: PageReport,
}

impl ArenaReport {
    /// Part of the pages that lies on `node`, 0 to 1; `None` when the kernel does not say.
    #[must_use]
    pub fn share(&self, node: NodeId) -> Option<f64> {
        let total: u64 = self.pages_by_node.values().sum();
        let on_node = self.pages_by_node.get(&node).copied().unwrap_or(0);
        (total > 0).then(|| on_node as f64 / total as f64)
    }
}

impl NodeArenas {
    /// Asks the kernel where the pages of a node's arena are and how large. Not for loops.
    ///
    /// Looks at a page every 2 MiB, at 64 if that is more, at all of a small arena. Sizes are those
    /// of all pages; what is interleaved has nodes of its own ([`Self::interleaved_pages`]).
    ///
    /// # Errors
    /// [`crate::error::Error::System`] when `/proc/self/smaps` can't be read.
    ///
    /// # Panics
    /// If the node is not one of those in use.
    pub fn page_report(&self, node: NodeIndex) -> Result<ArenaReport> {
        let arena = self.arena(node);
        let range = arena.range();
        let mut bound = range.clone();
        let mut len_bytes = arena.len_bytes();
        if node.0 == 0 && !self.interleaved.is_empty() {
            len_bytes = self.interleaved.start;
            bound.end = range.start + len_bytes;
        }
        let samples = samples(range.start, len_bytes);
        let (pages_by_node, evidence) = nodes_of(&samples, &bound);
        Ok(ArenaReport {
            pages_by_node,
            evidence,
            sizes: page_report(range)?,
        })
    }

    /// Pages of what is interleaved on each kernel node, and where that is from. On several nodes
    /// they are about equally many. Not for loops.
    ///
    /// Looks at a page in every 2 MiB, at all of a small range.
    #[must_use]
    pub fn interleaved_pages(&self) -> (BTreeMap<NodeId, u64>, Evidence) {
        let start = self.arenas[0].range().start;
        let range = start + self.interleaved.start..start + self.interleaved.end;
        nodes_of(&interleaved_samples(&range), &range)
    }
}

fn nodes_of(samples: &[usize], range: &Range<usize>) -> (BTreeMap<NodeId, u64>, Evidence) {
    if let Ok(nodes) = sys::nodes_of_pages(samples) {
        (count(&nodes), Evidence::MovePages)
    } else if let Ok(text) = fs::read_to_string("/proc/self/numa_maps") {
        (count_numa_maps(&text, range), Evidence::NumaMaps)
    } else {
        (BTreeMap::new(), Evidence::Unknown)
    }
}

/// Addresses of the pages to look at where pages of any size are dealt in turn: a fixed step
/// between them could meet the same node each time.
fn interleaved_samples(range: &Range<usize>) -> Vec<usize> {
    let page = sys::page_bytes();
    if range.len() <= MIN_SAMPLES * HUGE_PAGE_BYTES {
        return range.clone().step_by(page).collect();
    }
    let scattered = |huge: usize| {
        // Source: Knuth, The Art of Computer Programming 3, 6.4: multiplicative hashing.
        let hash = (huge as u32).wrapping_mul(0x9e37_79b1) as usize >> 16;
        range.start + huge * HUGE_PAGE_BYTES + hash % (HUGE_PAGE_BYTES / page) * page
    };
    (0..range.len() / HUGE_PAGE_BYTES).map(scattered).collect()
}

/// Addresses of the pages to look at.
fn samples(start: usize, len_bytes: usize) -> Vec<usize> {
    let page = sys::page_bytes();
    let n_pages = len_bytes.div_ceil(page);
    let step = (n_pages / MIN_SAMPLES).clamp(1, HUGE_PAGE_BYTES / page);
    (0..n_pages)
        .step_by(step)
        .map(|i| start + i * page)
        .collect()
}

fn count(nodes: &[i32]) -> BTreeMap<NodeId, u64> {
    let mut pages_by_node = BTreeMap::new();
    for node in nodes.iter().filter_map(|&node| u32::try_from(node).ok()) {
        *pages_by_node.entry(NodeId(node)).or_default() += 1;
    }
    pages_by_node
}

/// Sums the fields `N<node>=<pages>` of the areas that begin in `range`.
///
/// Source: Linux `Documentation/filesystems/proc.rst`, `numa_maps(5)`.
fn count_numa_maps(text: &str, range: &Range<usize>) -> BTreeMap<NodeId, u64> {
    let mut pages_by_node = BTreeMap::new();
    for line in text.lines() {
        let mut fields = line.split_whitespace();
        let start = fields
            .next()
            .and_then(|hex| usize::from_str_radix(hex, 16).ok());
        if !start.is_some_and(|start| range.contains(&start)) {
            continue;
        }
        for field in fields {
            let numbers = field.strip_prefix('N').and_then(|f| f.split_once('='));
            let Some((node, pages)) = numbers else {
                continue;
            };
            if let (Ok(node), Ok(pages)) = (node.parse(), pages.parse::<u64>()) {
                *pages_by_node.entry(NodeId(node)).or_default() += pages;
            }
        }
    }
    pages_by_node
}

#[cfg(test)]
mod tests {
    use super::{HUGE_PAGE_BYTES, count, count_numa_maps, interleaved_samples, samples};
    use crate::topology::NodeId;

    #[test]
    fn small_arenas_are_looked_at_whole_and_large_ones_every_huge_page() {
        assert_eq!(samples(0x1000, 5000), [0x1000, 0x2000]);
        assert_eq!(samples(0, 0), [0_usize; 0]);
        let middle = samples(0, 3 * HUGE_PAGE_BYTES + 1);
        assert!((64..128).contains(&middle.len()));
        let large = samples(0, 200 * HUGE_PAGE_BYTES);
        assert_eq!(large.len(), 200);
        assert!(large.iter().all(|address| address % HUGE_PAGE_BYTES == 0));
    }

    #[test]
    fn samples_of_dealt_pages_are_fair_to_every_node() {
        let range = 0x1000_0000..0x1000_0000 + 1000 * HUGE_PAGE_BYTES;
        let samples = interleaved_samples(&range);
        for page in [4096, HUGE_PAGE_BYTES] {
            for n_nodes in [2, 3, 4, 8] {
                let mut counts = vec![0_usize; n_nodes];
                for address in &samples {
                    counts[address / page % n_nodes] += 1;
                }
                let fair = 1000 / n_nodes;
                let mut all = counts.iter();
                assert!(
                    all.all(|n| n.abs_diff(fair) <= fair / 4),
                    "{page}: {counts:?}"
                );
            }
        }
        assert_eq!(interleaved_samples(&(0..HUGE_PAGE_BYTES)).len(), 512);
        assert!(interleaved_samples(&(5..5)).is_empty());
    }

    #[test]
    fn pages_are_counted_by_node_and_absent_ones_not_at_all() {
        let found: Vec<_> = count(&[1, 0, -2, 1, -14]).into_iter().collect();
        assert_eq!(found, [(NodeId(0), 1), (NodeId(1), 2)]);
    }

    #[test]
    fn numa_maps_is_summed_over_the_areas_of_the_range() {
        let text = "1000 default N0=9\n2000 bind:1 anon=5 N0=1 N1=4 kernelpagesize_kB=4\n\
            3000 bind:1 N1=2 Nx=1\n4000 default N0=9\n";
        let found: Vec<_> = count_numa_maps(text, &(0x2000..0x4000))
            .into_iter()
            .collect();
        assert_eq!(found, [(NodeId(0), 1), (NodeId(1), 6)]);
    }
}
