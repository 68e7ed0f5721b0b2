//! `Q4_0`: 32 values a block, `value = d * (q - 8)` (4.5 bits a weight).
//!
//! | bytes | field |
//! | --- | --- |
//! | 0..2 | `d`, f16 |
//! | 2..18 | byte `j`: `q[j]` in the low nibble, `q[j + 16]` in the high one |
//!
//! Canonical codes are `q`. Decoder only; listed by `quant/mod.rs`.
//!
//! # Source
//! `block_q4_0` in ggml's `ggml-common.h`.

use super::canonical::split_nibbles;
use super::{CodeMeaning, CodeSpec, CodedBlock, Decoder, FloatFormat, QuantType, SubScales};
use half::f16;

const BLOCK_ELEMS: usize = 32;
const BLOCK_BYTES: usize = 18;
const _: () = assert!(BLOCK_BYTES == 2 + BLOCK_ELEMS / 2);

/// The record of `Q4_0`.
pub(super) static TYPE: QuantType = QuantType {
    name: "Q4_0",
    ggml_id: 2,
    block_elems: BLOCK_ELEMS,
    block_bytes: BLOCK_BYTES,
    decoder: Decoder::Codes {
        spec: CodeSpec {
            code_bits: 4,
            meaning: CodeMeaning::Offset(8),
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
    split_nibbles(&bytes[2..BLOCK_BYTES], &mut out.codes[..BLOCK_ELEMS]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hand_made_block() {
        let mut bytes = [0x88_u8; BLOCK_BYTES];
        bytes[..2].copy_from_slice(&0x3800_u16.to_le_bytes()); // 0.5
        bytes[2] = 0xf0; // q[0] = 0, q[16] = 15
        bytes[17] = 0x19; // q[15] = 9, q[31] = 1
        let mut want = [0.0_f32; BLOCK_ELEMS];
        (want[0], want[16], want[15], want[31]) = (-4.0, 3.5, 0.5, -3.5);
        let mut out = [1.0_f32; BLOCK_ELEMS];
        TYPE.dequantize(&bytes, &mut out);
        assert_eq!(out.map(f32::to_bits), want.map(f32::to_bits));
    }
}
