//! AVX2 kernel of the form `code4`, and the nibble products that `code4_min` shares.
//!
//! Codes are the unsigned operand of `maddubs`. The eight products of a block are added in 16 bits
//! (at most 8 * 2 * 15 * 127 = 30,480) and widened once. Used by the table in `mod.rs`.
#![expect(
    unsafe_code,
    reason = "intrinsics and raw pointers; the contract is `MatmulFn`'s"
)]

use super::blocks::{BlockColumns, BlockDots};
use super::tile;
use crate::packed::code4::Code4;
use core::arch::x86_64::{
    __m256i, _mm256_add_epi16, _mm256_and_si256, _mm256_loadu_si256, _mm256_madd_epi16,
    _mm256_maddubs_epi16, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_epi32,
    _mm256_setzero_si256, _mm256_slli_epi32, _mm256_srli_epi16, _mm256_sub_epi32,
};

/// Steps of 4 low and 4 high nibbles a row in a block.
const STEPS: usize = 4;

impl BlockDots for Code4 {
    const MAX_COLUMNS: usize = 4;

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn dots<const C: usize>(codes: *const u8, x: BlockColumns) -> [__m256i; C] {
        // SAFETY: the same contract.
        let mut dots = unsafe { nibble_dots::<C>(codes, x) };
        for (c, dot) in dots.iter_mut().enumerate() {
            // SAFETY: column `c < C` has a sum.
            let sum = _mm256_set1_epi32(unsafe { *x.sum.add(c * x.block_stride) });
            *dot = _mm256_sub_epi32(*dot, _mm256_slli_epi32::<3>(sum));
        }
        dots
    }
}

/// `Σ code * q` over one block of 4-bit codes.
///
/// # Safety
/// As for `BlockDots::dots`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) unsafe fn nibble_dots<const C: usize>(
    codes: *const u8,
    x: BlockColumns,
) -> [__m256i; C] {
    let nibble = _mm256_set1_epi8(0x0f);
    let mut sums = [_mm256_setzero_si256(); C];
    for s in 0..STEPS {
        // SAFETY: a block has `STEPS` steps of 32 bytes, by this function's contract.
        let bytes = unsafe { _mm256_loadu_si256(codes.add(32 * s).cast()) };
        let low = _mm256_and_si256(bytes, nibble);
        let high = _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), nibble);
        for (c, sum) in sums.iter_mut().enumerate() {
            // SAFETY: columns `4s .. 4s + 4` and 16 further ones lie in the block's 32.
            let (q_low, q_high) = unsafe {
                let q = x.q.add(c * x.q_stride + 4 * s);
                (tile::broadcast4(q), tile::broadcast4(q.add(16)))
            };
            *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(low, q_low));
            *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(high, q_high));
        }
    }
    let ones = _mm256_set1_epi16(1);
    for sum in &mut sums {
        *sum = _mm256_madd_epi16(*sum, ones);
    }
    sums
}
