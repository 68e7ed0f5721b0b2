//! Instruction sets: what each of them speeds up, and which of them this CPU has.

pub mod lanes;
pub mod vector;
