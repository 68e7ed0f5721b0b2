//! The engine of numamirror.

pub mod error;
pub mod isa;
