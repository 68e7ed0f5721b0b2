//! The engine of numamirror.

pub mod error;
