//! What the AVX2 kernels of the block forms share: tiles of columns, scales, minima, the store.
//!
//! A tile is the panel's 8 rows times up to 4 columns; its sums stay in registers while the panel
//! is read once, in address order. Weights are unpacked once a tile. One column is a tile of one:
//! the same steps in the same order. Layout comes from `packed::place`; the integer products of a
//! block from [`BlockDots`]. Knows no form by name; used by the form files beside it.
#![expect(
    unsafe_code,
    reason = "intrinsics and raw pointers; the contract is `MatmulFn`'s"
)]

use super::tile::{self, ROWS};
use crate::packed::{
    Activations, Blocks, OutTile, Q8_BLOCK_ELEMS, Q8Activations, debug_check_operands, place,
};
use core::arch::x86_64::{
    __m256, __m256i, _mm_loadu_si128, _mm256_broadcast_ss, _mm256_cvtepi32_ps, _mm256_cvtph_ps,
    _mm256_fmadd_ps, _mm256_mul_ps, _mm256_setzero_ps,
};

/// Blocks whose `scale * sum` products are made at once, for forms with minima.
const CHUNK_BLOCKS: usize = 64;

/// The integer part of a block form's kernel.
pub(super) trait BlockDots: Blocks {
    /// Columns of a tile, 1 to 4: as many as stay in registers.
    const MAX_COLUMNS: usize;

    /// `Σ (code - offset) * q` over one block: a row a lane, a column an entry.
    ///
    /// # Safety
    /// `codes` points to the codes of a block of 8 rows and `x` to `C` columns of a block; the
    /// CPU has AVX2.
    unsafe fn dots<const C: usize>(codes: *const u8, x: BlockColumns) -> [__m256i; C];
}

/// One block of the columns of a tile.
#[derive(Clone, Copy)]
pub(super) struct BlockColumns {
    /// `q` of the first column; 32 of them count.
    pub(super) q: *const i8,
    /// From one column's `q` to the next one's.
    pub(super) q_stride: usize,
    /// `sum` of the first column.
    pub(super) sum: *const i32,
    /// From one column's `sum` (or scale) to the next one's.
    pub(super) block_stride: usize,
}

/// `MatmulFn` of a block form.
///
/// # Safety
/// As for `MatmulFn`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn matmul<B: BlockDots>(
    panel: &[u8],
    panel_rows: usize,
    n_cols: usize,
    acts: &Activations<'_>,
    n_tokens: usize,
    out: OutTile,
) {
    debug_check_operands(B::FORM, panel, (panel_rows, n_cols), acts, n_tokens, &out);
    debug_assert_eq!(panel_rows, ROWS);
    let acts = acts.q8();
    for token in (0..n_tokens).step_by(B::MAX_COLUMNS) {
        // SAFETY: the tile's tokens are below `n_tokens`; the rest is this function's contract.
        unsafe {
            match (n_tokens - token).min(B::MAX_COLUMNS) {
                1 => columns::<B, 1>(panel, n_cols, &acts, token, &out),
                2 => columns::<B, 2>(panel, n_cols, &acts, token, &out),
                3 => columns::<B, 3>(panel, n_cols, &acts, token, &out),
                _ => columns::<B, 4>(panel, n_cols, &acts, token, &out),
            }
        }
    }
}

/// One tile: columns `token .. token + C`.
///
/// # Safety
/// As for `MatmulFn` with at least `token + C` tokens.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn columns<B: BlockDots, const C: usize>(
    panel: &[u8],
    n_cols: usize,
    acts: &Q8Activations<'_>,
    token: usize,
    out: &OutTile,
) {
    let n_blocks = n_cols / Q8_BLOCK_ELEMS;
    let mut acc = [_mm256_setzero_ps(); C];
    for first in (0..n_blocks).step_by(CHUNK_BLOCKS) {
        let blocks = first..n_blocks.min(first + CHUNK_BLOCKS);
        // SAFETY: the blocks and columns exist, by this function's contract.
        unsafe { chunk::<B, C>(panel, n_blocks, blocks, acts, token, &mut acc) };
    }
    for (c, sums) in acc.into_iter().enumerate() {
        // SAFETY: `out` was made for this token, by this function's contract.
        unsafe { tile::store(out, token + c, sums) };
    }
}

/// Adds the products of at most `CHUNK_BLOCKS` blocks of a tile, in ascending order.
///
/// # Safety
/// As for `columns`; `blocks` are below `n_blocks`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn chunk<B: BlockDots, const C: usize>(
    panel: &[u8],
    n_blocks: usize,
    blocks: std::ops::Range<usize>,
    acts: &Q8Activations<'_>,
    token: usize,
    acc: &mut [__m256; C],
) {
    let mut minimum_terms = [[0.0_f32; CHUNK_BLOCKS]; C];
    if B::SPEC.has_minima {
        for (c, terms) in minimum_terms.iter_mut().enumerate() {
            let at = (token + c) * n_blocks + blocks.start;
            scaled_sums(
                &acts.scale[at..],
                &acts.sum[at..],
                &mut terms[..blocks.len()],
            );
        }
    }
    for (i, block) in blocks.enumerate() {
        tile::keep_reading_order::<C>();
        let (place, at) = (place(&B::SPEC, ROWS, block), token * n_blocks + block);
        // SAFETY: the place of an existing block lies in the panel; column `token + C - 1` and
        // all before it have `n_blocks` blocks, by the contract of `columns`.
        unsafe {
            let panel = panel.as_ptr();
            tile::prefetch::<{ 4 * ROWS + ROWS * Q8_BLOCK_ELEMS }>(panel.add(place.codes));
            let scales = _mm256_cvtph_ps(_mm_loadu_si128(panel.add(place.scales).cast()));
            let minima = _mm256_cvtph_ps(_mm_loadu_si128(panel.add(place.minima).cast()));
            let x = BlockColumns {
                q: acts.q.as_ptr().add(at * Q8_BLOCK_ELEMS),
                q_stride: n_blocks * Q8_BLOCK_ELEMS,
                sum: acts.sum.as_ptr().add(at),
                block_stride: n_blocks,
            };
            let dots = B::dots::<C>(panel.add(place.codes), x);
            for c in 0..C {
                let scale = _mm256_broadcast_ss(&*acts.scale.as_ptr().add(at + c * n_blocks));
                let scale = _mm256_mul_ps(scales, scale);
                acc[c] = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(dots[c]), acc[c]);
                if B::SPEC.has_minima {
                    let term = _mm256_broadcast_ss(&minimum_terms[c][i]);
                    acc[c] = _mm256_fmadd_ps(minima, term, acc[c]);
                }
            }
        }
    }
}

/// `scale * sum` of consecutive blocks of a column: what a minimum is multiplied with.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn scaled_sums(scale: &[f32], sum: &[i32], out: &mut [f32]) {
    for ((out, scale), sum) in out.iter_mut().zip(scale).zip(sum) {
        *out = scale * *sum as f32;
    }
}
