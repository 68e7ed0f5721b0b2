//! Eight lanes of `f32`: the only arithmetic that element-wise ops may use.
//!
//! [`Lanes`] is implemented by a zero-sized token for each instruction set. Holding a token proves
//! that the CPU has the instructions, so everything written over the trait is safe code, and
//! every implementation gives the same bits (NaN payloads excepted: which NaN comes out of an
//! operation on two of them is not defined). Fused steps are fused everywhere: the scalar
//! implementation uses [`f32::mul_add`].
//!
//! Knows nothing of ops, slices longer than a vector or model shapes; [`super::vector`] calls it.
#![expect(
    clippy::inline_always,
    reason = "bodies must inline into the function that enables the instruction set"
)]

#[cfg(target_arch = "x86_64")]
mod avx2;
mod scalar;

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2Lanes;
use half::f16;
pub use scalar::ScalarLanes;

/// Lanes of one vector.
pub const LANES: usize = 8;

/// Arithmetic on eight `f32` lanes; a value of the implementing type is the licence to use it.
///
/// Rounding is to nearest even throughout; subnormals are kept.
pub trait Lanes: Copy {
    /// Eight `f32`.
    type F: Copy;
    /// Eight `f64`, for sums that must not lose anything.
    type D: Copy;

    /// The same value in every lane.
    fn splat(self, x: f32) -> Self::F;
    /// Eight floats from memory.
    fn load(self, x: &[f32; LANES]) -> Self::F;
    /// Eight floats to memory.
    fn store(self, x: Self::F, out: &mut [f32; LANES]);
    /// Eight half floats from memory, widened exactly.
    fn load_f16(self, x: &[f16; LANES]) -> Self::F;
    /// Eight floats rounded to half floats; what is too large becomes an infinity.
    fn store_f16(self, x: Self::F, out: &mut [f16; LANES]);
    /// 32 floats, each an integer in [-128, 127], to bytes.
    fn store_i8(self, x: [Self::F; 4], out: &mut [i8; 4 * LANES]);

    /// `a + b`.
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a - b`.
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b`.
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a / b`.
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `a * b - c`, rounded once.
    fn fms(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `c - a * b`, rounded once.
    fn fnma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `a * b - c` in even lanes, `a * b + c` in odd ones, rounded once.
    fn fma_sub_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `a > b ? a : b`: the second operand when either is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a < b ? a : b`: the second operand when either is NaN.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// The value without its sign.
    fn abs(self, x: Self::F) -> Self::F;
    /// The nearest integer, ties to even.
    fn round(self, x: Self::F) -> Self::F;
    /// `a > b ? yes : no`; a NaN in `a` or `b` gives `no`.
    fn select_gt(self, a: Self::F, b: Self::F, yes: Self::F, no: Self::F) -> Self::F;
    /// `x * 2^n` by integer addition to the exponent.
    ///
    /// Exact while `x` and the result are normal and `n` is an integer; a NaN `n` leaves `x`.
    fn add_exponent(self, x: Self::F, n: Self::F) -> Self::F;

    /// Lanes 2i and 2i + 1 exchanged.
    fn swap_pairs(self, x: Self::F) -> Self::F;
    /// Lane 2i in lanes 2i and 2i + 1.
    fn dup_even(self, x: Self::F) -> Self::F;
    /// Lane 2i + 1 in lanes 2i and 2i + 1.
    fn dup_odd(self, x: Self::F) -> Self::F;
    /// Of 16 values, first `lo` then `hi`: those with an even index, and those with an odd one.
    fn deinterleave(self, lo: Self::F, hi: Self::F) -> (Self::F, Self::F);

    /// Sum of the lanes by one tree: lanes 4 apart, then 2, then 1.
    fn sum(self, x: Self::F) -> f32;
    /// Largest lane by the same tree, each step as [`Lanes::max`] of lower and upper lane.
    fn max_lane(self, x: Self::F) -> f32;
    /// Whether any lane is NaN.
    fn any_nan(self, x: Self::F) -> bool;

    /// Eight zeros in double precision.
    fn zero_f64(self) -> Self::D;
    /// `x * x + acc` in double precision, where the square of an `f32` is exact.
    fn add_square_f64(self, x: Self::F, acc: Self::D) -> Self::D;
    /// `a + b` in double precision.
    fn add_f64(self, a: Self::D, b: Self::D) -> Self::D;
    /// Sum of the lanes by the tree of [`Lanes::sum`].
    fn sum_f64(self, x: Self::D) -> f64;
}

/// Loads up to eight floats; the missing lanes are zero.
#[inline(always)]
pub(super) fn load_tail<V: Lanes>(v: V, x: &[f32]) -> V::F {
    let mut padded = [0.0; LANES];
    padded[..x.len()].copy_from_slice(x);
    v.load(&padded)
}

/// Stores the first `out.len()` lanes, at most eight.
#[inline(always)]
pub(super) fn store_tail<V: Lanes>(v: V, x: V::F, out: &mut [f32]) {
    let mut padded = [0.0; LANES];
    v.store(x, &mut padded);
    out.copy_from_slice(&padded[..out.len()]);
}
