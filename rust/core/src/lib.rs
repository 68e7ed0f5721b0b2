//! The engine of numamirror.

pub mod error;
pub mod exec;
pub mod memory;
pub mod sys;
pub mod topology;
