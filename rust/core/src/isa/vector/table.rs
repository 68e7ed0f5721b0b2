//! The table of vector ops, one instance for each instruction set.
//!
//! A new op is a body in its own file and one entry in the list below. Every length is checked by
//! the bodies, which panic on operands that don't fit: a program is verified before it runs.
#![expect(
    unsafe_code,
    reason = "functions compiled for an instruction set are unsafe to call"
)]

#[cfg(target_arch = "x86_64")]
use super::super::lanes::Avx2Lanes;
use super::super::lanes::ScalarLanes;
use super::{AttendBlock, CacheMut, Partial, PartialRef};
use super::{attention, cache, elementwise, norm, partial, quantize, rope};

/// Declares the table, its methods, and the body of each op for each instruction set.
macro_rules! vector_ops {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)? = $body:path;
    )*) => {
        /// Vector ops of one instruction set.
        ///
        /// A table is reached only where its instructions were detected, so calling it is safe.
        #[derive(Debug)]
        pub struct VectorOps {
            $($name: unsafe fn($($type),*) $(-> $result)?,)*
        }

        impl VectorOps {
            $(
                $(#[$doc])*
                #[inline]
                pub fn $name(&self, $($arg: $type),*) $(-> $result)? {
                    // SAFETY: SCALAR needs nothing; any other table is visible to `isa` only,
                    // which hands it out after it has detected the instruction set.
                    unsafe { (self.$name)($($arg),*) }
                }
            )*
        }

        /// Bodies in plain Rust.
        mod scalar {
            use super::*;
            $(
                pub(super) fn $name($($arg: $type),*) $(-> $result)? {
                    $body(ScalarLanes, $($arg),*)
                }
            )*
        }

        /// Bodies compiled for AVX2, FMA and F16C.
        #[cfg(target_arch = "x86_64")]
        mod for_avx2 {
            use super::*;
            $(
                #[target_feature(enable = "avx2,fma,f16c")]
                pub(super) fn $name($($arg: $type),*) $(-> $result)? {
                    // SAFETY: whoever called this function vouched for its target features.
                    $body(unsafe { Avx2Lanes::new() }, $($arg),*)
                }
            )*
        }

        /// The reference, on every CPU.
        pub static SCALAR: VectorOps = VectorOps { $($name: scalar::$name,)* };

        /// To be handed out by `isa` alone, and only where the instructions were detected.
        #[cfg(target_arch = "x86_64")]
        pub(in crate::isa) static AVX2: VectorOps = VectorOps { $($name: for_avx2::$name,)* };
    };
}

/// The table for AVX2, FMA and F16C, where the CPU has them.
#[cfg(target_arch = "x86_64")]
#[must_use]
pub fn avx2() -> Option<&'static VectorOps> {
    Avx2Lanes::detected().then_some(&AVX2)
}

vector_ops! {
    /// Quantizes rows to 8 bits, one scale for 32 elements.
    ///
    /// For each block: `scale = max|x| / 127` in `f32`, `q = round(x * (127 / max|x|))` with ties
    /// to even, in [-127, 127], and `sum`, the sum of its codes. A block of zeros (or of nothing above
    /// 3.7e-37) has scale 0. A block with an infinity or a NaN has scale NaN and zero codes.
    ///
    /// Shapes: `x`, `q`: `[n]`, n a multiple of 32; `scale`, `sum`: `[n / 32]`.
    fn quantize_q8(x: &[f32], q: &mut [i8], scale: &mut [f32], sum: &mut [i32])
        = quantize::quantize_q8;

    /// `out = x / sqrt(mean(x^2) + eps) * weight` over one row; the mean in double precision.
    ///
    /// Shapes: `x`, `weight`, `out`: `[n]`.
    fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) = norm::rms_norm;

    /// `out = a + b`.
    fn add(a: &[f32], b: &[f32], out: &mut [f32]) = elementwise::add;

    /// `x = x + y`.
    fn add_assign(x: &mut [f32], y: &[f32]) = elementwise::add_assign;

    /// `x = x * factor`.
    fn scale(x: &mut [f32], factor: f32) = elementwise::scale;

    /// `out = silu(gate) * up`, where `silu(x) = x / (1 + e^-x)`.
    fn swiglu(gate: &[f32], up: &[f32], out: &mut [f32]) = elementwise::swiglu;

    /// Whether no element is infinite or NaN.
    fn all_finite(x: &[f32]) -> bool = elementwise::all_finite;

    /// Rotates dimensions (2i, 2i + 1) of one head by angle i; further dimensions stay.
    ///
    /// Shapes: `x`: `[n_dims]`; `cos_sin`: `[n_rot / 2][2]`, `n_rot` even, at most `n_dims`.
    fn rope_interleaved(x: &mut [f32], cos_sin: &[f32]) = rope::rope_interleaved;

    /// Rotates dimensions `(i, i + n_rot / 2)` of one head by angle i; further dimensions stay.
    ///
    /// Shapes: `x`: `[n_dims]`; `cos_sin`: `[n_rot / 2][2]`, `n_rot` even, at most `n_dims`.
    fn rope_neox(x: &mut [f32], cos_sin: &[f32]) = rope::rope_neox;

    /// Writes the key of one position (0 to 63) of one head to a block, transposed.
    ///
    /// Shapes: `k`: `[k_dim]`; `block`: `[k_dim][64]`.
    fn store_k(k: &[f32], block: &mut CacheMut<'_>, slot: usize) = cache::store_k;

    /// Writes the value of one position (0 to 63) of one head to a block.
    ///
    /// Shapes: `v`: `[v_dim]`; `block`: `[64][v_dim]`.
    fn store_v(v: &[f32], block: &mut CacheMut<'_>, slot: usize) = cache::store_v;

    /// Continues the softmax of m rows over the visible positions of one block.
    ///
    /// A row gets the same bits alone and among others; invisible positions don't matter, and a
    /// row that sees none is left alone. `scratch`: [`super::attend_scratch_elems`] floats.
    fn attend_block(block: &AttendBlock<'_>, partial: &mut Partial<'_>, scratch: &mut [f32])
        = attention::attend_block;

    /// Joins the result of a later chunk of positions into that of all earlier ones.
    ///
    /// An empty chunk changes nothing; an empty total takes the chunk as it is.
    fn merge_partial(chunk: PartialRef<'_>, total: &mut Partial<'_>) = partial::merge_partial;

    /// `out = acc / sum` for each row. A row that saw no position gives NaN.
    ///
    /// Shapes: `out`: `[m][v_dim]`.
    fn finish(total: PartialRef<'_>, out: &mut [f32]) = partial::finish;
}
