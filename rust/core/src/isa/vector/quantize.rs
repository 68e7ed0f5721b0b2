//! Activations to 8-bit integers: what block weights are multiplied with.

use crate::isa::lanes::{LANES, Lanes};
use crate::packed::Q8_BLOCK_ELEMS;

/// Largest code; -128 is not used, so that codes are symmetric.
const LARGEST_CODE: f32 = 127.0;

/// One block after another: `scale = max|x| / 127`, `q = round(x * (127 / max|x|))`, `sum = Σ q`.
///
/// The scale stays `f32`; ties round to even. A block whose largest magnitude is below about
/// 3.7e-37 (`127 / max|x|` overflows) is all zeros with scale 0. A block with an infinity or a NaN
/// gets scale NaN and zero codes: every product with it is NaN, which the logits' check finds.
///
/// Shapes: `x`, `q`: `[n]`; `scale`, `sum`: `[n / 32]`.
#[inline(always)]
pub(super) fn quantize_q8<V: Lanes>(
    v: V,
    x: &[f32],
    q: &mut [i8],
    scale: &mut [f32],
    sum: &mut [i32],
) {
    let (x, rest) = x.as_chunks::<Q8_BLOCK_ELEMS>();
    let (q, q_rest) = q.as_chunks_mut::<Q8_BLOCK_ELEMS>();
    assert!(
        rest.is_empty() && q_rest.is_empty(),
        "rows are multiples of 32"
    );
    let n_blocks = x.len();
    assert!(q.len() == n_blocks && scale.len() == n_blocks && sum.len() == n_blocks);
    for (((x, q), scale), sum) in x.iter().zip(q).zip(scale).zip(sum) {
        (*scale, *sum) = quantize_block(v, x, q);
    }
}

/// Scale and sum of one block; the codes go to `q`.
#[inline(always)]
fn quantize_block<V: Lanes>(
    v: V,
    x: &[f32; Q8_BLOCK_ELEMS],
    q: &mut [i8; Q8_BLOCK_ELEMS],
) -> (f32, i32) {
    let zero = v.splat(0.0);
    let mut lanes = [zero; Q8_BLOCK_ELEMS / LANES];
    let (mut largest, mut probe) = (zero, zero);
    for (lanes, x) in lanes.iter_mut().zip(x.as_chunks::<LANES>().0) {
        *lanes = v.load(x);
        largest = v.max(largest, v.abs(*lanes));
        // NaN unless all are finite.
        probe = v.fma(*lanes, zero, probe);
    }
    let largest = v.max_lane(largest);
    let inverse = LARGEST_CODE / largest;
    let not_finite = v.any_nan(probe);
    if not_finite || !inverse.is_finite() {
        *q = [0; Q8_BLOCK_ELEMS];
        return (if not_finite { f32::NAN } else { 0.0 }, 0);
    }
    let (inverse, limit) = (v.splat(inverse), v.splat(LARGEST_CODE));
    let mut sum = zero;
    for lanes in &mut lanes {
        let code = v.round(v.mul(*lanes, inverse));
        *lanes = v.max(v.splat(-LARGEST_CODE), v.min(code, limit));
        // Integers below 2^24: exact in any order.
        sum = v.add(sum, *lanes);
    }
    v.store_i8(lanes, q);
    (largest / LARGEST_CODE, v.sum(sum) as i32)
}
