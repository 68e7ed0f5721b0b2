//! `Engine`: one loaded model. Each method is one call into the core.
#![expect(
    clippy::needless_pass_by_value,
    reason = "arguments from Python arrive owned"
)]

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use numamirror_core::batch::BatchItem;
use numamirror_core::buffer::Buffer;
use numamirror_core::candidates::{self, Penalties};
use numamirror_core::error::{Error, Result};
use numamirror_core::exec::{ExecOptions, Executor};
use numamirror_core::isa;
use numamirror_core::load::{Memory, load, open};
use numamirror_core::memory::PageKind;
use numamirror_core::program::Program;
use numamirror_core::sys;
use numamirror_core::topology::{CpuId, ThreadPlan, Topology, allowed_cpus};
use numamirror_core::weights::Layout;
use numamirror_core::workers::Workers;
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;

use crate::enter::enter;
use crate::errors;
use crate::sizes::state_limits;

/// A model in memory, its workers and its sequences.
#[pyclass(frozen, module = "numamirror._core")]
pub(crate) struct Engine {
    executor: Mutex<Executor>,
    isa: &'static isa::Isa,
    threads: ThreadPlan,
}

#[pymethods]
impl Engine {
    /// Loads the weights of `program` from `sources`, one (path, offset) a tensor.
    #[new]
    #[expect(
        clippy::too_many_arguments,
        reason = "keyword arguments of one Python call"
    )]
    #[pyo3(signature = (program, sources, *, threads, threads_batch, cpu_range, n_ubatch, n_ctx,
                        n_parallel, cache_type_k, cache_type_v, progress))]
    fn new(
        py: Python<'_>,
        program: &str,
        sources: Vec<(String, u64)>,
        threads: Option<usize>,
        threads_batch: Option<usize>,
        cpu_range: Option<&str>,
        n_ubatch: usize,
        n_ctx: usize,
        n_parallel: usize,
        cache_type_k: &str,
        cache_type_v: &str,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let isa = errors::map(py, isa::choose(None))?;
        let program = errors::map(py, Program::from_json(program))?;
        let state = errors::map(
            py,
            state_limits(n_ctx, n_parallel, cache_type_k, cache_type_v),
        )?;
        let threads = errors::map(py, plan_threads(threads, threads_batch, cpu_range))?;
        let options = ExecOptions {
            max_rows: n_ubatch,
            n_threads: threads.n_threads,
            n_threads_batch: threads.n_threads_batch,
            state,
        };
        let done = AtomicU64::new(0);
        let notice = |py: Python<'_>| match &progress {
            Some(call) => call.call1(py, (done.load(Ordering::Relaxed),)).map(|_| ()),
            None => Ok(()),
        };
        let executor = enter(py, notice, |poll| {
            let workers = Workers::new(&threads.pins)?;
            let (files, sources) = open(&sources)?;
            let node_threads = node_threads(&threads);
            let buffers = vec![Buffer::split(); program.tensors().len()];
            let layout = Layout::on_nodes(program.tensors(), &buffers, &node_threads, isa)?;
            let memory = Memory {
                kernel_nodes: &vec![None; node_threads.len()],
                pages: PageKind::Transparent,
                sysfs_root: Path::new("/sys"),
            };
            let mut advance = |bytes| {
                done.store(bytes, Ordering::Relaxed);
                poll()
            };
            let weights = load(layout, &memory, &files, &sources, &workers, &mut advance)?;
            Executor::new(program, weights, workers, isa, options)
        })?;
        Ok(Self {
            executor: Mutex::new(executor),
            isa,
            threads,
        })
    }

    /// Name of the instruction set in use.
    #[getter]
    fn isa(&self) -> &'static str {
        self.isa.name
    }

    /// CPU and node of each worker.
    #[getter]
    fn pins(&self) -> Vec<(u32, u32)> {
        self.threads
            .pins
            .iter()
            .map(|pin| (pin.cpu.0, pin.node.0))
            .collect()
    }

    /// Workers in a pass of one token.
    #[getter]
    fn n_threads(&self) -> usize {
        self.threads.n_threads
    }

    /// Workers in a pass of more.
    #[getter]
    fn n_threads_batch(&self) -> usize {
        self.threads.n_threads_batch
    }

    /// Bytes of the packed weights, and how many of them lie in huge pages.
    fn weight_pages(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let executor = self.lock_with_gil(py);
        let arenas = executor.weights().arenas();
        let (mut resident_bytes, mut huge_bytes) = (0, 0);
        for (node, _) in arenas.iter() {
            let sizes = errors::map(py, arenas.page_report(node))?.sizes;
            resident_bytes += sizes.resident_bytes;
            huge_bytes += sizes.huge_bytes;
        }
        Ok((resident_bytes, huge_bytes))
    }

    /// One forward pass over (sequence, position, token, wants logits).
    fn forward(&self, py: Python<'_>, batch: Vec<(u32, u32, u32, bool)>) -> PyResult<()> {
        let items: Vec<BatchItem> = batch
            .into_iter()
            .map(|(sequence, position, token, wants_logits)| BatchItem {
                sequence,
                position,
                token,
                wants_logits,
            })
            .collect();
        enter(py, |_| Ok(()), |poll| self.lock().forward(&items, poll))
    }

    /// Copies the last pass's logits into a float32 array of `[n_outputs, n_vocab]` elements.
    fn copy_logits(&self, py: Python<'_>, into: PyBuffer<f32>) -> PyResult<()> {
        into.copy_from_slice(py, self.lock_with_gil(py).logits())
    }

    /// Ids and logits of the best next tokens after the `output`-th row of the last pass;
    /// `penalties` are (repeat, frequency, presence).
    fn best(
        &self,
        py: Python<'_>,
        output: usize,
        n_candidates: usize,
        recent: Vec<u32>,
        penalties: (f32, f32, f32),
    ) -> PyResult<(Vec<u32>, Vec<f32>)> {
        let executor = self.lock_with_gil(py);
        let n_vocab = executor.program().n_vocab();
        let (repeat, frequency, presence) = penalties;
        let penalties = Penalties {
            repeat,
            frequency,
            presence,
        };
        let row = executor
            .logits()
            .chunks_exact(n_vocab)
            .nth(output)
            .ok_or(Error::BadRequest {
                name: "output".into(),
                found: output.to_string(),
                expected: "a row of the last pass".into(),
            });
        let best = row.and_then(|row| candidates::best(row, n_candidates, &recent, &penalties));
        errors::map(py, best).map(|best| best.into_iter().unzip())
    }

    /// Positions that a sequence holds.
    fn n_past(&self, py: Python<'_>, sequence: u32) -> usize {
        self.lock_with_gil(py).sequences().n_past(sequence)
    }

    /// Forgets a sequence.
    fn remove(&self, py: Python<'_>, sequence: u32) {
        self.lock_with_gil(py).sequences_mut().remove(sequence);
    }
}

impl Engine {
    /// The executor, for a caller that has let go of the GIL.
    fn lock(&self) -> MutexGuard<'_, Executor> {
        self.executor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The executor, for a caller that has the GIL: it lets go of it while it waits, since the
    /// one that runs a pass asks for the GIL now and then.
    fn lock_with_gil(&self, py: Python<'_>) -> MutexGuard<'_, Executor> {
        self.executor
            .lock_py_attached(py)
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where workers run, within the CPUs of this process and of `cpu_range`.
fn plan_threads(
    threads: Option<usize>,
    threads_batch: Option<usize>,
    cpu_range: Option<&str>,
) -> Result<ThreadPlan> {
    let topology = Topology::read(Path::new("/sys"), Path::new("/proc"))?;
    let affinity: Vec<CpuId> = sys::affinity()?.into_iter().map(CpuId).collect();
    let allowed = allowed_cpus(&affinity, cpu_range)?;
    ThreadPlan::new(&topology, &allowed, threads, threads_batch)
}

/// Workers of each node in use; pins are contiguous by node.
fn node_threads(threads: &ThreadPlan) -> Vec<usize> {
    let nodes = threads.pins.chunk_by(|a, b| a.node == b.node);
    nodes.map(<[_]>::len).collect()
}
