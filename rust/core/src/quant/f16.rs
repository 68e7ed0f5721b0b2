//! `F16`: IEEE binary16, little endian, one value a block (16 bits a weight).
//!
//! Decoder only; listed by `quant/mod.rs`.

use super::{Decoder, FloatFormat, QuantType};
use half::f16;

/// The record of `F16`.
pub(super) static TYPE: QuantType = QuantType {
    name: "F16",
    ggml_id: 1,
    block_elems: 1,
    block_bytes: 2,
    decoder: Decoder::Floats {
        format: FloatFormat::F16,
        decode,
    },
};

/// Reads `out.len()` values; every f16 is an f32.
fn decode(bytes: &[u8], out: &mut [f32]) {
    for (value, bytes) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
        *value = f16::from_le_bytes(*bytes).to_f32();
    }
}

#[cfg(test)]
mod tests {
    use super::TYPE;

    #[test]
    fn known_values() {
        let bytes: Vec<u8> = [0x3c00_u16, 0xc000, 0x8000, 0x0001, 0x7bff]
            .into_iter()
            .flat_map(u16::to_le_bytes)
            .collect();
        let mut out = [0.0; 5];
        TYPE.dequantize(&bytes, &mut out);
        let want = [1.0, -2.0, -0.0, 2.0_f32.powi(-24), 65504.0];
        assert_eq!(out.map(f32::to_bits), want.map(f32::to_bits));
    }
}
