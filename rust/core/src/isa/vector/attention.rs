//! Attention of query rows over one block of the cache, and the joining of partial results.
//!
//! Softmax is computed as it goes ("online"): a row carries the largest score so far, the sum of
//! `e^(score - largest)` and the sum of values under these weights. A row's arithmetic is the same
//! alone and in any company: tiles of rows share loads, never sums. Knows nothing of chunks,
//! heads or threads; the attention op calls it.
//!
//! Source: M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax" (2018).

use std::ops::Range;

use super::attention_tile::{ROWS, scores, weigh};
use super::cache::{BLOCK_POSITIONS, CacheRef, widen};
use super::exp::exp;
use crate::isa::lanes::{LANES, Lanes, load_tail, store_tail};

/// What query rows attend to: one block of one key-value head.
#[derive(Debug, Clone, Copy)]
pub struct AttendBlock<'a> {
    /// Queries, `[m][k_dim]`, already multiplied by the scale of the scores.
    pub q: &'a [f32],
    /// For each of the m rows, how many leading positions of the block it sees (0 to 64). What
    /// lies past them may be anything.
    pub n_visible: &'a [usize],
    /// Keys, `[k_dim][64]`.
    pub k: CacheRef<'a>,
    /// Values, `[64][v_dim]`.
    pub v: CacheRef<'a>,
    /// Dimensions of a query and of a key.
    pub k_dim: usize,
    /// Dimensions of a value.
    pub v_dim: usize,
}

/// Softmax in progress of m rows, to continue.
#[derive(Debug)]
pub struct Partial<'a> {
    /// Largest score so far, `[m]`.
    pub max: &'a mut [f32],
    /// Sum of `e^(score - max)`, `[m]`.
    pub sum: &'a mut [f32],
    /// Sum of values times `e^(score - max)`, `[m][v_dim]`.
    pub acc: &'a mut [f32],
}

impl Partial<'_> {
    /// No position seen yet.
    pub fn clear(&mut self) {
        self.max.fill(f32::NEG_INFINITY);
        self.sum.fill(0.0);
        self.acc.fill(0.0);
    }

    /// The same rows, to read.
    #[must_use]
    pub fn as_ref(&self) -> PartialRef<'_> {
        PartialRef {
            max: self.max,
            sum: self.sum,
            acc: self.acc,
        }
    }
}

/// Softmax in progress of m rows, to read; fields as in [`Partial`].
#[derive(Debug, Clone, Copy)]
pub struct PartialRef<'a> {
    /// Largest score so far, `[m]`.
    pub max: &'a [f32],
    /// Sum of `e^(score - max)`, `[m]`.
    pub sum: &'a [f32],
    /// Sum of values times `e^(score - max)`, `[m][v_dim]`.
    pub acc: &'a [f32],
}

impl PartialRef<'_> {
    /// Some of the rows.
    #[must_use]
    pub fn rows(&self, rows: Range<usize>) -> Self {
        let v_dim = self.acc.len() / self.max.len();
        Self {
            max: &self.max[rows.clone()],
            sum: &self.sum[rows.clone()],
            acc: &self.acc[rows.start * v_dim..rows.end * v_dim],
        }
    }
}

/// Floats of scratch that `attend_block` needs for up to `m` rows.
#[must_use]
pub const fn attend_scratch_elems(m: usize, k_dim: usize, v_dim: usize) -> usize {
    let widest = if k_dim > v_dim { k_dim } else { v_dim };
    (m + widest) * BLOCK_POSITIONS
}

/// Continues `partial` over the visible positions of one block.
///
/// Score of a position: `fma` over dimensions ascending from 0. Its weight: `e^(score - max)`, where
/// max includes the block. The block's weights are summed in eight lanes by position and one tree;
/// values are added to the row position by position, `fma`, ascending. All in `f32`.
///
/// A row that sees nothing is not touched. Scores that are not finite make the row NaN.
///
/// Shapes: `scratch`: at least [`attend_scratch_elems`].
#[inline(always)]
pub(super) fn attend_block<V: Lanes>(
    v: V,
    block: &AttendBlock<'_>,
    partial: &mut Partial<'_>,
    scratch: &mut [f32],
) {
    let m = check(block, partial);
    let (weights, widened) = scratch.split_at_mut(m * BLOCK_POSITIONS);
    let (weights, _) = weights.as_chunks_mut::<BLOCK_POSITIONS>();
    match block.k {
        CacheRef::F32(k) => scores(v, block, k, weights),
        // One tile of rows reads each key once: no need for a widened copy.
        CacheRef::F16(k) if m <= ROWS => scores(v, block, k, weights),
        CacheRef::F16(k) => {
            let widened = &mut widened[..k.len()];
            widen(v, k, widened);
            scores(v, block, widened, weights);
        }
    }
    for (row, (weights, &n)) in weights.iter_mut().zip(block.n_visible).enumerate() {
        if n > 0 {
            let acc = &mut partial.acc[row * block.v_dim..][..block.v_dim];
            soften(
                v,
                weights,
                n,
                &mut partial.max[row],
                &mut partial.sum[row],
                acc,
            );
        }
    }
    match block.v {
        CacheRef::F32(x) => weigh(v, block, x, weights, partial.acc),
        CacheRef::F16(x) if m <= ROWS => weigh(v, block, x, weights, partial.acc),
        CacheRef::F16(x) => {
            let widened = &mut widened[..x.len()];
            widen(v, x, widened);
            weigh(v, block, widened, weights, partial.acc);
        }
    }
}

/// Checks the shapes; returns m.
fn check(block: &AttendBlock<'_>, partial: &Partial<'_>) -> usize {
    let m = block.n_visible.len();
    assert!(
        block.n_visible.iter().all(|&n| n <= BLOCK_POSITIONS),
        "a block has 64 positions"
    );
    assert_eq!(block.q.len(), m * block.k_dim, "queries");
    assert_eq!(block.k.n_elems(), block.k_dim * BLOCK_POSITIONS, "keys");
    assert_eq!(block.v.n_elems(), block.v_dim * BLOCK_POSITIONS, "values");
    assert!(
        partial.max.len() == m && partial.sum.len() == m,
        "rows of the partial result"
    );
    assert_eq!(
        partial.acc.len(),
        m * block.v_dim,
        "sums of the partial result"
    );
    m
}

/// Turns the first `n` scores of a row into weights and rescales what the row has so far.
#[inline(always)]
fn soften<V: Lanes>(
    v: V,
    scores: &mut [f32; BLOCK_POSITIONS],
    n: usize,
    max: &mut f32,
    sum: &mut f32,
    acc: &mut [f32],
) {
    let end = n.next_multiple_of(LANES);
    // Weight 0: adds nothing to the sum, and the values of these positions are never read.
    scores[n..end].fill(f32::NEG_INFINITY);
    let (vectors, _) = scores[..end].as_chunks_mut::<LANES>();
    let mut largest = v.splat(*max);
    for x in &*vectors {
        largest = v.max(largest, v.load(x));
    }
    let new_max = v.max_lane(largest);
    let shift = v.splat(new_max);
    let mut total = v.splat(0.0);
    for x in vectors {
        let weight = exp(v, v.sub(v.load(x), shift));
        v.store(weight, x);
        total = v.add(total, weight);
    }
    let factor = decay(v, *max, new_max);
    *max = new_max;
    *sum = sum.mul_add(factor, v.sum(total));
    rescale(v, acc, factor);
}

/// `e^(old - new)`: what the weights under an older maximum are worth under a new one.
#[inline(always)]
fn decay<V: Lanes>(v: V, old: f32, new: f32) -> f32 {
    v.max_lane(exp(v, v.splat(old - new)))
}

/// `acc = acc * factor`; a factor of 1 changes no bit and is skipped.
#[inline(always)]
fn rescale<V: Lanes>(v: V, acc: &mut [f32], factor: f32) {
    if factor.to_bits() != 1.0_f32.to_bits() {
        super::elementwise::scale(v, acc, factor);
    }
}

/// Joins the partial result of a later chunk into that of all earlier ones, row by row.
///
/// `max = max(a, b)`; sums are `a * e^(a.max - max) + b * e^(b.max - max)`, the second product
/// rounded, the first fused. A chunk in which a row saw nothing leaves that row's bits; a
/// total that is empty takes the chunk's.
///
/// Shapes: `[m]`, `[m]`, `[m][v_dim]` in both.
#[inline(always)]
pub(super) fn merge_partial<V: Lanes>(v: V, chunk: PartialRef<'_>, total: &mut Partial<'_>) {
    let m = chunk.max.len();
    assert!(
        chunk.sum.len() == m && total.max.len() == m && total.sum.len() == m,
        "rows differ"
    );
    assert_eq!(chunk.acc.len(), total.acc.len(), "sums differ in length");
    let v_dim = chunk.acc.len().checked_div(m).unwrap_or(0);
    for row in 0..m {
        let acc = &chunk.acc[row * v_dim..][..v_dim];
        let total_acc = &mut total.acc[row * v_dim..][..v_dim];
        if is_empty(chunk.max[row], chunk.sum[row]) {
            continue;
        }
        if is_empty(total.max[row], total.sum[row]) {
            total.max[row] = chunk.max[row];
            total.sum[row] = chunk.sum[row];
            total_acc.copy_from_slice(acc);
            continue;
        }
        let (old, new) = (total.max[row], chunk.max[row]);
        let max = if old > new { old } else { new };
        let (keep, take) = (decay(v, old, max), decay(v, new, max));
        total.max[row] = max;
        total.sum[row] = total.sum[row].mul_add(keep, chunk.sum[row] * take);
        merge_sums(v, acc, take, total_acc, keep);
    }
}

/// Whether a row has seen no position.
#[inline(always)]
fn is_empty(max: f32, sum: f32) -> bool {
    max == f32::NEG_INFINITY && sum == 0.0
}

/// `total = total * keep + acc * take`.
#[inline(always)]
fn merge_sums<V: Lanes>(v: V, acc: &[f32], take: f32, total: &mut [f32], keep: f32) {
    let (keep, take) = (v.splat(keep), v.splat(take));
    let (acc, acc_tail) = acc.as_chunks::<LANES>();
    let (total, total_tail) = total.as_chunks_mut::<LANES>();
    for (acc, total) in acc.iter().zip(total) {
        v.store(v.fma(v.load(total), keep, v.mul(v.load(acc), take)), total);
    }
    let product = v.mul(load_tail(v, acc_tail), take);
    store_tail(
        v,
        v.fma(load_tail(v, total_tail), keep, product),
        total_tail,
    );
}

/// `out = acc / sum` for each row. A row that saw nothing gives NaN.
///
/// Shapes: `out`: `[m][v_dim]`.
#[inline(always)]
pub(super) fn finish<V: Lanes>(v: V, total: PartialRef<'_>, out: &mut [f32]) {
    assert_eq!(
        total.acc.len(),
        out.len(),
        "sums and result differ in length"
    );
    let v_dim = if total.sum.is_empty() {
        return;
    } else {
        out.len() / total.sum.len()
    };
    for (row, &sum) in total.sum.iter().enumerate() {
        let sum = v.splat(sum);
        let (acc, acc_tail) = total.acc[row * v_dim..][..v_dim].as_chunks::<LANES>();
        let (out, out_tail) = out[row * v_dim..][..v_dim].as_chunks_mut::<LANES>();
        for (acc, out) in acc.iter().zip(out) {
            v.store(v.div(v.load(acc), sum), out);
        }
        store_tail(v, v.div(load_tail(v, acc_tail), sum), out_tail);
    }
}
