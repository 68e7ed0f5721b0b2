//! `BF16`: the upper half of an IEEE binary32, little endian, one value a block (16 bits a weight).
//!
//! Decoder only; listed by `quant/mod.rs`.

use super::{Decoder, FloatFormat, QuantType};

/// The record of `BF16`.
pub(super) static TYPE: QuantType = QuantType {
    name: "BF16",
    ggml_id: 30,
    block_elems: 1,
    block_bytes: 2,
    decoder: Decoder::Floats {
        format: FloatFormat::Bf16,
        decode,
    },
};

/// Reads `out.len()` values; every bf16 is an f32.
fn decode(bytes: &[u8], out: &mut [f32]) {
    for (value, bytes) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
        *value = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
    }
}

#[cfg(test)]
mod tests {
    use super::TYPE;

    #[test]
    fn known_values() {
        let bytes: Vec<u8> = [0x3f80_u16, 0xc000, 0x8000, 0x0001, 0x7f7f]
            .into_iter()
            .flat_map(u16::to_le_bytes)
            .collect();
        let mut out = [0.0; 5];
        TYPE.dequantize(&bytes, &mut out);
        let want = [
            1.0,
            -2.0,
            -0.0,
            f32::from_bits(0x0001_0000),
            f32::from_bits(0x7f7f_0000),
        ];
        assert_eq!(out.map(f32::to_bits), want.map(f32::to_bits));
    }
}
