//! Root-mean-square normalisation.

use crate::isa::lanes::{LANES, Lanes, load_tail, store_tail};

/// Vectors that are summed side by side: element k belongs to lane k mod 32.
const SUMS: usize = 4;

/// `out = x / sqrt(mean(x^2) + eps) * weight`.
///
/// Squares are exact and added in double precision, in 32 lanes by position and then by one tree,
/// so the sum depends on nothing but the row. The factor is rounded to `f32` once; each element is
/// `(x * factor) * weight` in `f32`.
///
/// Source: B. Zhang, R. Sennrich, "Root Mean Square Layer Normalization" (2019), eq. 4.
#[inline(always)]
pub(super) fn rms_norm<V: Lanes>(v: V, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert!(
        x.len() == out.len() && weight.len() == out.len(),
        "operands differ in length"
    );
    let mean = sum_of_squares(v, x) / x.len() as f64;
    let factor = v.splat((1.0 / (mean + f64::from(eps)).sqrt()) as f32);
    let ((x, x_tail), (weight, weight_tail)) =
        (x.as_chunks::<LANES>(), weight.as_chunks::<LANES>());
    let (out, out_tail) = out.as_chunks_mut::<LANES>();
    for ((x, weight), out) in x.iter().zip(weight).zip(out) {
        v.store(v.mul(v.mul(v.load(x), factor), v.load(weight)), out);
    }
    let y = v.mul(
        v.mul(load_tail(v, x_tail), factor),
        load_tail(v, weight_tail),
    );
    store_tail(v, y, out_tail);
}

/// Sum of the squares in double precision; missing elements of the last 32 count as zeros.
#[inline(always)]
fn sum_of_squares<V: Lanes>(v: V, x: &[f32]) -> f64 {
    let mut sums = [v.zero_f64(); SUMS];
    let (rows, tail) = x.as_chunks::<{ SUMS * LANES }>();
    for row in rows {
        for (sum, x) in sums.iter_mut().zip(row.as_chunks::<LANES>().0) {
            *sum = v.add_square_f64(v.load(x), *sum);
        }
    }
    for (sum, x) in sums.iter_mut().zip(tail.chunks(LANES)) {
        *sum = v.add_square_f64(load_tail(v, x), *sum);
    }
    v.sum_f64(v.add_f64(v.add_f64(sums[0], sums[1]), v.add_f64(sums[2], sums[3])))
}
