//! Packed forms: how weights lie in node memory once they are loaded.
//!
//! A *panel* is `panel_rows` consecutive rows of a tensor with all their columns; a tensor is
//! whole panels, the last one padded with zero rows. A form is the layout of a panel, its packer
//! from the canonical form, its unpacker and its scalar kernel, the reference for every
//! instruction set. Knows no GGUF type by name: a form takes each type whose canonical content
//! is the form's own. To add a form, write `packed/<form>.rs` and add it to [`FORMS`].

pub mod bf16;
pub mod code4;
pub mod code4_min;
pub mod code8;
pub mod f16;
pub mod f32;
mod float_rows;
mod interleaved;
mod kernel;

pub use kernel::{Activations, MatmulFn, OutTile, Q8Activations};

pub(crate) use float_rows::{Element, LANES, tail_of};
pub(crate) use interleaved::{Blocks, place};
pub(crate) use kernel::debug_check_operands;

use crate::quant::{Content, QuantType};

/// Most rows of a panel, on any instruction set.
pub const MAX_PANEL_ROWS: usize = 16;

/// Values that share an activation scale.
pub const Q8_BLOCK_ELEMS: usize = 32;

/// Every form there is.
pub static FORMS: [&PackedForm; 6] = [
    &f32::FORM,
    &f16::FORM,
    &bf16::FORM,
    &code8::FORM,
    &code4::FORM,
    &code4_min::FORM,
];

/// What a form's kernels multiply the weights with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActivationKind {
    /// The activations as they are.
    F32,
    /// Activations rounded to 8 bits with a scale per 32 values.
    Q8,
}

/// A number in the weights that no product can be made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadScale {
    /// Row within the panel.
    pub row: usize,
    /// First column of the block (the column itself for float types).
    pub col: usize,
}

/// One packed form.
#[derive(Debug)]
pub struct PackedForm {
    /// Name, as `packed_forms()` and the benchmark show it.
    pub name: &'static str,
    /// The canonical content that it holds.
    pub content: Content,
    /// What its kernels take.
    pub activation: ActivationKind,
    /// Bytes of a panel of `(panel_rows, n_cols)`: a multiple of 32.
    pub panel_bytes: fn(panel_rows: usize, n_cols: usize) -> usize,
    /// Packs the first rows of a panel; see [`PackFn`].
    pub pack_panel: PackFn,
    /// Writes the exact decoded values of one row; see [`UnpackFn`].
    pub unpack_row: UnpackFn,
    /// The scalar kernel.
    pub matmul: MatmulFn,
}

/// Packs `n_rows <= panel_rows` file rows of `n_cols` values into one panel; the rows that are
/// not there become zeros. Refuses scales, minima and float weights that are not finite.
///
/// # Shapes
/// `file_rows`: `n_rows` rows of the type, back to back; `dst`: `panel_bytes(panel_rows, n_cols)`.
///
/// # Panics
/// If a length is wrong or the form does not hold the type: faults of the caller.
pub type PackFn = fn(
    quant: &QuantType,
    file_rows: &[u8],
    n_rows: usize,
    n_cols: usize,
    panel_rows: usize,
    dst: &mut [u8],
) -> Result<(), BadScale>;

/// Writes the values of row `row` of a panel, equal to those decoded from the file.
///
/// # Shapes
/// `panel`: `panel_bytes(panel_rows, n_cols)` bytes; `out: f32[n_cols]`.
///
/// # Panics
/// If a length is wrong or `row >= panel_rows`.
pub type UnpackFn = fn(panel: &[u8], panel_rows: usize, n_cols: usize, row: usize, out: &mut [f32]);

/// The form that holds this type, if there is one.
#[must_use]
pub fn form_for(quant: &QuantType) -> Option<&'static PackedForm> {
    FORMS
        .into_iter()
        .find(|form| form.content == quant.content())
}

/// The form of this name.
#[must_use]
pub fn by_name(name: &str) -> Option<&'static PackedForm> {
    FORMS.into_iter().find(|form| form.name == name)
}
