//! The two products of attention, in tiles of rows that share the loads of keys and values.
//!
//! A tile of R rows by W vectors keeps R * W sums in registers. Each sum takes its terms in one
//! order whatever R and W are, so tile sizes are a matter of speed alone. Knows nothing of softmax;
//! [`super::attention`] calls it.

use std::ops::Range;

use super::attention::AttendBlock;
use super::cache::{BLOCK_POSITIONS, Element, load_some};
use crate::isa::lanes::{LANES, Lanes, load_tail, store_tail};

/// Rows of the largest tile.
pub(super) const ROWS: usize = 4;

/// Scores or weights of one row.
type RowOfBlock = [f32; BLOCK_POSITIONS];

/// Scores of all rows: `out[row][position] = Σ q[row][d] * k[d][position]`, d ascending.
///
/// Past a row's visible positions `out` holds whatever came of the memory there.
#[inline(always)]
pub(super) fn scores<V: Lanes, T: Element>(
    v: V,
    block: &AttendBlock<'_>,
    k: &[T],
    out: &mut [RowOfBlock],
) {
    let (k, _) = k.as_chunks::<BLOCK_POSITIONS>();
    for (tile, out) in out.chunks_mut(ROWS).enumerate() {
        let q = &block.q[tile * ROWS * block.k_dim..][..out.len() * block.k_dim];
        let n_visible = &block.n_visible[tile * ROWS..][..out.len()];
        let n_vectors = most(n_visible).div_ceil(LANES);
        match out.len() {
            4 => score_tile::<V, T, 4, 2>(v, q, k, n_vectors, out),
            3 => score_tile::<V, T, 3, 4>(v, q, k, n_vectors, out),
            2 => score_tile::<V, T, 2, 4>(v, q, k, n_vectors, out),
            _ => score_tile::<V, T, 1, 8>(v, q, k, n_vectors, out),
        }
    }
}

/// The largest of a tile's visible counts.
#[inline(always)]
fn most(n_visible: &[usize]) -> usize {
    n_visible.iter().fold(0, |most, &n| most.max(n))
}

/// Scores of R rows, W vectors of positions at a time, up to a multiple of W.
#[inline(always)]
fn score_tile<V: Lanes, T: Element, const R: usize, const W: usize>(
    v: V,
    q: &[f32],
    k: &[[T; BLOCK_POSITIONS]],
    n_vectors: usize,
    out: &mut [RowOfBlock],
) {
    let k_dim = k.len();
    let mut rows = [&q[..0]; R];
    for (r, row) in rows.iter_mut().enumerate() {
        *row = &q[r * k_dim..][..k_dim];
    }
    for first in (0..n_vectors).step_by(W) {
        let mut sums = [[v.splat(0.0); W]; R];
        for (d, k) in k.iter().enumerate() {
            let k = &k.as_chunks::<LANES>().0[first..first + W];
            for w in 0..W {
                let k = T::load(v, &k[w]);
                for r in 0..R {
                    sums[r][w] = v.fma(v.splat(rows[r][d]), k, sums[r][w]);
                }
            }
        }
        for (sums, out) in sums.iter().zip(&mut *out) {
            let out = &mut out.as_chunks_mut::<LANES>().0[first..first + W];
            for (sum, out) in sums.iter().zip(out) {
                v.store(*sum, out);
            }
        }
    }
}

/// Adds the visible values of all rows: `acc[row] += weights[row][position] * values[position]`,
/// positions ascending.
#[inline(always)]
pub(super) fn weigh<V: Lanes, T: Element>(
    v: V,
    block: &AttendBlock<'_>,
    values: &[T],
    weights: &[RowOfBlock],
    acc: &mut [f32],
) {
    let v_dim = block.v_dim;
    for (tile, weights) in weights.chunks(ROWS).enumerate() {
        let n_visible = &block.n_visible[tile * ROWS..][..weights.len()];
        let acc = &mut acc[tile * ROWS * v_dim..][..weights.len() * v_dim];
        // What all rows of the tile see; the rest row by row, in the same order of positions.
        let shared = n_visible
            .iter()
            .fold(BLOCK_POSITIONS, |least, &n| least.min(n));
        match weights.len() {
            4 => weigh_tile::<V, T, 4, 2>(v, weights, values, v_dim, 0..shared, acc),
            3 => weigh_tile::<V, T, 3, 4>(v, weights, values, v_dim, 0..shared, acc),
            2 => weigh_tile::<V, T, 2, 4>(v, weights, values, v_dim, 0..shared, acc),
            _ => weigh_tile::<V, T, 1, 8>(v, weights, values, v_dim, 0..shared, acc),
        }
        for (row, &n) in n_visible.iter().enumerate() {
            let (weights, acc) = (&weights[row..=row], &mut acc[row * v_dim..][..v_dim]);
            weigh_tile::<V, T, 1, 8>(v, weights, values, v_dim, shared..n, acc);
        }
    }
}

/// Adds the values of `positions` to R rows, W vectors of dimensions at a time.
#[inline(always)]
fn weigh_tile<V: Lanes, T: Element, const R: usize, const W: usize>(
    v: V,
    weights: &[RowOfBlock],
    values: &[T],
    v_dim: usize,
    positions: Range<usize>,
    acc: &mut [f32],
) {
    if positions.is_empty() || v_dim == 0 {
        return;
    }
    let values = &values[positions.start * v_dim..positions.end * v_dim];
    let mut from = 0;
    while from + W * LANES <= v_dim {
        weigh_columns::<V, T, R, W>(v, weights, values, positions.start, from, acc);
        from += W * LANES;
    }
    while from + LANES <= v_dim {
        weigh_columns::<V, T, R, 1>(v, weights, values, positions.start, from, acc);
        from += LANES;
    }
    if from == v_dim {
        return;
    }
    for (weights, acc) in weights.iter().zip(acc.chunks_exact_mut(v_dim)) {
        let tail = &mut acc[from..];
        let mut sum = load_tail(v, tail);
        for (weight, value) in weights[positions.clone()]
            .iter()
            .zip(values.chunks_exact(v_dim))
        {
            sum = v.fma(v.splat(*weight), load_some(v, &value[from..]), sum);
        }
        store_tail(v, sum, tail);
    }
}

/// Adds dimensions `from` to `from + 8 W` of all `values` to R rows.
///
/// Shapes: `values`: `[n][v_dim]`, the first at position `start`; `acc`: `[R][v_dim]`.
#[inline(always)]
fn weigh_columns<V: Lanes, T: Element, const R: usize, const W: usize>(
    v: V,
    weights: &[RowOfBlock],
    values: &[T],
    start: usize,
    from: usize,
    acc: &mut [f32],
) {
    let v_dim = acc.len() / R;
    let mut sums = [[v.splat(0.0); W]; R];
    for (sums, acc) in sums.iter_mut().zip(acc.chunks_exact(v_dim)) {
        for (sum, acc) in sums.iter_mut().zip(acc[from..].as_chunks::<LANES>().0) {
            *sum = v.load(acc);
        }
    }
    let n = values.len() / v_dim;
    let mut rows = [&weights[0][..0]; R];
    for (row, weights) in rows.iter_mut().zip(weights) {
        *row = &weights[start..][..n];
    }
    for (position, value) in values.chunks_exact(v_dim).enumerate() {
        let value = value[from..from + W * LANES].as_chunks::<LANES>().0;
        for w in 0..W {
            let value = T::load(v, &value[w]);
            for r in 0..R {
                sums[r][w] = v.fma(v.splat(rows[r][position]), value, sums[r][w]);
            }
        }
    }
    for (sums, acc) in sums.iter().zip(acc.chunks_exact_mut(v_dim)) {
        for (sum, acc) in sums.iter().zip(acc[from..].as_chunks_mut::<LANES>().0) {
            v.store(*sum, acc);
        }
    }
}
