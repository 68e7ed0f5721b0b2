//! Form `f16`: IEEE binary16 rows, in their own order.
//!
//! The layout is that of `float_rows.rs`; nothing is rounded. Listed by `packed/mod.rs`.

use super::float_rows::{self, Element};
use super::{ActivationKind, PackedForm};
use crate::quant::{Content, FloatFormat};
use half::f16;

/// The form.
pub static FORM: PackedForm = PackedForm {
    name: "f16",
    content: Content::Floats(FloatFormat::F16),
    activation: ActivationKind::F32,
    panel_bytes: float_rows::panel_bytes::<F16Element>,
    pack_panel: float_rows::pack_panel::<F16Element>,
    unpack_row: float_rows::unpack_row::<F16Element>,
    matmul: float_rows::matmul::<F16Element>,
};

/// An element of this form.
pub(crate) struct F16Element;

impl Element for F16Element {
    const BYTES: usize = 2;
    const FORM: &'static PackedForm = &FORM;

    fn read(bytes: &[u8]) -> f32 {
        f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
    }

    fn is_finite(bytes: &[u8]) -> bool {
        u16::from_le_bytes([bytes[0], bytes[1]]) & 0x7c00 != 0x7c00
    }
}
