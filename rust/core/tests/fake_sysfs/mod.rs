//! Writes `/sys` and `/proc` trees of machines that nobody has, for tests of the topology.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A tree below the system's folder for temporary files; removed on drop.
pub(super) struct Tree(PathBuf);

impl Tree {
    /// An empty tree: a machine that says nothing about itself.
    pub(super) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("numamirror-fake-sysfs-{}-{n}", std::process::id());
        let root = std::env::temp_dir().join(name);
        fs::create_dir_all(&root).unwrap();
        Self(root)
    }

    /// The folder to read from, both as sysfs root and as proc root.
    pub(super) fn root(&self) -> &Path {
        &self.0
    }

    /// Writes one file, with the folders above it.
    pub(super) fn write(&self, path: &str, text: &str) -> &Self {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    /// Writes the list of online CPUs.
    pub(super) fn online(&self, list: &str) -> &Self {
        self.write("devices/system/cpu/online", list)
    }

    /// Writes a node with its CPUs, memory in KiB (half of it free) and distances.
    pub(super) fn node(&self, id: u32, cpus: &str, total_kib: u64, distances: &str) -> &Self {
        let dir = format!("devices/system/node/node{id}");
        let free_kib = total_kib / 2;
        let meminfo = format!(
            "Node {id} MemTotal:  {total_kib} kB\nNode {id} MemFree:  {free_kib} kB\n\
             Node {id} HugePages_Total:     0\n"
        );
        self.write(&format!("{dir}/cpulist"), &format!("{cpus}\n"))
            .write(&format!("{dir}/meminfo"), &meminfo)
            .write(&format!("{dir}/distance"), distances)
    }

    /// Writes a core's SMT siblings, for each of them.
    pub(super) fn core(&self, cpus: &[u32]) -> &Self {
        let list: Vec<_> = cpus.iter().map(ToString::to_string).collect();
        for cpu in cpus {
            let path = format!("devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
            self.write(&path, &list.join(","));
        }
        self
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
