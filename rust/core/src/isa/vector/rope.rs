//! Rotary position embedding of one head.
//!
//! Knows nothing of frequencies or positions: the caller gives cosine and sine of each angle.

use crate::isa::lanes::{LANES, Lanes, load_tail, store_tail};

/// Rotates dimensions `(2i, 2i + 1)` by angle i; dimensions past the angles stay.
///
/// `x' = x cos - y sin`, `y' = y cos + x sin`: the sine product is rounded, the other fused.
///
/// Shapes: `x`: `[n_dims]`; `cos_sin`: `[n_rot / 2][2]`.
///
/// Source: J. Su et al., "`RoFormer`" (2021), eq. 34; GGUF rope type NORM.
#[inline(always)]
pub(super) fn rope_interleaved<V: Lanes>(v: V, x: &mut [f32], cos_sin: &[f32]) {
    let n_rot = cos_sin.len();
    assert!(
        n_rot.is_multiple_of(2) && n_rot <= x.len(),
        "more angles than dimensions"
    );
    let (x, x_tail) = x[..n_rot].as_chunks_mut::<LANES>();
    let (cos_sin, cos_sin_tail) = cos_sin.as_chunks::<LANES>();
    for (x, cos_sin) in x.iter_mut().zip(cos_sin) {
        v.store(rotate_pairs(v, v.load(x), v.load(cos_sin)), x);
    }
    let y = rotate_pairs(v, load_tail(v, x_tail), load_tail(v, cos_sin_tail));
    store_tail(v, y, x_tail);
}

/// Rotates four neighbouring pairs.
#[inline(always)]
fn rotate_pairs<V: Lanes>(v: V, x: V::F, cos_sin: V::F) -> V::F {
    let crossed = v.mul(v.swap_pairs(x), v.dup_odd(cos_sin));
    v.fma_sub_add(x, v.dup_even(cos_sin), crossed)
}

/// Rotates dimensions `(i, i + n_rot / 2)` by angle i; dimensions past `n_rot` stay.
///
/// Arithmetic and shapes as for the interleaved order.
///
/// Source: the same paper in the order of GPT-NeoX; GGUF rope type NEOX.
#[inline(always)]
pub(super) fn rope_neox<V: Lanes>(v: V, x: &mut [f32], cos_sin: &[f32]) {
    let n_rot = cos_sin.len();
    assert!(
        n_rot.is_multiple_of(2) && n_rot <= x.len(),
        "more angles than dimensions"
    );
    let (first, second) = x[..n_rot].split_at_mut(n_rot / 2);
    let (first, first_tail) = first.as_chunks_mut::<LANES>();
    let (second, second_tail) = second.as_chunks_mut::<LANES>();
    let (cos_sin, cos_sin_tail) = cos_sin.as_chunks::<{ 2 * LANES }>();
    for ((first, second), cos_sin) in first.iter_mut().zip(second).zip(cos_sin) {
        let angles = load_angles(v, cos_sin);
        let (x, y) = rotate_halves(v, v.load(first), v.load(second), angles);
        v.store(x, first);
        v.store(y, second);
    }
    let mut padded = [0.0; 2 * LANES];
    padded[..cos_sin_tail.len()].copy_from_slice(cos_sin_tail);
    let tails = (load_tail(v, first_tail), load_tail(v, second_tail));
    let (x, y) = rotate_halves(v, tails.0, tails.1, load_angles(v, &padded));
    store_tail(v, x, first_tail);
    store_tail(v, y, second_tail);
}

/// Cosines and sines of eight angles.
#[inline(always)]
fn load_angles<V: Lanes>(v: V, cos_sin: &[f32; 2 * LANES]) -> (V::F, V::F) {
    let halves = cos_sin.as_chunks::<LANES>().0;
    v.deinterleave(v.load(&halves[0]), v.load(&halves[1]))
}

/// Rotates eight pairs whose parts lie in two vectors.
#[inline(always)]
fn rotate_halves<V: Lanes>(v: V, x: V::F, y: V::F, (cos, sin): (V::F, V::F)) -> (V::F, V::F) {
    (v.fms(x, cos, v.mul(y, sin)), v.fma(y, cos, v.mul(x, sin)))
}
