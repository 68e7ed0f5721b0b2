//! Element-wise ops, norms, rotations and attention: everything that is not a weight product.
//!
//! Each op is written once over [`super::lanes::Lanes`] and compiled once for each instruction
//! set; all give the same bits. Knows nothing of weights, threads or programs; the ops call it
//! through a [`VectorOps`] table, which they get from the detected instruction set.
#![expect(
    clippy::inline_always,
    reason = "bodies must inline into the function that enables the instruction set"
)]

mod attention;
mod attention_tile;
mod cache;
mod elementwise;
mod exp;
mod norm;
mod partial;
mod quantize;
mod rope;
mod table;

pub use attention::{AttendBlock, attend_scratch_elems};
pub use cache::{BLOCK_POSITIONS, CacheMut, CacheRef};
pub use partial::{Partial, PartialRef};
#[cfg(target_arch = "x86_64")]
pub(in crate::isa) use table::AVX2;
#[cfg(target_arch = "x86_64")]
pub use table::avx2;
pub use table::{SCALAR, VectorOps};
