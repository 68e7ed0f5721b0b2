//! AVX2 with FMA and F16C: panels of 8 rows, one row a 32-bit lane.
//!
//! A file for each packed form; this one is the table. Knows no GGUF type. Used by `isa/mod.rs`.

use super::Isa;

/// The instruction set.
pub(super) static ISA: Isa = Isa {
    name: "avx2",
    panel_rows: 8,
    detect: || {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
    },
    kernels: &[],
    vector: &super::vector::AVX2,
};
