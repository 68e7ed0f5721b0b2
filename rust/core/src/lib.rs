//! The engine of numamirror: quantized weights in node memory, kernels, workers, programs.
//!
//! No Python in it. Modules in order; each uses only those above it:
//!
//! | module | holds |
//! | --- | --- |
//! | [`error`] | the one error type |
//! | [`sys`] | raw Linux calls |
//! | [`topology`] | nodes, cores, memory; which CPU each worker runs on |
//! | [`workers`] | pinned threads, barriers, dealing of work |
//! | [`memory`] | arenas at fixed addresses, a node each; mappings |
//! | [`quant`] | quantization types, decoded to the canonical form |
//! | [`packed`] | packed forms: layouts, packers, scalar kernels |
//! | [`isa`] | instruction sets: kernels and element-wise functions |
//! | [`mapped`] | tensors that stay in their file |
//! | [`buffer`] | buffer types: which node gets which rows |
//! | [`weights`] | where each tensor lies |
//! | [`load`] | from file ranges to packed weights |
//! | [`batch`] | tokens of one pass |
//! | [`state`] | the block cache of sequences |
//! | [`arena`] | activations and who may write them |
//! | [`ops`] | the ops |
//! | [`program`] | a forward pass as data, verified |
//! | [`traffic`] | bytes that a token reads, node by node |
//! | [`exec`] | the walk over a program |
//! | [`candidates`] | the best next tokens |
//!
//! `unsafe` is denied but in modules that say at their head why they need it: `sys`, `workers`,
//! `memory`, `packed`, `isa`, `weights`, `state`, `arena`.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "numamirror needs Linux: node memory, huge pages and thread pinning are Linux system calls"
);

pub mod arena;
pub mod batch;
pub mod buffer;
pub mod candidates;
pub mod error;
pub mod exec;
pub mod isa;
pub mod load;
pub mod mapped;
pub mod memory;
pub mod ops;
pub mod packed;
pub mod program;
pub mod quant;
pub mod state;
pub mod sys;
pub mod topology;
pub mod traffic;
pub mod weights;
pub mod workers;
