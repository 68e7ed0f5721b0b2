//! Form `f32`: IEEE binary32 rows, in their own order.
//!
//! The layout is that of `float_rows.rs`; nothing is rounded. Listed by `packed/mod.rs`.

use super::float_rows::{self, Element};
use super::{ActivationKind, PackedForm};
use crate::quant::{Content, FloatFormat};

/// The form.
pub static FORM: PackedForm = PackedForm {
    name: "f32",
    content: Content::Floats(FloatFormat::F32),
    activation: ActivationKind::F32,
    panel_bytes: float_rows::panel_bytes::<F32Element>,
    pack_panel: float_rows::pack_panel::<F32Element>,
    unpack_row: float_rows::unpack_row::<F32Element>,
    matmul: float_rows::matmul::<F32Element>,
};

/// An element of this form.
pub(crate) struct F32Element;

impl Element for F32Element {
    const BYTES: usize = 4;
    const FORM: &'static PackedForm = &FORM;

    fn read(bytes: &[u8]) -> f32 {
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    fn is_finite(bytes: &[u8]) -> bool {
        Self::read(bytes).is_finite()
    }
}
