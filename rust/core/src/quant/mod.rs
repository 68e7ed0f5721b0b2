//! Quantization types of GGUF files: one file a type, each a decoder to the canonical form.
//!
//! Holds the list of types and [`QuantType`], the record that the packer, the loader and Python's
//! `quant_types()` read. Knows nothing of packed layouts, kernels or instruction sets. To add a
//! type, write `quant/<type>.rs` and add its record to [`TYPES`].

mod bf16;
mod canonical;
mod f16;
mod f32;
mod q4_0;
mod q4_1;
mod q8_0;

pub use canonical::{
    CodeMeaning, CodeSpec, CodedBlock, Content, FloatFormat, MAX_BLOCK_ELEMS, MAX_SUB_BLOCKS,
    SubScales,
};

use crate::error::{Error, Result};

/// Every type there is, in the order of GGML's ids.
pub static TYPES: [&QuantType; 6] = [
    &f32::TYPE,
    &f16::TYPE,
    &q4_0::TYPE,
    &q4_1::TYPE,
    &q8_0::TYPE,
    &bf16::TYPE,
];

/// One quantization type: its names, its block sizes in the file and its decoder.
#[derive(Debug)]
pub struct QuantType {
    /// GGML's name, for example `Q4_1`.
    pub name: &'static str,
    /// GGML's number, as a tensor record of the file holds it.
    pub ggml_id: u32,
    /// Values in a block.
    pub block_elems: usize,
    /// Bytes of a block in the file.
    pub block_bytes: usize,
    /// How blocks are turned into the canonical form.
    pub decoder: Decoder,
}

/// How the bytes of a type are turned into the canonical form.
#[derive(Debug, Clone, Copy)]
pub enum Decoder {
    /// The values are plain numbers; blocks of one value are decoded in runs.
    Floats {
        /// The format that holds every value exactly.
        format: FloatFormat,
        /// Decodes `out.len()` values from as many elements in `bytes`.
        decode: fn(bytes: &[u8], out: &mut [f32]),
    },
    /// The values are codes under scales.
    Codes {
        /// What codes, scales and minima of this type mean.
        spec: CodeSpec,
        /// Decodes one block of `block_bytes` bytes.
        decode: fn(bytes: &[u8], out: &mut CodedBlock),
    },
}

impl QuantType {
    /// What the type's blocks hold, whatever their bit layout.
    #[must_use]
    pub fn content(&self) -> Content {
        match self.decoder {
            Decoder::Floats { format, .. } => Content::Floats(format),
            Decoder::Codes { spec, .. } => Content::Codes(spec),
        }
    }

    /// Bytes of a row of `n_cols` values in the file; `n_cols` is whole blocks.
    #[must_use]
    pub fn row_bytes(&self, n_cols: usize) -> usize {
        debug_assert!(n_cols.is_multiple_of(self.block_elems));
        n_cols / self.block_elems * self.block_bytes
    }

    /// Decodes whole blocks to the values that the `gguf` package's `dequantize` gives, bit for
    /// bit.
    ///
    /// # Shapes
    /// `bytes`: whole blocks; `out: f32[n_blocks * block_elems]`.
    ///
    /// # Panics
    /// If the two lengths are not those of the same number of blocks.
    pub fn dequantize(&self, bytes: &[u8], out: &mut [f32]) {
        assert!(
            out.len().is_multiple_of(self.block_elems),
            "values are whole blocks"
        );
        assert_eq!(
            bytes.len(),
            self.row_bytes(out.len()),
            "bytes and values are as many blocks"
        );
        match self.decoder {
            Decoder::Floats { decode, .. } => decode(bytes, out),
            Decoder::Codes { ref spec, decode } => {
                let mut block = CodedBlock::new();
                let blocks = bytes.chunks_exact(self.block_bytes);
                for (bytes, out) in blocks.zip(out.chunks_exact_mut(self.block_elems)) {
                    decode(bytes, &mut block);
                    block.values(spec, out);
                }
            }
        }
    }
}

/// The type with this GGML number.
#[must_use]
pub fn by_id(ggml_id: u32) -> Option<&'static QuantType> {
    TYPES.into_iter().find(|t| t.ggml_id == ggml_id)
}

/// The type with this GGML name.
#[must_use]
pub fn by_name(name: &str) -> Option<&'static QuantType> {
    TYPES.into_iter().find(|t| t.name == name)
}

/// The type with this GGML name, or an error that lists those there are.
pub fn named(name: &str) -> Result<&'static QuantType> {
    by_name(name).ok_or_else(|| Error::Unsupported {
        kind: "quantization type",
        name: name.to_owned(),
        known: TYPES.map(|quant| quant.name).join(", "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_ids_are_unique_and_found() {
        for (i, t) in TYPES.into_iter().enumerate() {
            assert!(
                TYPES[..i]
                    .iter()
                    .all(|u| u.name != t.name && u.ggml_id < t.ggml_id)
            );
            assert_eq!(by_id(t.ggml_id).map(|u| u.name), Some(t.name));
            assert_eq!(by_name(t.name).map(|u| u.ggml_id), Some(t.ggml_id));
        }
        assert!(by_id(999).is_none());
        assert!(by_name("Q9_9").is_none());
    }

    #[test]
    fn block_sizes_fit_the_canonical_block() {
        for t in TYPES {
            assert!(t.block_elems > 0 && t.block_bytes > 0, "{}", t.name);
            if let Decoder::Codes { spec, .. } = t.decoder {
                assert!(t.block_elems <= MAX_BLOCK_ELEMS, "{}", t.name);
                assert!(
                    t.block_elems.is_multiple_of(spec.sub_block_elems),
                    "{}",
                    t.name
                );
                assert!(
                    t.block_elems / spec.sub_block_elems <= MAX_SUB_BLOCKS,
                    "{}",
                    t.name
                );
            }
        }
    }
}
