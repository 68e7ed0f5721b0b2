//! The one map from the engine's errors to the classes of `numamirror.errors`.

use numamirror_core::error::Error;
use pyo3::prelude::*;
use pyo3::types::PyType;

/// Name of the Python class for an error.
fn class_name(error: &Error) -> &'static str {
    match error {
        Error::OutOfMemory { .. } | Error::MemoryLimit { .. } | Error::NodeMemory { .. } => {
            "OutOfNodeMemoryError"
        }
        Error::AddressTaken { .. } => "PlacementError",
        Error::BadRequest { .. } => "RequestError",
        Error::Unsupported { .. } | Error::IsaMissing { .. } => "UnsupportedError",
        Error::BadProgram { .. } => "ProgramError",
        Error::NonFiniteWeight { .. } | Error::NonFiniteActivation { .. } => "NonFiniteError",
        Error::ReadWeights { .. } => "ModelFileError",
        Error::ContextFull { .. } => "ContextFullError",
        _ => "EngineError",
    }
}

/// The Python exception for an engine error.
pub(crate) fn to_python(py: Python<'_>, error: &Error) -> PyErr {
    let raise = || -> PyResult<PyErr> {
        let class = py.import("numamirror.errors")?.getattr(class_name(error))?;
        let class: Bound<'_, PyType> = class.cast_into()?;
        Ok(PyErr::from_type(class, (error.to_string(), error.hint())))
    };
    raise().unwrap_or_else(|import_error| import_error)
}

/// `result` with its error as a Python exception.
pub(crate) fn map<T>(py: Python<'_>, result: numamirror_core::error::Result<T>) -> PyResult<T> {
    result.map_err(|error| to_python(py, &error))
}
