//! What can be told of a program before anything is loaded: whether it holds, what it takes.

use numamirror_core::arena::{ArenaSize, arena_bytes};
use numamirror_core::error::Result;
use numamirror_core::isa;
use numamirror_core::program::Program;
use numamirror_core::state::{CacheType, StateLimits, cache_bytes};
use numamirror_core::weights::{Layout, Role, TensorSpec};
use pyo3::prelude::*;

use crate::errors;

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

/// Bytes of weights, cache and activations that a program takes.
#[pyfunction]
pub(crate) fn memory_needs(
    py: Python<'_>,
    program: &str,
    n_ubatch: usize,
    n_ctx: usize,
    n_parallel: usize,
    cache_type_k: &str,
    cache_type_v: &str,
) -> PyResult<(usize, usize, usize)> {
    let needs = || {
        let program = Program::from_json(program)?;
        let weights = Layout::new(program.tensors(), isa::choose(None)?)?.n_bytes();
        let limits = state_limits(n_ctx, n_parallel, cache_type_k, cache_type_v)?;
        let cache = cache_bytes(program.caches(), &limits, 1)[0];
        let size = ArenaSize {
            max_rows: n_ubatch,
            n_nodes: 1,
            partial_elems: program.partial_elems(n_ubatch, n_ctx),
        };
        Ok((weights, cache, arena_bytes(program.slots(), &size)))
    };
    errors::map(py, needs())
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
