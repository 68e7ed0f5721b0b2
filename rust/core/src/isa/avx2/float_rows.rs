//! What the AVX2 kernels of the float forms share: one row at a time, in 32 lanes.
//!
//! A tile is one row times up to 3 columns, 4 registers of sums each. Element `k` goes to lane
//! `k mod 32` by one fma, as in the scalar kernel, and the lanes are summed by the same tree.
//! Knows no format; the form files beside it say how elements are widened.
#![expect(
    unsafe_code,
    reason = "intrinsics and raw pointers; the contract is `MatmulFn`'s"
)]

use super::tile::{self, ROWS};
use crate::packed::{Activations, Element, LANES, OutTile, debug_check_operands, tail_of};
use core::arch::x86_64::{
    __m256, _mm_add_ps, _mm_add_ss, _mm_cvtss_f32, _mm_movehl_ps, _mm_shuffle_ps, _mm256_add_ps,
    _mm256_castps256_ps128, _mm256_extractf128_ps, _mm256_fmadd_ps, _mm256_loadu_ps,
    _mm256_setzero_ps,
};

/// Columns of a tile: with 4 registers of sums each, more would spill.
const MAX_COLUMNS: usize = 3;

/// Registers that hold the lanes of one sum.
const LANE_VECTORS: usize = LANES / 8;

/// How a float form's elements become f32.
pub(super) trait Widen: Element {
    /// Eight consecutive elements.
    ///
    /// # Safety
    /// Eight elements are readable at `elements`; the CPU has AVX2 and F16C.
    unsafe fn widen(elements: *const u8) -> __m256;
}

/// `MatmulFn` of a float form.
///
/// # Safety
/// As for `MatmulFn`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn matmul<E: Widen>(
    panel: &[u8],
    panel_rows: usize,
    n_cols: usize,
    acts: &Activations<'_>,
    n_tokens: usize,
    out: OutTile,
) {
    debug_check_operands(E::FORM, panel, (panel_rows, n_cols), acts, n_tokens, &out);
    debug_assert_eq!(panel_rows, ROWS);
    let x = acts.f32();
    for token in (0..n_tokens).step_by(MAX_COLUMNS) {
        let x = &x[token * n_cols..];
        // SAFETY: the tile's tokens are below `n_tokens`, so `x` holds its columns and `out` was
        // made for them.
        unsafe {
            match n_tokens - token {
                1 => rows::<E, 1>(panel, n_cols, x, token, &out),
                2 => rows::<E, 2>(panel, n_cols, x, token, &out),
                _ => rows::<E, MAX_COLUMNS>(panel, n_cols, x, token, &out),
            }
        }
    }
}

/// All rows of the panel times the columns `token .. token + C`, which are the first of `x`; they
/// stay in the nearest cache while the rows pass.
///
/// # Safety
/// As for `MatmulFn` with at least `token + C` tokens.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn rows<E: Widen, const C: usize>(
    panel: &[u8],
    n_cols: usize,
    x: &[f32],
    token: usize,
    out: &OutTile,
) {
    let row_bytes = n_cols * E::BYTES;
    for row in 0..out.n_rows() {
        let w = &panel[row * row_bytes..][..row_bytes];
        // SAFETY: `w` is a whole row and `x` has `C` columns, by this function's contract.
        let sums = unsafe { columns::<E, C>(w, x, n_cols) };
        for (c, sum) in sums.into_iter().enumerate() {
            // SAFETY: `out` was made for this token and has more than `row` rows.
            unsafe { out.token(token + c).add(row).write(sum) };
        }
    }
}

/// One row times `C` columns.
///
/// # Safety
/// `w` is a row of `n_cols` elements and `x` at least `C` columns; the CPU has the features.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn columns<E: Widen, const C: usize>(w: &[u8], x: &[f32], n_cols: usize) -> [f32; C] {
    debug_assert!(w.len() == n_cols * E::BYTES && x.len() >= C * n_cols);
    let mut lanes = [[_mm256_setzero_ps(); LANE_VECTORS]; C];
    let whole = n_cols - n_cols % LANES;
    for k in (0..whole).step_by(LANES) {
        tile::keep_reading_order::<C>();
        // SAFETY: `k + 32 <= n_cols`, so the step lies in the row and in each column.
        unsafe {
            let w = w.as_ptr().add(k * E::BYTES);
            if E::BYTES == 4 {
                tile::prefetch::<128>(w);
            } else {
                tile::prefetch::<64>(w);
            }
            step::<E, C>(w, x.as_ptr().add(k), n_cols, &mut lanes);
        }
    }
    if whole < n_cols {
        let mut w_tail = [0_u8; 4 * LANES];
        w_tail[..w.len() - whole * E::BYTES].copy_from_slice(&w[whole * E::BYTES..]);
        let x_tail: [[f32; LANES]; C] =
            std::array::from_fn(|c| tail_of(&x[c * n_cols + whole..(c + 1) * n_cols]));
        // SAFETY: both tails are padded to whole steps.
        unsafe {
            step::<E, C>(
                w_tail.as_ptr(),
                x_tail.as_flattened().as_ptr(),
                LANES,
                &mut lanes,
            );
        }
    }
    let mut sums = [0.0; C];
    for (sum, lanes) in sums.iter_mut().zip(lanes) {
        *sum = sum_lanes(lanes);
    }
    sums
}

/// Adds 32 products to each column's lanes.
///
/// # Safety
/// 32 elements are readable at `w`, and 32 floats at `x + c * x_stride` for each `c < C`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn step<E: Widen, const C: usize>(
    w: *const u8,
    x: *const f32,
    x_stride: usize,
    lanes: &mut [[__m256; LANE_VECTORS]; C],
) {
    for i in 0..LANE_VECTORS {
        // SAFETY: by this function's contract.
        let w = unsafe { E::widen(w.add(8 * i * E::BYTES)) };
        for (c, lanes) in lanes.iter_mut().enumerate() {
            // SAFETY: by this function's contract.
            let x = unsafe { _mm256_loadu_ps(x.add(c * x_stride + 8 * i)) };
            lanes[i] = _mm256_fmadd_ps(w, x, lanes[i]);
        }
    }
}

/// Sums lanes by the tree of the scalar kernel.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn sum_lanes(v: [__m256; LANE_VECTORS]) -> f32 {
    let eight = _mm256_add_ps(_mm256_add_ps(v[0], v[1]), _mm256_add_ps(v[2], v[3]));
    let four = _mm_add_ps(
        _mm256_castps256_ps128(eight),
        _mm256_extractf128_ps::<1>(eight),
    );
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
}
