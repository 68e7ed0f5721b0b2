//! Attention of query rows over one block of the cache.
//!
//! Softmax is computed as it goes ("online"): a row carries the largest score so far, the sum of
//! `e^(score - largest)` and the sum of values under these weights. A row's arithmetic is the same
//! alone and in any company: tiles of rows share loads, never sums. Knows nothing of chunks,
//! heads or threads; the attention op calls it.
//!
//! Source: M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax" (2018).

use super::attention_tile::{ROWS, scores, weigh};
use super::cache::{BLOCK_POSITIONS, CacheRef, widen};
use super::exp::exp;
use super::partial::{Partial, decay, rescale};
use crate::isa::lanes::{LANES, Lanes};

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

/// Floats of scratch that `attend_block` needs for up to `m` rows.
#[must_use]
pub const fn attend_scratch_elems(m: usize, k_dim: usize, v_dim: usize) -> usize {
    let widest = if k_dim > v_dim { k_dim } else { v_dim };
    (m + widest) * BLOCK_POSITIONS
}

/// Continues `partial` over the visible positions of one block.
///
/// Score of a position: `fma` over dimensions ascending from 0. Its weight: `e^(score - max)`,
/// where max includes the block. The block's weights are summed in eight lanes by position and one tree;
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
