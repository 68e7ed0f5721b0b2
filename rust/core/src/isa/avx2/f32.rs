//! AVX2 kernel of the form `f32`: elements widened as they are.
//!
//! Used by the table in `mod.rs` through `float_rows.rs`.
#![expect(
    unsafe_code,
    reason = "intrinsics and raw pointers; the contract is `MatmulFn`'s"
)]

use super::float_rows::Widen;
use crate::packed::f32::F32Element;
use core::arch::x86_64::{__m256, _mm256_loadu_ps};

impl Widen for F32Element {
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn widen(elements: *const u8) -> __m256 {
        // SAFETY: eight elements are readable there, by this function's contract.
        unsafe { _mm256_loadu_ps(elements.cast()) }
    }
}
