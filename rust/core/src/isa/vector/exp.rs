//! The one exponential: softmax and `SiLU` of every instruction set use this polynomial.
//!
//! Knows nothing of slices; called by the ops of this folder.

use crate::isa::lanes::Lanes;

/// Largest `x` whose exponential is finite.
const LARGEST: f32 = f32::from_bits(0x42b1_7217);
/// Smallest `x` whose exponential is taken as normal; below it the result is zero.
const SMALLEST: f32 = -87.336;
/// `ln 2`, upper part: few enough bits that a multiple of it up to 128 is exact.
const LN_2_HI: f32 = 355.0 / 512.0;
/// `ln 2`, the rest.
const LN_2_LO: f32 = -2.121_944_4e-4;
/// Coefficients of `(e^r - 1 - r) / r^2` for `|r| <= ln(2)/2`, highest power first.
const POLYNOMIAL: [f32; 6] = [
    1.987_569_1e-4,
    1.398_199_9e-3,
    8.333_452e-3,
    4.166_579_6e-2,
    1.666_666_5e-1,
    5e-1,
];

/// `e^x`, within 2 units in the last place on [-87.336, 88.72283].
///
/// Below that range the result is 0, above it infinity; NaN stays NaN. `e^0` is exactly 1.
///
/// `x = n ln 2 + r`, a polynomial of degree 7 in `r`, then `n` is added to the exponent. At
/// `n = 128` the polynomial is below 1, at `n = -126` not below it, so that the addition never
/// leaves the normal numbers.
///
/// Source: `expf` of the Cephes library (S. Moshier), with fused steps.
#[inline(always)]
pub(super) fn exp<V: Lanes>(v: V, x: V::F) -> V::F {
    let (smallest, largest) = (v.splat(SMALLEST), v.splat(LARGEST));
    // In this order of operands a NaN goes through both.
    let clamped = v.min(largest, v.max(smallest, x));
    let n = v.round(v.mul(clamped, v.splat(std::f32::consts::LOG2_E)));
    let r = v.fnma(n, v.splat(LN_2_LO), v.fnma(n, v.splat(LN_2_HI), clamped));
    let mut p = v.splat(POLYNOMIAL[0]);
    for c in &POLYNOMIAL[1..] {
        p = v.fma(p, r, v.splat(*c));
    }
    let y = v.add(v.fma(p, v.mul(r, r), r), v.splat(1.0));
    let y = v.add_exponent(y, n);
    let y = v.select_gt(x, largest, v.splat(f32::INFINITY), y);
    v.select_gt(smallest, x, v.splat(0.0), y)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::lanes::{LANES, ScalarLanes};

    fn exp_of(x: f32) -> f32 {
        exp(ScalarLanes, [x; LANES])[0]
    }

    /// Error in units of the last place of the exact value.
    fn error_ulp(x: f32) -> f64 {
        let exact = f64::from(x).exp();
        let ulp = f64::from(f32::from_bits((exact as f32).to_bits() + 1)) - f64::from(exact as f32);
        ((f64::from(exp_of(x)) - exact) / ulp).abs()
    }

    #[test]
    fn error_stays_below_two_units() {
        // About 200,000 values of both signs, evenly by bits, so that small ones are there too.
        let largest = LARGEST.to_bits();
        for bits in (0..largest).step_by(11_003) {
            let x = f32::from_bits(bits);
            assert!(error_ulp(x) < 2.0, "e^{x}: {} ulp", error_ulp(x));
            if -x >= SMALLEST {
                assert!(error_ulp(-x) < 2.0, "e^-{x}: {} ulp", error_ulp(-x));
            }
        }
        // The range that softmax and gates live in, evenly by value.
        for i in 0..160_000_u32 {
            let x = i as f32 * -0.000_54;
            assert!(error_ulp(x) < 2.0, "e^{x}: {} ulp", error_ulp(x));
        }
    }

    #[test]
    fn edges_are_exact() {
        assert_eq!(exp_of(0.0).to_bits(), 1.0_f32.to_bits());
        assert_eq!(exp_of(-0.0).to_bits(), 1.0_f32.to_bits());
        assert!(exp_of(LARGEST).is_finite());
        assert_eq!(exp_of(LARGEST.next_up()).to_bits(), f32::INFINITY.to_bits());
        assert_eq!(exp_of(f32::INFINITY).to_bits(), f32::INFINITY.to_bits());
        assert!(exp_of(SMALLEST).is_normal());
        assert_eq!(exp_of(SMALLEST.next_down()).to_bits(), 0);
        assert_eq!(exp_of(f32::NEG_INFINITY).to_bits(), 0);
        assert!(exp_of(f32::NAN).is_nan());
    }
}
