//! AVX2 kernel of the form `bf16`: elements widened by a shift to the upper half.
//!
//! Used by the table in `mod.rs` through `float_rows.rs`.
#![expect(
    unsafe_code,
    reason = "intrinsics and raw pointers; the contract is `MatmulFn`'s"
)]

use super::float_rows::Widen;
use crate::packed::bf16::Bf16Element;
use core::arch::x86_64::{
    __m256, _mm_loadu_si128, _mm256_castsi256_ps, _mm256_cvtepu16_epi32, _mm256_slli_epi32,
};

impl Widen for Bf16Element {
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn widen(elements: *const u8) -> __m256 {
        // SAFETY: eight elements are readable there, by this function's contract.
        let elements = unsafe { _mm_loadu_si128(elements.cast()) };
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(elements)))
    }
}
