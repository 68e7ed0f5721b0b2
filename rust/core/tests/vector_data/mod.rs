//! Rows of numbers for the tests of vector ops, and the comparison of bits.

use numamirror_core::isa::vector::VectorOps;

/// A small generator (`xorshift64*`), so that rows are the same on every machine.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Bits, the upper half of the state's product.
    pub(crate) fn bits(&mut self) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) as u32
    }

    /// A value in [-1, 1).
    pub(crate) fn unit(&mut self) -> f32 {
        (self.bits() >> 8) as f32 / (1 << 23) as f32 - 1.0
    }

    /// Values in [-largest, largest).
    pub(crate) fn row(&mut self, length: usize, largest: f32) -> Vec<f32> {
        (0..length).map(|_| self.unit() * largest).collect()
    }
}

/// Values at which arithmetic changes its ways.
const EXTREMES: [f32; 16] = [
    0.0,
    -0.0,
    f32::MAX,
    f32::MIN,
    f32::MIN_POSITIVE,
    1e-45,
    -1e-40,
    3.7e-37,
    65_519.0,
    -65_520.0,
    88.722_83,
    -87.336,
    -104.0,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
];

/// Pairs of rows: ordinary ones, any finite bits, and ones full of extremes.
pub(crate) fn rows(length: usize) -> Vec<(Vec<f32>, Vec<f32>)> {
    let mut random = Random(length as u64 + 1);
    let mut any = |_| {
        let x = f32::from_bits(random.bits());
        if x.is_finite() { x } else { 1.0 }
    };
    let bits: [Vec<f32>; 2] = [
        (0..length).map(&mut any).collect(),
        (0..length).map(&mut any).collect(),
    ];
    let mut extreme = |_| EXTREMES[random.bits() as usize % EXTREMES.len()];
    let extremes: [Vec<f32>; 2] = [
        (0..length).map(&mut extreme).collect(),
        (0..length).map(&mut extreme).collect(),
    ];
    let ordinary = [random.row(length, 1.0), random.row(length, 20.0)];
    [ordinary, bits, extremes]
        .into_iter()
        .map(|[a, b]| (a, b))
        .collect()
}

/// Tables to compare with the scalar one; says so when the CPU has none.
#[expect(clippy::print_stderr, reason = "a skipped comparison must be visible")]
pub(crate) fn others() -> Vec<(&'static str, &'static VectorOps)> {
    #[cfg(target_arch = "x86_64")]
    let found: Vec<_> = numamirror_core::isa::vector::avx2()
        .into_iter()
        .map(|ops| ("avx2", ops))
        .collect();
    #[cfg(not(target_arch = "x86_64"))]
    let found = Vec::new();
    if found.is_empty() {
        eprintln!("skipped: this cpu has no instruction set but the scalar one");
    }
    found
}

/// Asserts equal bits, where any NaN equals any other.
pub(crate) fn assert_same_bits(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
        assert!(
            same,
            "{what}: element {i} is {found:e}, scalar {expected:e}"
        );
    }
}
