//! The engine of numamirror.

pub mod error;
pub mod isa;
pub mod packed;
pub mod quant;
