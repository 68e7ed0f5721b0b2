//! The engine's registries as plain Python data, so that no Python table repeats them.

use numamirror_core::error::Error;
use numamirror_core::ops::operand::Field;
use numamirror_core::{isa as isas_of, ops, packed, quant};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use crate::errors;

/// Every quantization type.
#[pyfunction]
pub(crate) fn quant_types(py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
    let list = PyList::empty(py);
    for quant in quant::TYPES {
        let entry = PyDict::new(py);
        entry.set_item("name", quant.name)?;
        entry.set_item("ggml_id", quant.ggml_id)?;
        entry.set_item("block_elems", quant.block_elems)?;
        entry.set_item("block_bytes", quant.block_bytes)?;
        entry.set_item("form", packed::form_for(quant).map(|form| form.name))?;
        list.append(entry)?;
    }
    Ok(list)
}

/// Every packed form.
#[pyfunction]
pub(crate) fn packed_forms() -> Vec<&'static str> {
    packed::FORMS.into_iter().map(|form| form.name).collect()
}

/// Every instruction set and whether this CPU has it.
#[pyfunction]
pub(crate) fn isas() -> Vec<(&'static str, bool)> {
    isas_of::known().collect()
}

/// Name of the instruction set that an engine would use now.
#[pyfunction]
pub(crate) fn isa(py: Python<'_>) -> PyResult<&'static str> {
    errors::map(py, isas_of::choose(None)).map(|isa| isa.name)
}

/// Every op with its fields.
#[pyfunction]
pub(crate) fn op_schema(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let schema = PyDict::new(py);
    for (name, fields) in ops::schema() {
        schema.set_item(name, field_list(py, &fields)?)?;
    }
    Ok(schema)
}

fn field_list<'py>(py: Python<'py>, fields: &[Field]) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for field in fields {
        let entry = PyDict::new(py);
        entry.set_item("name", field.name)?;
        entry.set_item("kind", field.kind)?;
        entry.set_item("optional", field.optional)?;
        entry.set_item("fields", field_list(py, &field.fields)?)?;
        list.append(entry)?;
    }
    Ok(list)
}

/// Values of whole blocks of a type, as the bytes of an f32 array.
#[pyfunction]
pub(crate) fn dequantize<'py>(
    py: Python<'py>,
    type_name: &str,
    data: &[u8],
) -> PyResult<Bound<'py, PyBytes>> {
    let quant = errors::map(py, quant::named(type_name))?;
    if !data.len().is_multiple_of(quant.block_bytes) {
        let error = Error::BadRequest {
            name: "data".into(),
            found: format!("{} bytes", data.len()),
            expected: format!("whole blocks of {} bytes ({type_name})", quant.block_bytes),
        };
        return Err(errors::to_python(py, &error));
    }
    let mut values = vec![0.0; data.len() / quant.block_bytes * quant.block_elems];
    quant.dequantize(data, &mut values);
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_ne_bytes())
        .collect();
    Ok(PyBytes::new(py, &bytes))
}
