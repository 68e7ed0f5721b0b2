//! The one door for calls that take time: the GIL is released, signals and panics are minded.

use std::panic::{AssertUnwindSafe, catch_unwind};

use numamirror_core::error::{Error, Result};
use numamirror_core::workers::Control;
use pyo3::prelude::*;

use crate::errors;

/// Runs `call` without the GIL. `call` gets a function to poll with: it takes the GIL back for a
/// moment, lets Python handle signals and runs `notice`; an exception there stops the call and is
/// what the caller sees.
pub(crate) fn enter<T: Send>(
    py: Python<'_>,
    mut notice: impl FnMut(Python<'_>) -> PyResult<()> + Send,
    call: impl FnOnce(&mut dyn FnMut() -> Control) -> Result<T> + Send,
) -> PyResult<T> {
    let mut raised: Option<PyErr> = None;
    let result = py.detach(|| {
        let mut poll = || {
            let handled = Python::attach(|py| py.check_signals().and_then(|()| notice(py)));
            match handled {
                Ok(()) => Control::Continue,
                Err(error) => {
                    raised.get_or_insert(error);
                    Control::Cancel
                }
            }
        };
        catch_unwind(AssertUnwindSafe(|| call(&mut poll))).unwrap_or_else(|panic| {
            let words = panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
            Err(Error::Internal(words.unwrap_or_else(|| "a panic".into())))
        })
    });
    match raised {
        Some(error) => Err(error),
        None => errors::map(py, result),
    }
}
