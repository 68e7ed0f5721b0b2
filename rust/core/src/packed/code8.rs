//! Form `code8`: 8-bit codes with offset 128 and an f16 scale per 32 values.
//!
//! Byte map of a panel of `R` rows, for each pair of blocks (`interleaved.rs` has the steps):
//!
//! | bytes | field |
//! | --- | --- |
//! | `0 .. 2R` | scales of the first block, f16[R] |
//! | `2R .. 4R` | scales of the second block, f16[R]; zeros if there is none |
//! | `4R .. 36R` | codes of the first block: 8 steps |
//! | `36R .. 68R` | codes of the second block: 8 steps; absent if there is none |
//!
//! 544 bytes for 8 rows × 64 columns, as many as in the file. Holds `Q8_0`.

use super::interleaved::{self, Blocks};
use super::{ActivationKind, PackedForm};
use crate::quant::{CodeMeaning, CodeSpec, Content, FloatFormat, SubScales};

/// The form.
pub static FORM: PackedForm = PackedForm {
    name: "code8",
    content: Content::Codes(SPEC),
    activation: ActivationKind::Q8,
    panel_bytes: interleaved::panel_bytes::<Code8>,
    pack_panel: interleaved::pack_panel::<Code8>,
    unpack_row: interleaved::unpack_row::<Code8>,
    matmul: interleaved::matmul::<Code8>,
};

/// What a block holds.
const SPEC: CodeSpec = CodeSpec {
    code_bits: 8,
    meaning: CodeMeaning::Offset(128),
    sub_block_elems: 32,
    sub_scales: SubScales::Float,
    scale_format: FloatFormat::F16,
    has_minima: false,
};

/// The blocks of this form.
pub(crate) struct Code8;

impl Blocks for Code8 {
    const SPEC: CodeSpec = SPEC;
    const FORM: &'static PackedForm = &FORM;
}
