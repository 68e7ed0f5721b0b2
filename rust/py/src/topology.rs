//! The machine as plain Python data.

use std::path::Path;

use numamirror_core::sys;
use numamirror_core::topology::{CpuId, Topology, allowed_cpus, available_memory_bytes};
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

/// Where workers run: on which CPUs and nodes, and how many take part in what.
#[pyclass(frozen, module = "numamirror._core")]
pub(crate) struct ThreadPlan {
    pub(crate) plan: numamirror_core::topology::ThreadPlan,
}

#[pymethods]
impl ThreadPlan {
    /// Plans workers within the CPUs of this process and of `cpu_range`.
    #[new]
    #[pyo3(signature = (*, threads = None, threads_batch = None, cpu_range = None,
                        simulate_nodes = None))]
    fn new(
        py: Python<'_>,
        threads: Option<usize>,
        threads_batch: Option<usize>,
        cpu_range: Option<&str>,
        simulate_nodes: Option<usize>,
    ) -> PyResult<Self> {
        let plan = || {
            let topology = Topology::read(Path::new("/sys"), Path::new("/proc"))?;
            let affinity: Vec<CpuId> = sys::affinity()?.into_iter().map(CpuId).collect();
            let allowed = allowed_cpus(&affinity, cpu_range)?;
            let plan = numamirror_core::topology::ThreadPlan::new;
            plan(&topology, &allowed, threads, threads_batch, simulate_nodes)
        };
        errors::map(py, plan()).map(|plan| Self { plan })
    }

    /// CPU and node of each worker.
    #[getter]
    fn pins(&self) -> Vec<(u32, u32)> {
        let pins = self.plan.pins.iter();
        pins.map(|pin| (pin.cpu.0, pin.node.0)).collect()
    }

    /// Workers in a pass of one token.
    #[getter]
    fn n_threads(&self) -> usize {
        self.plan.n_threads
    }

    /// Workers in a pass of more.
    #[getter]
    fn n_threads_batch(&self) -> usize {
        self.plan.n_threads_batch
    }

    /// The kernel's node of each node in use; None for a pretended one.
    #[getter]
    fn kernel_nodes(&self) -> Vec<Option<u32>> {
        let nodes = self.plan.kernel_nodes.iter();
        nodes.map(|node| node.map(|node| node.0)).collect()
    }

    /// Workers of each node in use in a pass of one token.
    #[getter]
    fn node_threads(&self) -> Vec<usize> {
        self.plan.node_threads.clone()
    }
}
