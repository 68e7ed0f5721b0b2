//! `F32`: IEEE binary32, little endian, one value a block (32 bits a weight).
//!
//! Decoder only; listed by `quant/mod.rs`.

use super::{Decoder, FloatFormat, QuantType};

/// The record of `F32`.
pub(super) static TYPE: QuantType = QuantType {
    name: "F32",
    ggml_id: 0,
    block_elems: 1,
    block_bytes: 4,
    decoder: Decoder::Floats {
        format: FloatFormat::F32,
        decode,
    },
};

/// Reads `out.len()` values.
fn decode(bytes: &[u8], out: &mut [f32]) {
    for (value, bytes) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *value = f32::from_le_bytes(*bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::TYPE;

    #[test]
    fn bits_are_kept() {
        let values = [1.5_f32, -0.0, f32::MIN_POSITIVE / 8.0, f32::MAX];
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let mut out = [0.0; 4];
        TYPE.dequantize(&bytes, &mut out);
        assert_eq!(out.map(f32::to_bits), values.map(f32::to_bits));
    }
}
