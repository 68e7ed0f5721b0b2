//! Kinds of pages, and whether the kernel has enough of them, from the files below a sysfs root.
//!
//! Reads and counts; takes nothing. A look beforehand can be overtaken by other processes, so
//! `commit` and `touch` handle the refusal that may come in spite of it.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use super::HUGE_PAGE_BYTES;
use crate::topology::NodeId;

/// Folder of a pool of 2 MiB pages, below a node's or the system's folder.
const POOL: &str = "hugepages/hugepages-2048kB";

/// What pages an arena is made of, by rising preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PageKind {
    /// Pages of the smallest size.
    Small,
    /// Small pages that the kernel is asked to make 2 MiB ones where it can.
    Transparent,
    /// 2 MiB pages of the hugetlb pool.
    Huge2M,
}

impl fmt::Display for PageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Small => "small pages",
            Self::Transparent => "transparent huge pages",
            Self::Huge2M => "2 MiB pages of the pool",
        })
    }
}

/// Why the pools can't hold all arenas whole; `None` when they can.
///
/// Bound arenas need their node's pool, and all together what is not promised to other processes.
///
/// # Args
/// `arenas`: node (`None`: any) and size of each.
pub(super) fn pool_lack(
    arenas: impl Iterator<Item = (Option<NodeId>, usize)>,
    sysfs_root: &Path,
) -> Option<String> {
    let mut needed: BTreeMap<Option<NodeId>, u64> = BTreeMap::new();
    let mut total = 0;
    for (node, size_bytes) in arenas {
        let n_pages = size_bytes.div_ceil(HUGE_PAGE_BYTES) as u64;
        total += n_pages;
        *needed.entry(node).or_default() += n_pages;
    }
    let mut pools = Vec::new();
    let some_unbound = needed.contains_key(&None);
    for (node, n_pages) in needed {
        let Some(NodeId(id)) = node else { continue };
        let folder = sysfs_root.join(format!("devices/system/node/node{id}"));
        let free = pages_in(&folder, "free_hugepages").unwrap_or(0);
        pools.push((format!("node {id}"), n_pages, free));
    }
    let system = sysfs_root.join("kernel/mm");
    let promised = pages_in(&system, "resv_hugepages").unwrap_or(0);
    match pages_in(&system, "free_hugepages") {
        Some(free) => pools.push(("all nodes".into(), total, free.saturating_sub(promised))),
        None if some_unbound => pools.push(("all nodes".into(), total, 0)),
        None => {}
    }
    if pools.iter().all(|(_, needed, free)| needed <= free) {
        return None;
    }
    let words = pools
        .iter()
        .map(|(pool, needed, free)| format!("{pool}: {needed} needed, {free} free"));
    Some(format!(
        "too few 2 MiB pages ({})",
        words.collect::<Vec<_>>().join("; ")
    ))
}

/// Why there will be no transparent huge pages; `None` when nothing speaks against them.
///
/// Source: Linux `Documentation/admin-guide/mm/transhuge.rst`.
pub(super) fn transparent_lack(sysfs_root: &Path) -> Option<String> {
    let path = sysfs_root.join("kernel/mm/transparent_hugepage/enabled");
    let switch = fs::read_to_string(&path).ok()?;
    switch.contains("[never]").then(|| {
        format!(
            "transparent huge pages are switched off ({} is never)",
            path.display()
        )
    })
}

fn pages_in(folder: &Path, file: &str) -> Option<u64> {
    let text = fs::read_to_string(folder.join(POOL).join(file)).ok()?;
    text.trim().parse().ok()
}
