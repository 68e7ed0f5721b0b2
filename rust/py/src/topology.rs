//! The machine, and the plan of workers for it, as plain Python data.

use std::path::Path;

use numamirror_core::error::Error;
use numamirror_core::sys;
use numamirror_core::topology::{
    self as core, Core, CpuId, MAX_THREADS, Node, PagePool, Topology, available_memory_bytes,
    numa_balancing, page_pools, phase_owners, row_shares, transparent_page_mode,
};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors;

/// Nodes, cores, memory, large pages and the CPUs that this process may use, read below the two
/// roots.
#[pyfunction]
#[pyo3(signature = (sysfs_root = "/sys", proc_root = "/proc"))]
pub(crate) fn topology<'py>(
    py: Python<'py>,
    sysfs_root: &str,
    proc_root: &str,
) -> PyResult<Bound<'py, PyDict>> {
    let (sysfs_root, proc_root) = (Path::new(sysfs_root), Path::new(proc_root));
    let topology = errors::map(py, Topology::read(sysfs_root, proc_root))?;
    let pools = errors::map(py, page_pools(sysfs_root, &topology))?;
    let mode = errors::map(py, transparent_page_mode(sysfs_root))?;
    let known = PyDict::new(py);
    known.set_item("nodes", dicts(&topology.nodes, |node| node_dict(py, node))?)?;
    known.set_item("cores", dicts(&topology.cores, |one| core_dict(py, one))?)?;
    known.set_item("allowed_cpus", errors::map(py, sys::affinity())?)?;
    known.set_item("available_bytes", available_memory_bytes(proc_root))?;
    known.set_item("page_pools", dicts(&pools, |pool| pool_dict(py, pool))?)?;
    known.set_item("transparent_huge_pages", mode)?;
    known.set_item(
        "numa_balancing",
        errors::map(py, numa_balancing(proc_root))?,
    )?;
    Ok(known)
}

/// Where workers run: on which CPUs and nodes, and how many take part in what.
#[pyclass(frozen, module = "numamirror._core")]
pub(crate) struct ThreadPlan {
    pub(crate) plan: core::ThreadPlan,
}

#[pymethods]
impl ThreadPlan {
    /// Plans workers within the CPUs of this process (or `allowed_cpus`) and of `cpu_range`.
    #[new]
    #[expect(
        clippy::too_many_arguments,
        reason = "keyword arguments of one Python call"
    )]
    #[pyo3(signature = (*, threads = None, threads_batch = None, cpu_range = None,
                        simulate_nodes = None, allowed_cpus = None, sysfs_root = "/sys",
                        proc_root = "/proc"))]
    fn new(
        py: Python<'_>,
        threads: Option<usize>,
        threads_batch: Option<usize>,
        cpu_range: Option<&str>,
        simulate_nodes: Option<usize>,
        allowed_cpus: Option<Vec<u32>>,
        sysfs_root: &str,
        proc_root: &str,
    ) -> PyResult<Self> {
        let plan = || {
            let topology = Topology::read(Path::new(sysfs_root), Path::new(proc_root))?;
            let affinity = allowed_cpus.map_or_else(sys::affinity, Ok)?;
            let affinity: Vec<CpuId> = affinity.into_iter().map(CpuId).collect();
            let allowed = core::allowed_cpus(&affinity, cpu_range)?;
            let plan = core::ThreadPlan::new;
            plan(&topology, &allowed, threads, threads_batch, simulate_nodes)
        };
        errors::map(py, plan()).map(|plan| Self { plan })
    }

    /// CPU of each worker, and the index of its node among those in use.
    #[getter]
    fn pins(&self) -> Vec<(u32, usize)> {
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
        let nodes = self.plan.nodes.kernel_nodes().into_iter();
        nodes.map(|node| node.map(|node| node.0)).collect()
    }

    /// Workers of each node in use in a pass of one token.
    #[getter]
    fn node_threads(&self) -> Vec<usize> {
        self.plan.node_threads()
    }

    /// Workers of each node in use in a pass of more.
    #[getter]
    fn node_threads_batch(&self) -> Vec<usize> {
        self.plan.node_threads_batch()
    }
}

/// What each node's threads work on in a phase, as (owner, first unit, end), of units that are
/// dealt to nodes by `node_threads`.
#[pyfunction]
#[expect(
    clippy::needless_pass_by_value,
    reason = "arguments from Python arrive owned"
)]
pub(crate) fn phase_rows(
    py: Python<'_>,
    n_units: usize,
    node_threads: Vec<usize>,
    phase_threads: Vec<usize>,
) -> PyResult<Vec<Vec<(usize, usize, usize)>>> {
    let n_nodes = node_threads.len();
    let all = node_threads.iter().chain(&phase_threads);
    if n_nodes == 0 || phase_threads.len() != n_nodes || all.max() > Some(&MAX_THREADS) {
        let refused = Error::BadRequest {
            name: "threads of the nodes".into(),
            found: format!("{node_threads:?} and {phase_threads:?}"),
            expected: format!("two lists of one length, counts of 0 to {MAX_THREADS}"),
        };
        return errors::map(py, Err(refused));
    }
    let work = phase_owners(&row_shares(n_units, &node_threads), &phase_threads);
    let plain = work.into_iter().map(|of_node| {
        let ranges = of_node.into_iter();
        ranges
            .map(|owned| (owned.owner.0, owned.units.start, owned.units.end))
            .collect()
    });
    Ok(plain.collect())
}

fn dicts<'py, T>(
    items: &[T],
    to_dict: impl Fn(&T) -> PyResult<Bound<'py, PyDict>>,
) -> PyResult<Vec<Bound<'py, PyDict>>> {
    items.iter().map(to_dict).collect()
}

fn numbers(cpus: &[CpuId]) -> Vec<u32> {
    cpus.iter().map(|cpu| cpu.0).collect()
}

fn node_dict<'py>(py: Python<'py>, node: &Node) -> PyResult<Bound<'py, PyDict>> {
    let distances = node.distances.iter().map(|(id, cost)| (id.0, *cost));
    let entry = PyDict::new(py);
    entry.set_item("id", node.id.0)?;
    entry.set_item("cpus", numbers(&node.cpus))?;
    entry.set_item("total_bytes", node.total_bytes)?;
    entry.set_item("free_bytes", node.free_bytes)?;
    entry.set_item("distances", distances.collect::<Vec<_>>())?;
    Ok(entry)
}

fn core_dict<'py>(py: Python<'py>, core: &Core) -> PyResult<Bound<'py, PyDict>> {
    let entry = PyDict::new(py);
    entry.set_item("node", core.node.0)?;
    entry.set_item("cpus", numbers(&core.cpus))?;
    Ok(entry)
}

fn pool_dict<'py>(py: Python<'py>, pool: &PagePool) -> PyResult<Bound<'py, PyDict>> {
    let entry = PyDict::new(py);
    entry.set_item("node", pool.node.map(|id| id.0))?;
    entry.set_item("page_bytes", pool.page_bytes)?;
    entry.set_item("n_pages", pool.n_pages)?;
    entry.set_item("n_free_pages", pool.n_free_pages)?;
    Ok(entry)
}
