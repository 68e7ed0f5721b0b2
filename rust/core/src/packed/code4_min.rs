//! Form `code4_min`: 4-bit codes with an f16 scale and an f16 minimum per 32 values.
//!
//! Byte map of a panel of `R` rows, for each block (`interleaved.rs` has the steps):
//!
//! | bytes | field |
//! | --- | --- |
//! | `0 .. 2R` | scales, f16[R] |
//! | `2R .. 4R` | minima, f16[R] |
//! | `4R .. 20R` | codes: 4 steps |
//!
//! 160 bytes for 8 rows × 32 columns, as many as in the file. Holds `Q4_1`.

use super::interleaved::{self, Blocks};
use super::{ActivationKind, PackedForm};
use crate::quant::{CodeMeaning, CodeSpec, Content, FloatFormat, SubScales};

/// The form.
pub static FORM: PackedForm = PackedForm {
    name: "code4_min",
    content: Content::Codes(SPEC),
    activation: ActivationKind::Q8,
    panel_bytes: interleaved::panel_bytes::<Code4Min>,
    pack_panel: interleaved::pack_panel::<Code4Min>,
    unpack_row: interleaved::unpack_row::<Code4Min>,
    matmul: interleaved::matmul::<Code4Min>,
};

/// What a block holds.
const SPEC: CodeSpec = CodeSpec {
    code_bits: 4,
    meaning: CodeMeaning::Offset(0),
    sub_block_elems: 32,
    sub_scales: SubScales::Float,
    scale_format: FloatFormat::F16,
    has_minima: true,
};

/// The blocks of this form.
pub(crate) struct Code4Min;

impl Blocks for Code4Min {
    const SPEC: CodeSpec = SPEC;
    const FORM: &'static PackedForm = &FORM;
}
