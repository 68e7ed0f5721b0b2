//! Reads a [`Topology`] from the files below a sysfs root.
//!
//! A file that is not there has a stated meaning (no such memory, CPU, sibling); a file that is
//! there and makes no sense is an error that names it. Knows nothing of threads or placement.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::{Core, CpuId, Node, NodeId, Topology, parse_cpu_list};
use crate::error::{Error, Result};

impl Topology {
    /// Reads nodes, CPUs, SMT siblings, memory and distances.
    ///
    /// Without a node directory (a kernel built without NUMA) node 0 has all CPUs and the memory
    /// that `proc_root/meminfo` shows.
    ///
    /// # Args
    /// `sysfs_root`: `/sys` or a copy; `proc_root`: `/proc` or a copy.
    ///
    /// # Errors
    /// [`Error::System`] or [`Error::BadRequest`] naming the file that can't be read or understood.
    ///
    /// Source: Linux `Documentation/ABI/stable/sysfs-devices-node`, `…/sysfs-devices-system-cpu`.
    pub fn read(sysfs_root: &Path, proc_root: &Path) -> Result<Self> {
        let cpu_dir = sysfs_root.join("devices/system/cpu");
        let online = read_online(&cpu_dir)?;
        let mut nodes = read_nodes(&sysfs_root.join("devices/system/node"), &online)?;
        if nodes.is_empty() {
            nodes.push(lone_node(proc_root)?);
        }
        adopt_stray_cpus(&mut nodes, &online);
        let cores = read_cores(&cpu_dir, &nodes)?;
        Ok(Self { nodes, cores })
    }
}

/// Memory that can be had without swapping, page cache included (`MemAvailable`).
///
/// # Returns
/// Bytes, or `None` when `proc_root/meminfo` does not say.
#[must_use]
pub fn available_memory_bytes(proc_root: &Path) -> Option<u64> {
    let text = fs::read_to_string(proc_root.join("meminfo")).ok()?;
    field_bytes(&text, "MemAvailable")
}

/// Memory of one node at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeMemory {
    /// All of it.
    pub total_bytes: u64,
    /// What could be had without swapping: free memory and the page cache of files.
    pub reclaimable_bytes: u64,
}

/// Reads what a node has left.
///
/// # Returns
/// `None` when there is no such file below `sysfs_root`.
///
/// # Errors
/// [`Error::System`] or [`Error::BadRequest`] naming the file that can't be read or understood.
pub fn node_memory(sysfs_root: &Path, node: NodeId) -> Result<Option<NodeMemory>> {
    let path = sysfs_root.join(format!("devices/system/node/node{}/meminfo", node.0));
    let Some(text) = read_text(&path)? else {
        return Ok(None);
    };
    let bytes = |field| field_bytes(&text, field);
    let (Some(total_bytes), Some(free_bytes)) = (bytes("MemTotal"), bytes("MemFree")) else {
        return Err(odd(&path, text.trim(), "MemTotal and MemFree in kB"));
    };
    let cache_bytes = ["Active(file)", "Inactive(file)"].map(|field| bytes(field).unwrap_or(0));
    Ok(Some(NodeMemory {
        total_bytes,
        reclaimable_bytes: free_bytes + cache_bytes[0] + cache_bytes[1],
    }))
}

fn read_online(cpu_dir: &Path) -> Result<BTreeSet<CpuId>> {
    let path = cpu_dir.join("online");
    let online: BTreeSet<_> = if let Some(cpus) = read_list(&path)? {
        cpus.into_iter().collect()
    } else {
        let is_on = |cpu: &u32| {
            let switch = fs::read_to_string(cpu_dir.join(format!("cpu{cpu}/online")));
            switch.map_or(true, |text| text.trim() != "0")
        };
        numbered(cpu_dir, "cpu", "")?
            .into_iter()
            .filter(is_on)
            .map(CpuId)
            .collect()
    };
    if online.is_empty() {
        Err(odd(&path, "no cpu", "a list of cpus"))
    } else {
        Ok(online)
    }
}

fn read_nodes(node_dir: &Path, online: &BTreeSet<CpuId>) -> Result<Vec<Node>> {
    let ids = numbered(node_dir, "node", "")?;
    let mut taken = BTreeSet::new();
    let mut nodes = Vec::with_capacity(ids.len());
    for &id in &ids {
        let dir = node_dir.join(format!("node{id}"));
        let mut cpus = read_list(&dir.join("cpulist"))?.unwrap_or_default();
        // A CPU that two nodes claim belongs to the first.
        cpus.retain(|cpu| online.contains(cpu) && taken.insert(*cpu));
        let (total_bytes, free_bytes) = read_memory(&dir.join("meminfo"))?;
        nodes.push(Node {
            id: NodeId(id),
            cpus,
            total_bytes,
            free_bytes,
            distances: read_distances(&dir.join("distance"), &ids)?,
        });
    }
    Ok(nodes)
}

/// The n-th number of the file is the distance to the n-th node there is, gaps skipped.
fn read_distances(path: &Path, ids: &[u32]) -> Result<Vec<(NodeId, u32)>> {
    let Some(text) = read_text(path)? else {
        return Ok(Vec::new());
    };
    let numbers: Option<Vec<u32>> = text.split_whitespace().map(|n| n.parse().ok()).collect();
    match numbers {
        Some(numbers) if numbers.len() == ids.len() => {
            Ok(ids.iter().map(|&id| NodeId(id)).zip(numbers).collect())
        }
        _ => Err(odd(path, text.trim(), &format!("{} numbers", ids.len()))),
    }
}

fn lone_node(proc_root: &Path) -> Result<Node> {
    let (total_bytes, free_bytes) = read_memory(&proc_root.join("meminfo"))?;
    Ok(Node {
        id: NodeId(0),
        cpus: Vec::new(),
        total_bytes,
        free_bytes,
        distances: Vec::new(),
    })
}

/// Total and free bytes; none without the file.
fn read_memory(path: &Path) -> Result<(u64, u64)> {
    let Some(text) = read_text(path)? else {
        return Ok((0, 0));
    };
    let bytes = |field| {
        field_bytes(&text, field).ok_or_else(|| odd(path, text.trim(), &format!("{field} in kB")))
    };
    Ok((bytes("MemTotal")?, bytes("MemFree")?))
}

/// Online CPUs that no node lists go to the first node.
fn adopt_stray_cpus(nodes: &mut [Node], online: &BTreeSet<CpuId>) {
    let listed: BTreeSet<_> = nodes.iter().flat_map(|node| node.cpus.clone()).collect();
    if let Some(first) = nodes.first_mut() {
        first.cpus.extend(online.difference(&listed));
        first.cpus.sort_unstable();
    }
}

fn read_cores(cpu_dir: &Path, nodes: &[Node]) -> Result<Vec<Core>> {
    let mut cores = Vec::new();
    for node in nodes {
        // Siblings never span nodes; a list that says so is cut at the node.
        let mut free: BTreeSet<CpuId> = node.cpus.iter().copied().collect();
        while let Some(cpu) = free.pop_first() {
            let mut cpus = vec![cpu];
            cpus.extend(
                read_siblings(cpu_dir, cpu)?
                    .into_iter()
                    .filter(|s| free.remove(s)),
            );
            cores.push(Core {
                node: node.id,
                cpus,
            });
        }
    }
    Ok(cores)
}

/// `core_cpus_list` is the name since Linux 5.3, `thread_siblings_list` the one before.
fn read_siblings(cpu_dir: &Path, cpu: CpuId) -> Result<Vec<CpuId>> {
    let dir = cpu_dir.join(format!("cpu{}/topology", cpu.0));
    for name in ["core_cpus_list", "thread_siblings_list"] {
        if let Some(cpus) = read_list(&dir.join(name))? {
            return Ok(cpus);
        }
    }
    Ok(Vec::new())
}

/// Numbers of the directory entries `<prefix><number><suffix>`, ascending; empty without the
/// directory.
pub(super) fn numbered(dir: &Path, prefix: &str, suffix: &str) -> Result<Vec<u32>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(source) if source.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(unreadable(dir, source)),
    };
    let mut numbers = BTreeSet::new();
    for entry in entries {
        let name = entry.map_err(|source| unreadable(dir, source))?.file_name();
        let number: Option<u32> = name.to_str().and_then(|name| {
            name.strip_prefix(prefix)?
                .strip_suffix(suffix)?
                .parse()
                .ok()
        });
        numbers.extend(number);
    }
    Ok(numbers.into_iter().collect())
}

fn read_list(path: &Path) -> Result<Option<Vec<CpuId>>> {
    let Some(text) = read_text(path)? else {
        return Ok(None);
    };
    let cpus = parse_cpu_list(&text).ok_or_else(|| odd(path, text.trim(), "a list of cpus"))?;
    Ok(Some(cpus))
}

pub(super) fn read_text(path: &Path) -> Result<Option<String>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(source) if source.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(unreadable(path, source)),
    }
}

/// Value of `[Node 0 ]MemTotal:  5990176 kB` in bytes; kB means KiB in these files.
fn field_bytes(meminfo: &str, field: &str) -> Option<u64> {
    let value = meminfo.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.split_whitespace().next_back() == Some(field)).then_some(value)
    })?;
    value
        .trim()
        .strip_suffix("kB")?
        .trim()
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}

fn unreadable(path: &Path, source: std::io::Error) -> Error {
    Error::System {
        call: format!("reading {}", path.display()),
        source,
    }
}

pub(super) fn odd(path: &Path, found: &str, expected: &str) -> Error {
    let path = PathBuf::from(path);
    Error::BadRequest {
        name: path.display().to_string(),
        found: found.chars().take(80).collect(),
        expected: expected.to_owned(),
    }
}
