//! What the AVX2 kernels share: tile sizes, reading order, prefetching, the store of a tile.
//!
//! Knows no layout. Used by the kernels beside it.
#![expect(
    unsafe_code,
    reason = "intrinsics and raw pointers; the contract is `MatmulFn`'s"
)]

use crate::packed::OutTile;
use core::arch::x86_64::{
    __m256, __m256i, _MM_HINT_T0, _mm_prefetch, _mm256_set1_epi32, _mm256_storeu_ps,
};

/// Rows of a panel: one a 32-bit lane.
pub(super) const ROWS: usize = 8;

/// How far ahead of its use a panel is fetched. Measured on Sapphire Rapids with 2 MiB pages: 1.0
/// of the streaming read at 2 to 3 KiB, 0.5 without; it runs into the next panel on purpose.
const PREFETCH_BYTES: usize = 2048;

/// Keeps the loads of one step from being moved before those of the step above: LLVM would
/// otherwise read a panel out of order, which the memory prefetchers do not follow.
///
/// Only for one column, where memory is the limit; with more columns in registers it makes LLVM
/// spill.
#[inline]
pub(super) fn keep_reading_order<const COLUMNS: usize>() {
    if COLUMNS == 1 {
        // SAFETY: no instruction at all.
        unsafe { core::arch::asm!("", options(nostack, preserves_flags)) };
    }
}

/// Asks for the `BYTES` bytes that will be read `PREFETCH_BYTES` after `at`.
#[inline]
pub(super) fn prefetch<const BYTES: usize>(at: *const u8) {
    for line in (0..BYTES).step_by(64) {
        // SAFETY: a prefetch of any address at all is harmless; SSE is in the x86-64 baseline.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(PREFETCH_BYTES + line).cast()) };
    }
}

/// Four consecutive columns in each 32-bit lane.
///
/// # Safety
/// Four bytes at `q` are readable; the CPU has AVX2.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) unsafe fn broadcast4(q: *const i8) -> __m256i {
    // SAFETY: by this function's contract; the read needs no alignment.
    _mm256_set1_epi32(unsafe { q.cast::<i32>().read_unaligned() })
}

/// Stores the rows of one token that exist.
///
/// # Safety
/// `token` is one that `out` was made for.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) unsafe fn store(out: &OutTile, token: usize, sums: __m256) {
    let mut values = [0.0_f32; ROWS];
    // SAFETY: `values` has `ROWS` floats, and so has the tile where all its rows exist; `token`
    // by this function's contract.
    unsafe {
        if out.n_rows() == ROWS {
            _mm256_storeu_ps(out.token(token), sums);
        } else {
            _mm256_storeu_ps(values.as_mut_ptr(), sums);
            out.write(token, &values);
        }
    }
}
