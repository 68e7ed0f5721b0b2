//! The canonical form: what a block of any quantized type says, without its bit layout.
//!
//! A block is small unsigned codes, what a code means, scales over sub-blocks and, for some
//! types, minima. The value of element `k` in sub-block `s = k / sub_block_elems` is
//!
//! ```text
//! scale(s) * meaning(code[k])                    without minima
//! scale(s) * meaning(code[k]) + minimum(s)       with minima
//! ```
//!
//! in f32, every step rounded, where `scale(s)` and `minimum(s)` are floats of the block or a
//! float of the whole block times a small integer. That is exactly what the `gguf` package
//! computes, so nothing is lost. Types that subtract their minimum store it negated.
//!
//! Knows nothing of bytes in a file or in a panel. Filled by `quant/<type>.rs`, read by the
//! packers and by `QuantType::dequantize`.

/// Most values that a block of any type holds.
pub const MAX_BLOCK_ELEMS: usize = 256;

/// Most sub-blocks of a block: sub-blocks hold at least 8 values.
pub const MAX_SUB_BLOCKS: usize = MAX_BLOCK_ELEMS / 8;

/// A float format that holds certain values exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloatFormat {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// The upper half of an IEEE binary32.
    Bf16,
}

/// What a code stands for before it is scaled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodeMeaning {
    /// The code less this number.
    Offset(u8),
    /// The code's entry in this table (at least `2^code_bits` long).
    Table(&'static [i8]),
}

/// How the scales (and minima) of sub-blocks are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubScales {
    /// One float a sub-block.
    Float,
    /// One float a block times a small integer a sub-block.
    Integer,
}

/// What the codes, scales and minima of a type mean: the same for each of its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodeSpec {
    /// Bits that a code needs, 1 to 8.
    pub code_bits: u8,
    /// What a code stands for.
    pub meaning: CodeMeaning,
    /// Values that share a scale: 8, 16 or 32.
    pub sub_block_elems: usize,
    /// How sub-block scales are given.
    pub sub_scales: SubScales,
    /// The format that holds the float scales and minima exactly.
    pub scale_format: FloatFormat,
    /// Whether a minimum is added.
    pub has_minima: bool,
}

/// What the blocks of a type hold: the packer's key from types to packed forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Plain numbers, each held exactly by this format.
    Floats(FloatFormat),
    /// Codes under scales.
    Codes(CodeSpec),
}

/// One block in canonical form; which fields count is told by the type's [`CodeSpec`].
#[derive(Debug, Clone)]
pub struct CodedBlock {
    /// A code a value.
    pub codes: [u8; MAX_BLOCK_ELEMS],
    /// Scales: one a sub-block, or only the first, the super-scale, over `int_scales`.
    pub scales: [f32; MAX_SUB_BLOCKS],
    /// Minima, given like `scales`.
    pub minima: [f32; MAX_SUB_BLOCKS],
    /// Integer scales of sub-blocks, under `scales[0]`.
    pub int_scales: [i8; MAX_SUB_BLOCKS],
    /// Integer minima of sub-blocks, under `minima[0]`.
    pub int_minima: [u8; MAX_SUB_BLOCKS],
}

impl CodedBlock {
    /// A block of zeros, to be filled by a decoder.
    #[must_use]
    pub fn new() -> Self {
        Self {
            codes: [0; MAX_BLOCK_ELEMS],
            scales: [0.0; MAX_SUB_BLOCKS],
            minima: [0.0; MAX_SUB_BLOCKS],
            int_scales: [0; MAX_SUB_BLOCKS],
            int_minima: [0; MAX_SUB_BLOCKS],
        }
    }

    /// Whether every float scale and minimum in use is a finite number.
    ///
    /// # Args
    /// `n_elems`: values in the block.
    #[must_use]
    pub fn is_finite(&self, spec: &CodeSpec, n_elems: usize) -> bool {
        let n_floats = match spec.sub_scales {
            SubScales::Float => n_elems / spec.sub_block_elems,
            SubScales::Integer => 1,
        };
        let finite = |floats: &[f32]| floats[..n_floats].iter().all(|f| f.is_finite());
        finite(&self.scales) && (!spec.has_minima || finite(&self.minima))
    }

    /// Writes the values of the block's first `out.len()` elements.
    ///
    /// # Source
    /// `dequantize_blocks` of each type in the `gguf` package's `quants.py`.
    pub fn values(&self, spec: &CodeSpec, out: &mut [f32]) {
        for (s, out) in out.chunks_mut(spec.sub_block_elems).enumerate() {
            let (scale, minimum) = match spec.sub_scales {
                SubScales::Float => (self.scales[s], self.minima[s]),
                SubScales::Integer => (
                    self.scales[0] * f32::from(self.int_scales[s]),
                    self.minima[0] * f32::from(self.int_minima[s]),
                ),
            };
            let codes = &self.codes[s * spec.sub_block_elems..];
            for (value, &code) in out.iter_mut().zip(codes) {
                *value = scale * meaning(spec.meaning, code);
                // Adding a zero would turn -0.0 into 0.0.
                if spec.has_minima {
                    *value += minimum;
                }
            }
        }
    }
}

impl Default for CodedBlock {
    fn default() -> Self {
        Self::new()
    }
}

/// What one code stands for.
fn meaning(meaning: CodeMeaning, code: u8) -> f32 {
    match meaning {
        CodeMeaning::Offset(offset) => f32::from(i16::from(code) - i16::from(offset)),
        CodeMeaning::Table(table) => f32::from(table[usize::from(code)]),
    }
}

/// Splits bytes into codes: low nibbles first, then high ones.
///
/// # Shapes
/// `bytes: u8[n]`, `codes: u8[2 * n]`.
pub(super) fn split_nibbles(bytes: &[u8], codes: &mut [u8]) {
    let (low, high) = codes.split_at_mut(bytes.len());
    for ((low, high), &byte) in low.iter_mut().zip(high).zip(bytes) {
        (*low, *high) = (byte & 0x0f, byte >> 4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two sub-blocks of 8 with integer scales and minima, in the manner of the K-quants.
    #[test]
    fn integer_scales_multiply_the_super_scale() {
        let spec = CodeSpec {
            code_bits: 4,
            meaning: CodeMeaning::Offset(0),
            sub_block_elems: 8,
            sub_scales: SubScales::Integer,
            scale_format: FloatFormat::F16,
            has_minima: true,
        };
        let mut block = CodedBlock::new();
        block.codes[..16].copy_from_slice(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
        block.scales[0] = 0.5;
        block.minima[0] = -0.25;
        block.int_scales[..2].copy_from_slice(&[3, -2]);
        block.int_minima[..2].copy_from_slice(&[1, 63]);
        let mut out = [0.0; 16];
        block.values(&spec, &mut out);
        assert_eq!(out[..3], [-0.25, 1.25, 2.75]);
        assert_eq!(out[8..10], [-8.0 - 15.75, -9.0 - 15.75]);
        assert!(block.is_finite(&spec, 16));
        block.scales[1] = f32::NAN;
        assert!(block.is_finite(&spec, 16), "only the super-scale is in use");
        block.minima[0] = f32::INFINITY;
        assert!(!block.is_finite(&spec, 16));
    }

    #[test]
    fn table_types_look_codes_up() {
        static TABLE: [i8; 16] = [
            -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
        ];
        let spec = CodeSpec {
            code_bits: 4,
            meaning: CodeMeaning::Table(&TABLE),
            sub_block_elems: 32,
            sub_scales: SubScales::Float,
            scale_format: FloatFormat::F16,
            has_minima: false,
        };
        let mut block = CodedBlock::new();
        block.codes[..2].copy_from_slice(&[15, 0]);
        block.scales[0] = -2.0;
        let mut out = [0.0; 2];
        block.values(&spec, &mut out);
        assert_eq!(out.map(f32::to_bits), [-226.0_f32, 254.0].map(f32::to_bits));
    }
}
