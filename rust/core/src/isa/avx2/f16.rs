//! AVX2 kernel of the form `f16`: elements widened by F16C.
//!
//! Used by the table in `mod.rs` through `float_rows.rs`.
#![expect(
    unsafe_code,
    reason = "intrinsics and raw pointers; the contract is `MatmulFn`'s"
)]

use super::float_rows::Widen;
use crate::packed::f16::F16Element;
use core::arch::x86_64::{__m256, _mm_loadu_si128, _mm256_cvtph_ps};

impl Widen for F16Element {
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn widen(elements: *const u8) -> __m256 {
        // SAFETY: eight elements are readable there, by this function's contract.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(elements.cast())) }
    }
}
