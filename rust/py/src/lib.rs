//! `numamirror._core`: the engine as Python sees it.
//!
//! Exports only; everything that may take time or fail goes through `enter.rs`, errors through
//! `errors.rs`. Holds no logic of the engine.

mod engine;
mod enter;
mod errors;
mod registry;
mod sizes;
mod topology;

#[pyo3::pymodule]
mod _core {
    #[pymodule_export]
    use crate::engine::Engine;
    #[pymodule_export]
    use crate::registry::{dequantize, isa, isas, op_schema, packed_forms, quant_types};
    #[pymodule_export]
    use crate::sizes::{buffers, memory_needs, packed_bytes, token_reads, verify_program};
    #[pymodule_export]
    use crate::topology::{ThreadPlan, phase_rows, topology};
}
