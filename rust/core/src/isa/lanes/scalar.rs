//! Eight lanes in plain Rust: the reference for every instruction set.

use std::array::from_fn;

use half::f16;

use super::{LANES, Lanes};

/// Token of the instruction set that every CPU has.
#[derive(Debug, Clone, Copy)]
pub struct ScalarLanes;

/// Folds eight lanes as the vector registers do: 4 apart, 2 apart, neighbours.
#[inline(always)]
fn fold<T: Copy>(x: [T; LANES], step: impl Fn(T, T) -> T) -> T {
    let four: [T; 4] = from_fn(|i| step(x[i], x[i + 4]));
    step(step(four[0], four[2]), step(four[1], four[3]))
}

/// Maximum with the rule of the x86 instruction: the second operand unless the first is larger.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

impl Lanes for ScalarLanes {
    type F = [f32; LANES];
    type D = [f64; LANES];

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [x; LANES]
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::F {
        *x
    }

    #[inline(always)]
    fn store(self, x: Self::F, out: &mut [f32; LANES]) {
        *out = x;
    }

    #[inline(always)]
    fn load_f16(self, x: &[f16; LANES]) -> Self::F {
        x.map(f16::to_f32)
    }

    #[inline(always)]
    fn store_f16(self, x: Self::F, out: &mut [f16; LANES]) {
        *out = x.map(f16::from_f32);
    }

    #[inline(always)]
    fn store_i8(self, x: [Self::F; 4], out: &mut [i8; 4 * LANES]) {
        for (to, from) in out.iter_mut().zip(x.as_flattened()) {
            *to = *from as i8;
        }
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] - b[i])
    }

    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] * b[i])
    }

    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] / b[i])
    }

    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        from_fn(|i| a[i].mul_add(b[i], c[i]))
    }

    #[inline(always)]
    fn fms(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        from_fn(|i| a[i].mul_add(b[i], -c[i]))
    }

    #[inline(always)]
    fn fnma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        from_fn(|i| (-a[i]).mul_add(b[i], c[i]))
    }

    #[inline(always)]
    fn fma_sub_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        from_fn(|i| a[i].mul_add(b[i], if i % 2 == 0 { -c[i] } else { c[i] }))
    }

    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| larger(a[i], b[i]))
    }

    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn abs(self, x: Self::F) -> Self::F {
        x.map(f32::abs)
    }

    #[inline(always)]
    fn round(self, x: Self::F) -> Self::F {
        x.map(f32::round_ties_even)
    }

    #[inline(always)]
    fn select_gt(self, a: Self::F, b: Self::F, yes: Self::F, no: Self::F) -> Self::F {
        from_fn(|i| if a[i] > b[i] { yes[i] } else { no[i] })
    }

    #[inline(always)]
    fn add_exponent(self, x: Self::F, n: Self::F) -> Self::F {
        from_fn(|i| f32::from_bits(x[i].to_bits().wrapping_add((n[i] as i32 as u32) << 23)))
    }

    #[inline(always)]
    fn swap_pairs(self, x: Self::F) -> Self::F {
        from_fn(|i| x[i ^ 1])
    }

    #[inline(always)]
    fn dup_even(self, x: Self::F) -> Self::F {
        from_fn(|i| x[i & !1])
    }

    #[inline(always)]
    fn dup_odd(self, x: Self::F) -> Self::F {
        from_fn(|i| x[i | 1])
    }

    #[inline(always)]
    fn deinterleave(self, lo: Self::F, hi: Self::F) -> (Self::F, Self::F) {
        let both = [lo, hi];
        let flat = both.as_flattened();
        (from_fn(|i| flat[2 * i]), from_fn(|i| flat[2 * i + 1]))
    }

    #[inline(always)]
    fn sum(self, x: Self::F) -> f32 {
        fold(x, |a, b| a + b)
    }

    #[inline(always)]
    fn max_lane(self, x: Self::F) -> f32 {
        fold(x, larger)
    }

    #[inline(always)]
    fn any_nan(self, x: Self::F) -> bool {
        x.iter().any(|x| x.is_nan())
    }

    #[inline(always)]
    fn zero_f64(self) -> Self::D {
        [0.0; LANES]
    }

    #[inline(always)]
    fn add_square_f64(self, x: Self::F, acc: Self::D) -> Self::D {
        from_fn(|i| f64::from(x[i]) * f64::from(x[i]) + acc[i])
    }

    #[inline(always)]
    fn add_f64(self, a: Self::D, b: Self::D) -> Self::D {
        from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    fn sum_f64(self, x: Self::D) -> f64 {
        fold(x, |a, b| a + b)
    }
}
