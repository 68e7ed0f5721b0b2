//! Softmax in progress: what a chunk of positions has come to, how chunks join, and the end.
//!
//! Knows nothing of keys or queries. [`super::attention`] continues a partial result, the attention
//! op merges those of its chunks in ascending order of positions.

use std::ops::Range;

use super::elementwise;
use super::exp::exp;
use crate::isa::lanes::{LANES, Lanes, load_tail, store_tail};

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

/// `e^(old - new)`: what the weights under an older maximum are worth under a new one.
#[inline(always)]
pub(super) fn decay<V: Lanes>(v: V, old: f32, new: f32) -> f32 {
    v.max_lane(exp(v, v.splat(old - new)))
}

/// `acc = acc * factor`; a factor of 1 changes no bit and is skipped.
#[inline(always)]
pub(super) fn rescale<V: Lanes>(v: V, acc: &mut [f32], factor: f32) {
    if factor.to_bits() != 1.0_f32.to_bits() {
        elementwise::scale(v, acc, factor);
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
