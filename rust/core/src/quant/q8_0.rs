//! `Q8_0`: 32 values a block, `value = d * q` (8.5 bits a weight).
//!
//! | bytes | field |
//! | --- | --- |
//! | 0..2 | `d`, f16 |
//! | 2..34 | `q[k]`, i8, all 256 codes legal |
//!
//! Canonical codes are `q + 128`. Decoder only; listed by `quant/mod.rs`.
//!
//! # Source
//! `block_q8_0` in ggml's `ggml-common.h`.

use super::{CodeMeaning, CodeSpec, CodedBlock, Decoder, FloatFormat, QuantType, SubScales};
use half::f16;

const BLOCK_ELEMS: usize = 32;
const BLOCK_BYTES: usize = 34;
const _: () = assert!(BLOCK_BYTES == 2 + BLOCK_ELEMS);

/// The record of `Q8_0`.
pub(super) static TYPE: QuantType = QuantType {
    name: "Q8_0",
    ggml_id: 8,
    block_elems: BLOCK_ELEMS,
    block_bytes: BLOCK_BYTES,
    decoder: Decoder::Codes {
        spec: CodeSpec {
            code_bits: 8,
            meaning: CodeMeaning::Offset(128),
            sub_block_elems: 32,
            sub_scales: SubScales::Float,
            scale_format: FloatFormat::F16,
            has_minima: false,
        },
        decode,
    },
};

/// Decodes one block.
fn decode(bytes: &[u8], out: &mut CodedBlock) {
    out.scales[0] = f16::from_le_bytes([bytes[0], bytes[1]]).to_f32_const();
    for (code, &q) in out.codes[..BLOCK_ELEMS]
        .iter_mut()
        .zip(&bytes[2..BLOCK_BYTES])
    {
        // Adding 128 to an i8 flips its top bit.
        *code = q ^ 0x80;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hand_made_block() {
        let mut bytes = [0_u8; BLOCK_BYTES];
        bytes[..2].copy_from_slice(&0xb800_u16.to_le_bytes()); // -0.5
        bytes[2..6].copy_from_slice(&[0x80, 0x7f, 0x00, 0xff]); // -128, 127, 0, -1
        let mut out = [0.0_f32; BLOCK_ELEMS];
        TYPE.dequantize(&bytes, &mut out);
        let want = [64.0_f32, -63.5, -0.0, 0.5, -0.0];
        assert_eq!(
            out[..5].iter().map(|v| v.to_bits()).collect::<Vec<_>>(),
            want.map(f32::to_bits)
        );
    }
}
