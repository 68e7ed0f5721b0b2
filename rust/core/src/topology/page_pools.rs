//! What the kernel offers in large pages, and whether it moves pages between nodes by itself.
//!
//! Reads files below a sysfs and a proc root and decides nothing. Called by `numamirror topology`.

use std::path::Path;

use super::read::{numbered, odd, read_text};
use super::{NodeId, Topology};
use crate::error::Result;

/// A pool of huge pages that are set aside (hugetlb).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagePool {
    /// Whose memory the pages are; `None` for a kernel that does not tell nodes apart.
    pub node: Option<NodeId>,
    /// Size of a page.
    pub page_bytes: u64,
    /// Pages of the pool.
    pub n_pages: u64,
    /// Pages that nobody has touched; other processes may have been promised some.
    pub n_free_pages: u64,
}

/// The pools of every node, by node, then by size; without any, those of the whole machine.
///
/// # Errors
/// [`crate::error::Error::System`] or [`crate::error::Error::BadRequest`] naming the file that
/// can't be read or understood.
///
/// Source: Linux `Documentation/admin-guide/mm/hugetlbpage.rst`.
pub fn page_pools(sysfs_root: &Path, topology: &Topology) -> Result<Vec<PagePool>> {
    let mut pools = Vec::new();
    for node in &topology.nodes {
        let dir = format!("devices/system/node/node{}/hugepages", node.id.0);
        pools.extend(pools_in(&sysfs_root.join(dir), Some(node.id))?);
    }
    if pools.is_empty() {
        pools = pools_in(&sysfs_root.join("kernel/mm/hugepages"), None)?;
    }
    Ok(pools)
}

/// When the kernel makes large pages by itself: `always`, `madvise` or `never`.
///
/// # Returns
/// `None` for a kernel built without them.
///
/// # Errors
/// As [`page_pools`].
///
/// Source: Linux `Documentation/admin-guide/mm/transhuge.rst`.
pub fn transparent_page_mode(sysfs_root: &Path) -> Result<Option<String>> {
    let path = sysfs_root.join("kernel/mm/transparent_hugepage/enabled");
    let Some(text) = read_text(&path)? else {
        return Ok(None);
    };
    let chosen = text
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    let chosen = chosen.ok_or_else(|| odd(&path, text.trim(), "one word in brackets"))?;
    Ok(Some(chosen.0.to_owned()))
}

/// Whether the kernel samples accesses and moves pages: 0 not at all, 1 to the node that uses
/// them, 2 between tiers of memory; the sum for both.
///
/// # Returns
/// `None` for a kernel built without it.
///
/// # Errors
/// As [`page_pools`].
///
/// Source: Linux `Documentation/admin-guide/sysctl/kernel.rst`, `numa_balancing`.
pub fn numa_balancing(proc_root: &Path) -> Result<Option<u64>> {
    read_number(&proc_root.join("sys/kernel/numa_balancing"))
}

fn pools_in(dir: &Path, node: Option<NodeId>) -> Result<Vec<PagePool>> {
    let mut pools = Vec::new();
    for kib in numbered(dir, "hugepages-", "kB")? {
        let pool = dir.join(format!("hugepages-{kib}kB"));
        pools.push(PagePool {
            node,
            page_bytes: u64::from(kib) * 1024,
            n_pages: read_number(&pool.join("nr_hugepages"))?.unwrap_or(0),
            n_free_pages: read_number(&pool.join("free_hugepages"))?.unwrap_or(0),
        });
    }
    Ok(pools)
}

fn read_number(path: &Path) -> Result<Option<u64>> {
    let Some(text) = read_text(path)? else {
        return Ok(None);
    };
    let number = text.trim().parse();
    number
        .map(Some)
        .map_err(|_| odd(path, text.trim(), "a number"))
}
