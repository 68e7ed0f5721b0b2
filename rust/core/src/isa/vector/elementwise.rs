//! Ops on one element at a time: sums, products, gates, and the finite check.
//!
//! Every element goes through the same lane arithmetic wherever it lies in its slice.

use super::exp::exp;
use crate::isa::lanes::{LANES, Lanes, load_tail, store_tail};

/// A function of two lanes.
trait Binary {
    fn apply<V: Lanes>(v: V, a: V::F, b: V::F) -> V::F;
}

struct Sum;
impl Binary for Sum {
    #[inline(always)]
    fn apply<V: Lanes>(v: V, a: V::F, b: V::F) -> V::F {
        v.add(a, b)
    }
}

struct SwiGlu;
impl Binary for SwiGlu {
    #[inline(always)]
    fn apply<V: Lanes>(v: V, gate: V::F, up: V::F) -> V::F {
        let e = exp(v, v.sub(v.splat(0.0), gate));
        v.mul(v.div(gate, v.add(v.splat(1.0), e)), up)
    }
}

/// Applies `Op` to all pairs; the tail is padded to a whole vector.
#[inline(always)]
fn map<V: Lanes, Op: Binary>(v: V, a: &[f32], b: &[f32], out: &mut [f32]) {
    assert!(
        a.len() == out.len() && b.len() == out.len(),
        "operands differ in length"
    );
    let ((a, a_tail), (b, b_tail)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let (out, out_tail) = out.as_chunks_mut::<LANES>();
    for ((a, b), out) in a.iter().zip(b).zip(out) {
        v.store(Op::apply(v, v.load(a), v.load(b)), out);
    }
    if !out_tail.is_empty() {
        let y = Op::apply(v, load_tail(v, a_tail), load_tail(v, b_tail));
        store_tail(v, y, out_tail);
    }
}

/// `out = a + b`.
#[inline(always)]
pub(super) fn add<V: Lanes>(v: V, a: &[f32], b: &[f32], out: &mut [f32]) {
    map::<V, Sum>(v, a, b, out);
}

/// `x = x + y`.
#[inline(always)]
pub(super) fn add_assign<V: Lanes>(v: V, x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "operands differ in length");
    let ((x, x_tail), (y, y_tail)) = (x.as_chunks_mut::<LANES>(), y.as_chunks::<LANES>());
    for (x, y) in x.iter_mut().zip(y) {
        v.store(v.add(v.load(x), v.load(y)), x);
    }
    let sum = v.add(load_tail(v, x_tail), load_tail(v, y_tail));
    store_tail(v, sum, x_tail);
}

/// `out = gate / (1 + e^-gate) * up`.
#[inline(always)]
pub(super) fn swiglu<V: Lanes>(v: V, gate: &[f32], up: &[f32], out: &mut [f32]) {
    map::<V, SwiGlu>(v, gate, up, out);
}

/// `x = x * factor`.
#[inline(always)]
pub(super) fn scale<V: Lanes>(v: V, x: &mut [f32], factor: f32) {
    let factor = v.splat(factor);
    let (whole, tail) = x.as_chunks_mut::<LANES>();
    for x in whole {
        v.store(v.mul(v.load(x), factor), x);
    }
    let y = v.mul(load_tail(v, tail), factor);
    store_tail(v, y, tail);
}

/// Whether no element is infinite or NaN.
///
/// `0 * x` is zero for a finite `x` and NaN for any other, and a NaN survives every later sum.
#[inline(always)]
pub(super) fn all_finite<V: Lanes>(v: V, x: &[f32]) -> bool {
    let zero = v.splat(0.0);
    let mut probe = [zero; 4];
    let (rows, tail) = x.as_chunks::<{ 4 * LANES }>();
    for row in rows {
        for (probe, x) in probe.iter_mut().zip(row.as_chunks::<LANES>().0) {
            *probe = v.fma(v.load(x), zero, *probe);
        }
    }
    for x in tail.chunks(LANES) {
        probe[0] = v.fma(load_tail(v, x), zero, probe[0]);
    }
    let both = v.add(v.add(probe[0], probe[1]), v.add(probe[2], probe[3]));
    !v.any_nan(both)
}
