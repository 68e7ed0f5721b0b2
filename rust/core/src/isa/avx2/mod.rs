//! AVX2 with FMA and F16C: panels of 8 rows, one row a 32-bit lane.
//!
//! A file for each packed form; this one is the table. Knows no GGUF type. Used by `isa/mod.rs`.

mod bf16;
mod blocks;
mod code4;
mod code4_min;
mod code8;
mod f16;
mod f32;
mod float_rows;
mod tile;

use super::{Isa, Kernel};
use crate::packed::{self, code4::Code4, code4_min::Code4Min, code8::Code8};
use crate::packed::{bf16::Bf16Element, f16::F16Element, f32::F32Element};

/// The instruction set.
pub(super) static ISA: Isa = Isa {
    name: "avx2",
    panel_rows: tile::ROWS,
    detect: || {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
    },
    kernels: &[
        Kernel {
            form: &packed::f32::FORM,
            matmul: float_rows::matmul::<F32Element>,
        },
        Kernel {
            form: &packed::f16::FORM,
            matmul: float_rows::matmul::<F16Element>,
        },
        Kernel {
            form: &packed::bf16::FORM,
            matmul: float_rows::matmul::<Bf16Element>,
        },
        Kernel {
            form: &packed::code8::FORM,
            matmul: blocks::matmul::<Code8>,
        },
        Kernel {
            form: &packed::code4::FORM,
            matmul: blocks::matmul::<Code4>,
        },
        Kernel {
            form: &packed::code4_min::FORM,
            matmul: blocks::matmul::<Code4Min>,
        },
    ],
    vector: &super::vector::AVX2,
};
