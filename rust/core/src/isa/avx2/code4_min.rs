//! AVX2 kernel of the form `code4_min`: the nibble products of `code4`, without an offset.
//!
//! Used by the table in `mod.rs`.
#![expect(
    unsafe_code,
    reason = "intrinsics and raw pointers; the contract is `MatmulFn`'s"
)]

use super::blocks::{BlockColumns, BlockDots};
use super::code4::nibble_dots;
use crate::packed::code4_min::Code4Min;
use core::arch::x86_64::__m256i;

impl BlockDots for Code4Min {
    const MAX_COLUMNS: usize = 4;

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn dots<const C: usize>(codes: *const u8, x: BlockColumns) -> [__m256i; C] {
        // SAFETY: the same contract.
        unsafe { nibble_dots::<C>(codes, x) }
    }
}
