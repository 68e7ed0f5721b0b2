//! The machine as plain Python data.

use std::path::Path;

use numamirror_core::sys;
use numamirror_core::topology::{Topology, available_memory_bytes};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::errors;

/// Nodes, cores, memory and the CPUs that this process may use, read below the two roots.
#[pyfunction]
#[pyo3(signature = (sysfs_root = "/sys", proc_root = "/proc"))]
pub(crate) fn topology<'py>(
    py: Python<'py>,
    sysfs_root: &str,
    proc_root: &str,
) -> PyResult<Bound<'py, PyDict>> {
    let (sysfs_root, proc_root) = (Path::new(sysfs_root), Path::new(proc_root));
    let topology = errors::map(py, Topology::read(sysfs_root, proc_root))?;
    let nodes = PyList::empty(py);
    for node in &topology.nodes {
        let entry = PyDict::new(py);
        entry.set_item("id", node.id.0)?;
        entry.set_item(
            "cpus",
            node.cpus.iter().map(|cpu| cpu.0).collect::<Vec<_>>(),
        )?;
        entry.set_item("total_bytes", node.total_bytes)?;
        entry.set_item("free_bytes", node.free_bytes)?;
        let distances: Vec<_> = node
            .distances
            .iter()
            .map(|(id, cost)| (id.0, *cost))
            .collect();
        entry.set_item("distances", distances)?;
        nodes.append(entry)?;
    }
    let cores = PyList::empty(py);
    for core in &topology.cores {
        let entry = PyDict::new(py);
        entry.set_item("node", core.node.0)?;
        entry.set_item(
            "cpus",
            core.cpus.iter().map(|cpu| cpu.0).collect::<Vec<_>>(),
        )?;
        cores.append(entry)?;
    }
    let known = PyDict::new(py);
    known.set_item("nodes", nodes)?;
    known.set_item("cores", cores)?;
    known.set_item("allowed_cpus", errors::map(py, sys::affinity())?)?;
    known.set_item("available_bytes", available_memory_bytes(proc_root))?;
    Ok(known)
}
