//! AVX2 kernel of the form `code8`.
//!
//! With `w = code - 128`, `|w|` is the unsigned operand of `maddubs` and `q` with the sign of `w`
//! the signed one: all 256 codes are legal, -128 too. A pair's sum is at most 2 * 128 * 127 =
//! 32,512, so each product is widened before the next is added. Used by the table in `mod.rs`.
#![expect(
    unsafe_code,
    reason = "intrinsics and raw pointers; the contract is `MatmulFn`'s"
)]

use super::blocks::{BlockColumns, BlockDots};
use super::tile;
use crate::packed::code8::Code8;
use core::arch::x86_64::{
    __m256i, _mm256_abs_epi8, _mm256_add_epi32, _mm256_loadu_si256, _mm256_madd_epi16,
    _mm256_maddubs_epi16, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_setzero_si256,
    _mm256_sign_epi8, _mm256_xor_si256,
};

/// Steps of 4 codes a row in a block.
const STEPS: usize = 8;

impl BlockDots for Code8 {
    const MAX_COLUMNS: usize = 4;

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn dots<const C: usize>(codes: *const u8, x: BlockColumns) -> [__m256i; C] {
        let (top_bit, ones) = (_mm256_set1_epi8(i8::MIN), _mm256_set1_epi16(1));
        let mut dots = [_mm256_setzero_si256(); C];
        for s in 0..STEPS {
            // SAFETY: a block has `STEPS` steps of 32 bytes, by this function's contract.
            let codes = unsafe { _mm256_loadu_si256(codes.add(32 * s).cast()) };
            let w = _mm256_xor_si256(codes, top_bit);
            let magnitude = _mm256_abs_epi8(w);
            for (c, dot) in dots.iter_mut().enumerate() {
                // SAFETY: columns `4s .. 4s + 4` lie in the block's 32.
                let q = unsafe { tile::broadcast4(x.q.add(c * x.q_stride + 4 * s)) };
                let products = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(q, w));
                *dot = _mm256_add_epi32(*dot, _mm256_madd_epi16(products, ones));
            }
        }
        dots
    }
}
