//! `Engine`: one loaded model. Each method is one call into the core.
#![expect(
    clippy::needless_pass_by_value,
    reason = "arguments from Python arrive owned"
)]

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use numamirror_core::batch::BatchItem;
use numamirror_core::candidates::{self, Penalties};
use numamirror_core::error::{Error, Result};
use numamirror_core::exec::{ExecOptions, Executor};
use numamirror_core::isa;
use numamirror_core::load::{Memory, load, open};
use numamirror_core::memory::PageKind;
use numamirror_core::program::Program;
use numamirror_core::workers::Workers;
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::PyBytes;

use crate::enter::enter;
use crate::errors;
use crate::sizes::{layout, state_limits};
use crate::topology::ThreadPlan;

/// Of one arena: bytes in memory, bytes in huge pages, sampled pages by kernel node.
type ArenaPages = (u64, u64, Vec<(u32, u64)>);

/// What one call at a time may touch.
struct Session {
    executor: Executor,
    /// Logits after the last token of each sequence that asked for them.
    last: HashMap<u32, Vec<f32>>,
}

impl Session {
    /// Keeps each sequence's last row of the pass that was computed just now.
    fn keep_last(&mut self, items: &[BatchItem]) {
        let n_vocab = self.executor.program().n_vocab();
        let rows = self.executor.logits().chunks_exact(n_vocab);
        for (item, row) in items.iter().filter(|item| item.wants_logits).zip(rows) {
            let kept = self.last.entry(item.sequence).or_default();
            kept.clear();
            kept.extend_from_slice(row);
        }
    }
}

/// A batch as Python gives it.
fn items(batch: Vec<(u32, u32, u32, bool)>) -> Vec<BatchItem> {
    let item = |(sequence, position, token, wants_logits)| BatchItem {
        sequence,
        position,
        token,
        wants_logits,
    };
    batch.into_iter().map(item).collect()
}

/// A model in memory, its workers and its sequences.
#[pyclass(frozen, module = "numamirror._core")]
pub(crate) struct Engine {
    session: Mutex<Session>,
    n_vocab: usize,
    isa: &'static isa::Isa,
}

#[pymethods]
impl Engine {
    /// Loads the weights of `program` from `sources`, one (path, offset) a tensor.
    #[new]
    #[expect(
        clippy::too_many_arguments,
        reason = "keyword arguments of one Python call"
    )]
    #[pyo3(signature = (program, sources, buffers, threads, *, n_ubatch, n_ctx, n_parallel,
                        cache_type_k, cache_type_v, progress))]
    fn new(
        py: Python<'_>,
        program: &str,
        sources: Vec<(String, u64)>,
        buffers: Vec<String>,
        threads: &ThreadPlan,
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
        let threads = &threads.plan;
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
            let layout = layout(&program, &buffers, &threads.node_threads(), isa)?;
            let memory = Memory {
                kernel_nodes: &threads.nodes.kernel_nodes(),
                pages: PageKind::Huge2M,
                sysfs_root: Path::new("/sys"),
            };
            let mut advance = |bytes| {
                done.store(bytes, Ordering::Relaxed);
                poll()
            };
            let weights = load(layout, &memory, &files, &sources, &workers, &mut advance)?;
            Executor::new(program, weights, workers, isa, options, &memory, poll)
        })?;
        Ok(Self {
            n_vocab: executor.program().n_vocab(),
            session: Mutex::new(Session {
                executor,
                last: HashMap::new(),
            }),
            isa,
        })
    }

    /// Name of the instruction set in use.
    #[getter]
    fn isa(&self) -> &'static str {
        self.isa.name
    }

    /// What pages the weights got, and why not better ones.
    fn page_kind(&self, py: Python<'_>) -> (String, Option<String>, bool) {
        let session = self.lock_with_gil(py);
        let committed = session.executor.weights().arenas().committed();
        committed.map_or_else(Default::default, |got| {
            (got.pages.to_string(), got.reason.clone(), got.bind_refused)
        })
    }

    /// Of each node's weights, read back from the kernel: bytes in memory, bytes of them in huge
    /// pages, and sampled pages by kernel node.
    fn weight_pages(&self, py: Python<'_>) -> PyResult<Vec<ArenaPages>> {
        let session = self.lock_with_gil(py);
        let arenas = session.executor.weights().arenas();
        let reports: Result<Vec<_>> = arenas.iter().map(|(n, _)| arenas.page_report(n)).collect();
        let reports = errors::map(py, reports)?.into_iter().map(|report| {
            let by_node = report
                .pages_by_node
                .iter()
                .map(|(node, &count)| (node.0, count));
            let by_node = by_node.collect();
            (
                report.sizes.resident_bytes,
                report.sizes.huge_bytes,
                by_node,
            )
        });
        Ok(reports.collect())
    }

    /// One forward pass over (sequence, position, token, wants logits); of each sequence the last
    /// logits asked for are kept for [`Engine::best`].
    fn forward(&self, py: Python<'_>, batch: Vec<(u32, u32, u32, bool)>) -> PyResult<()> {
        let items = items(batch);
        enter(
            py,
            |_| Ok(()),
            |poll| {
                let mut session = self.lock();
                session.executor.forward(&items, poll)?;
                session.keep_last(&items);
                Ok(())
            },
        )
    }

    /// One forward pass whose logits go into a float32 array of `[n_wanted, n_vocab]` elements, in
    /// the batch's order.
    fn logits(
        &self,
        py: Python<'_>,
        batch: Vec<(u32, u32, u32, bool)>,
        into: PyBuffer<f32>,
    ) -> PyResult<()> {
        let items = items(batch);
        let n_wanted = items.iter().filter(|item| item.wants_logits).count();
        let n_elems = n_wanted * self.n_vocab;
        if into.item_count() != n_elems {
            let error = Error::BadRequest {
                name: "into".into(),
                found: format!("{} elements", into.item_count()),
                expected: format!("{n_elems}, {n_wanted} rows of {}", self.n_vocab),
            };
            return Err(errors::to_python(py, &error));
        }
        // Copied while the pass is still the engine's last: another may begin right after.
        let logits = enter(
            py,
            |_| Ok(()),
            |poll| {
                let mut session = self.lock();
                session.executor.forward(&items, poll)?;
                Ok(session.executor.logits().to_vec())
            },
        )?;
        into.copy_from_slice(py, &logits)
    }

    /// Ids and logits of the best next tokens of a sequence, as the bytes of a u32 and a f32
    /// array; `penalties` are (repeat, frequency, presence).
    fn best<'py>(
        &self,
        py: Python<'py>,
        sequence: u32,
        n_candidates: usize,
        recent: Vec<u32>,
        penalties: (f32, f32, f32),
    ) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        let (repeat, frequency, presence) = penalties;
        let penalties = Penalties {
            repeat,
            frequency,
            presence,
        };
        let session = self.lock_with_gil(py);
        let last = session.last.get(&sequence).ok_or(Error::BadRequest {
            name: "sequence".into(),
            found: sequence.to_string(),
            expected: "one whose last token asked for logits".into(),
        });
        let best = last.and_then(|row| candidates::best(row, n_candidates, &recent, &penalties));
        let best = errors::map(py, best)?;
        let ids: Vec<u8> = best.iter().flat_map(|(id, _)| id.to_ne_bytes()).collect();
        let logits: Vec<u8> = best.iter().flat_map(|(_, x)| x.to_ne_bytes()).collect();
        Ok((PyBytes::new(py, &ids), PyBytes::new(py, &logits)))
    }

    /// Positions that a sequence holds.
    fn n_past(&self, py: Python<'_>, sequence: u32) -> usize {
        let session = self.lock_with_gil(py);
        session.executor.sequences().n_past(sequence)
    }

    /// Forgets a sequence.
    fn remove(&self, py: Python<'_>, sequence: u32) {
        let mut session = self.lock_with_gil(py);
        session.executor.sequences_mut().remove(sequence);
        session.last.remove(&sequence);
    }
}

impl Engine {
    /// The executor, for a caller that has let go of the GIL.
    fn lock(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The executor, for a caller that has the GIL: it lets go of it while it waits, since the
    /// one that runs a pass asks for the GIL now and then.
    fn lock_with_gil(&self, py: Python<'_>) -> MutexGuard<'_, Session> {
        self.session
            .lock_py_attached(py)
            .unwrap_or_else(PoisonError::into_inner)
    }
}
