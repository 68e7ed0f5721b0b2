//! What can be told of a program before anything is loaded: whether it holds, what it takes.
#![expect(
    clippy::needless_pass_by_value,
    reason = "arguments from Python arrive owned"
)]

use numamirror_core::arena::{ArenaSize, arena_bytes};
use numamirror_core::buffer::{self, Buffer};
use numamirror_core::error::{Error, Result};
use numamirror_core::isa;
use numamirror_core::program::Program;
use numamirror_core::state::{CacheType, StateLimits, cache_bytes};
use numamirror_core::traffic;
use numamirror_core::weights::{Layout, Role, TensorSpec};
use pyo3::prelude::*;

use crate::errors;
use crate::topology::ThreadPlan;

/// Refuses a program that the engine would refuse.
#[pyfunction]
pub(crate) fn verify_program(py: Python<'_>, program: &str) -> PyResult<()> {
    errors::map(py, Program::from_json(program)).map(|_| ())
}

/// Bytes that one tensor takes in memory for the instruction set in use.
#[pyfunction]
pub(crate) fn packed_bytes(
    py: Python<'_>,
    type_name: String,
    n_rows: u32,
    n_cols: u32,
    role: &str,
) -> PyResult<usize> {
    let role = if role == "vector" {
        Role::Vector
    } else {
        Role::Matrix
    };
    let spec = TensorSpec {
        name: String::new(),
        type_name,
        n_rows,
        n_cols,
        role,
    };
    let layout = isa::choose(None).and_then(|isa| Layout::new(&[spec], isa));
    errors::map(py, layout).map(|layout| layout.entries()[0].n_bytes())
}

/// Bytes that a program takes: weights and cache of each node, and activations.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "sizes of one Python call")]
pub(crate) fn memory_needs(
    py: Python<'_>,
    program: &str,
    buffers: Vec<String>,
    threads: &ThreadPlan,
    n_ubatch: usize,
    n_ctx: usize,
    n_parallel: usize,
    cache_type_k: &str,
    cache_type_v: &str,
) -> PyResult<(Vec<usize>, Vec<usize>, usize)> {
    let needs = || {
        let program = Program::from_json(program)?;
        let node_threads = threads.plan.node_threads();
        let weights = layout(&program, &buffers, &node_threads, isa::choose(None)?)?;
        let limits = state_limits(n_ctx, n_parallel, cache_type_k, cache_type_v)?;
        // Cache and activations are dealt to workers: nodes without any have weights alone.
        let n_nodes = threads.plan.n_nodes_with_workers();
        let mut cache = cache_bytes(program.caches(), &limits, n_nodes);
        cache.resize(node_threads.len(), 0);
        let size = ArenaSize {
            max_rows: n_ubatch,
            n_nodes,
            partial_elems: program.partial_elems(n_ubatch, n_ctx),
        };
        let activations = arena_bytes(program.slots(), &size);
        Ok((weights.budget_bytes(), cache, activations))
    };
    errors::map(py, needs())
}

/// Weight bytes that a token's products read: `[reader][home]`, by nodes in use.
#[pyfunction]
pub(crate) fn token_reads(
    py: Python<'_>,
    program: &str,
    buffers: Vec<String>,
    threads: &ThreadPlan,
) -> PyResult<Vec<Vec<u64>>> {
    let reads = || {
        let program = Program::from_json(program)?;
        let node_threads = threads.plan.node_threads();
        let layout = layout(&program, &buffers, &node_threads, isa::choose(None)?)?;
        Ok(traffic::token_reads(&program, &layout, &node_threads))
    };
    errors::map(py, reads())
}

/// Names of the buffers that there are with so many nodes.
#[pyfunction]
pub(crate) fn buffers(n_nodes: usize) -> Vec<String> {
    buffer::names(n_nodes)
}

/// Places of a program's weights in the buffers of these names, one a tensor.
pub(crate) fn layout(
    program: &Program,
    buffers: &[String],
    node_threads: &[usize],
    isa: &isa::Isa,
) -> Result<Layout> {
    if buffers.len() != program.tensors().len() {
        return Err(Error::BadRequest {
            name: "buffers".into(),
            found: buffers.len().to_string(),
            expected: format!("one for each of {} tensors", program.tensors().len()),
        });
    }
    let by_name = |name: &String| Buffer::by_name(name, node_threads.len());
    let buffers: Result<Vec<_>> = buffers.iter().map(by_name).collect();
    Layout::on_nodes(program.tensors(), &buffers?, node_threads, isa)
}

/// Cache limits from what Python gives.
pub(crate) fn state_limits(
    n_ctx: usize,
    n_parallel: usize,
    k: &str,
    v: &str,
) -> Result<StateLimits> {
    Ok(StateLimits {
        n_ctx,
        n_parallel,
        k_type: CacheType::by_name(k)?,
        v_type: CacheType::by_name(v)?,
    })
}
