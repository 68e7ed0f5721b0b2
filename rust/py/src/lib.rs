//! `numamirror._core`: the engine as Python sees it.

#[pyo3::pymodule]
mod _core {}
