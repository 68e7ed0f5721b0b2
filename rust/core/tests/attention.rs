//! Attention over cache blocks: against double precision, and that company, chunks, cache memory
//! past the visible positions and the instruction set change no bit.

use half::f16;
use numamirror_core::isa::vector::{
    AttendBlock, CacheMut, CacheRef, Partial, SCALAR, VectorOps, attend_scratch_elems,
};

#[expect(dead_code, reason = "rows of extremes are not needed here")]
mod vector_data;
use vector_data::{Random, assert_same_bits, others};

/// Keys or values of one block, in the type under test.
#[derive(Clone)]
enum Cache {
    F16(Vec<f16>),
    F32(Vec<f32>),
}

impl Cache {
    /// A block full of NaN, as stale memory may be.
    fn stale(half: bool, n_dims: usize) -> Self {
        if half {
            Self::F16(vec![f16::NAN; 64 * n_dims])
        } else {
            Self::F32(vec![f32::NAN; 64 * n_dims])
        }
    }

    fn read(&self) -> CacheRef<'_> {
        match self {
            Self::F16(x) => CacheRef::F16(x),
            Self::F32(x) => CacheRef::F32(x),
        }
    }

    fn write(&mut self) -> CacheMut<'_> {
        match self {
            Self::F16(x) => CacheMut::F16(x),
            Self::F32(x) => CacheMut::F32(x),
        }
    }

    fn at(&self, i: usize) -> f64 {
        match self {
            Self::F16(x) => x[i].to_f64(),
            Self::F32(x) => f64::from(x[i]),
        }
    }
}

/// Blocks of one head in ascending order; what they don't hold is NaN.
struct History {
    k_dim: usize,
    v_dim: usize,
    blocks: Vec<(Cache, Cache)>,
}

impl History {
    fn new(half: bool, k_dim: usize, v_dim: usize, n_positions: usize) -> Self {
        let mut random = Random(99);
        let mut blocks = Vec::new();
        for position in 0..n_positions {
            if position % 64 == 0 {
                blocks.push((Cache::stale(half, k_dim), Cache::stale(half, v_dim)));
            }
            let (k, v) = blocks.last_mut().expect("pushed above");
            SCALAR.store_k(&random.row(k_dim, 1.0), &mut k.write(), position % 64);
            SCALAR.store_v(&random.row(v_dim, 2.0), &mut v.write(), position % 64);
        }
        Self {
            k_dim,
            v_dim,
            blocks,
        }
    }

    /// Attention of rows that see `n_visible[row]` positions, merged every `chunk` blocks.
    fn attend(&self, ops: &VectorOps, q: &[f32], n_visible: &[usize], chunk: usize) -> Vec<f32> {
        let (m, v_dim) = (n_visible.len(), self.v_dim);
        let mut total = Memory::new(m, v_dim);
        let mut scratch = vec![f32::NAN; attend_scratch_elems(m, self.k_dim, v_dim)];
        for (c, blocks) in self.blocks.chunks(chunk).enumerate() {
            let mut part = Memory::new(m, v_dim);
            for (b, (k, v)) in blocks.iter().enumerate() {
                let start = (c * chunk + b) * 64;
                let seen: Vec<usize> = n_visible
                    .iter()
                    .map(|n| n.saturating_sub(start).min(64))
                    .collect();
                let (k_dim, k, v) = (self.k_dim, k.read(), v.read());
                let block = AttendBlock {
                    q,
                    n_visible: &seen,
                    k,
                    v,
                    k_dim,
                    v_dim,
                };
                ops.attend_block(&block, &mut part.view(), &mut scratch);
            }
            ops.merge_partial(part.view().as_ref(), &mut total.view());
        }
        let mut out = vec![f32::NAN; m * v_dim];
        ops.finish(total.view().as_ref(), &mut out);
        out
    }

    /// The same for one row in double precision.
    fn exact(&self, q: &[f32], n_visible: usize) -> Vec<f64> {
        let score = |p: usize| -> f64 {
            let k = &self.blocks[p / 64].0;
            q.iter()
                .enumerate()
                .map(|(d, q)| f64::from(*q) * k.at(d * 64 + p % 64))
                .sum()
        };
        let weights: Vec<f64> = (0..n_visible).map(|p| score(p).exp()).collect();
        let total: f64 = weights.iter().sum();
        let value = |p: usize, d: usize| self.blocks[p / 64].1.at(p % 64 * self.v_dim + d);
        (0..self.v_dim)
            .map(|d| {
                weights
                    .iter()
                    .enumerate()
                    .map(|(p, w)| w * value(p, d))
                    .sum::<f64>()
                    / total
            })
            .collect()
    }
}

/// Owned memory of a partial result.
struct Memory {
    max: Vec<f32>,
    sum: Vec<f32>,
    acc: Vec<f32>,
}

impl Memory {
    fn new(m: usize, v_dim: usize) -> Self {
        let mut new = Self {
            max: vec![0.0; m],
            sum: vec![9.0; m],
            acc: vec![9.0; m * v_dim],
        };
        new.view().clear();
        new
    }

    fn view(&mut self) -> Partial<'_> {
        Partial {
            max: &mut self.max,
            sum: &mut self.sum,
            acc: &mut self.acc,
        }
    }
}

/// Scalar and whatever else the CPU has.
fn all() -> Vec<(&'static str, &'static VectorOps)> {
    std::iter::once(("scalar", &SCALAR))
        .chain(others())
        .collect()
}

/// Dimensions of keys and values: usual ones, and tails of every kind.
const DIMS: [(usize, usize); 7] = [
    (64, 64),
    (128, 128),
    (80, 96),
    (1, 1),
    (7, 13),
    (24, 20),
    (40, 72),
];

#[test]
fn matches_double_precision() {
    for half in [true, false] {
        for (k_dim, v_dim) in DIMS {
            let history = History::new(half, k_dim, v_dim, 150);
            let q = Random(5).row(k_dim, 1.0);
            for n in [1, 8, 63, 64, 65, 150] {
                let found = history.attend(&SCALAR, &q, &[n], 16);
                for (found, exact) in found.iter().zip(history.exact(&q, n)) {
                    // Scores of up to 10 with errors of some 1e-6 make weights that much wrong.
                    assert!(
                        (f64::from(*found) - exact).abs() < 1e-5,
                        "{k_dim} {v_dim} {n}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_row_is_the_same_in_any_company_and_on_any_isa() {
    for half in [true, false] {
        for (k_dim, v_dim) in DIMS {
            let history = History::new(half, k_dim, v_dim, 150);
            for m in [1, 2, 3, 4, 5, 8, 11] {
                let q = Random(m as u64).row(m * k_dim, 3.0);
                // Causal rows, the last of which see all.
                let visible: Vec<usize> = (0..m).map(|r| (70 + 17 * r).min(150)).collect();
                let alone: Vec<f32> = (0..m)
                    .flat_map(|r| {
                        let q = &q[r * k_dim..][..k_dim];
                        history.attend(&SCALAR, q, &visible[r..=r], 16)
                    })
                    .collect();
                for (isa, ops) in all() {
                    let found = history.attend(ops, &q, &visible, 16);
                    assert!(
                        found.iter().all(|x| x.is_finite()),
                        "{isa}: stale memory was used"
                    );
                    assert_same_bits(&found, &alone, &format!("{isa} {k_dim} {v_dim} {m} rows"));
                }
            }
        }
    }
}

#[test]
fn every_visible_count_works() {
    let history = History::new(true, 16, 24, 64);
    let q = Random(3).row(6 * 16, 2.0);
    for n in 1..=64_usize {
        let visible = [n, 64, n, 1, n.div_ceil(2), n];
        let expected = history.attend(&SCALAR, &q, &visible, 1);
        assert!(expected.iter().all(|x| x.is_finite()));
        for (isa, ops) in others() {
            assert_same_bits(&history.attend(ops, &q, &visible, 1), &expected, isa);
        }
    }
}

#[test]
fn memory_past_the_visible_positions_is_not_used() {
    // The same 70 positions, followed by NaN or by other positions.
    for half in [true, false] {
        let (short, long) = (
            History::new(half, 32, 32, 70),
            History::new(half, 32, 32, 100),
        );
        let q = Random(8).row(5 * 32, 2.0);
        let visible = [70, 69, 3, 64, 65];
        for (isa, ops) in all() {
            let found = short.attend(ops, &q, &visible, 16);
            assert_same_bits(&found, &long.attend(ops, &q, &visible, 16), isa);
        }
    }
}

#[test]
fn chunks_agree_with_one_pass_within_rounding() {
    let history = History::new(false, 64, 64, 640);
    let q = Random(4).row(2 * 64, 3.0);
    let whole = history.attend(&SCALAR, &q, &[640, 500], 99);
    for chunk in [1, 2, 3, 5] {
        let found = history.attend(&SCALAR, &q, &[640, 500], chunk);
        assert!(found.iter().zip(&whole).all(|(a, b)| (a - b).abs() < 2e-6));
        for (isa, ops) in others() {
            assert_same_bits(&history.attend(ops, &q, &[640, 500], chunk), &found, isa);
        }
    }
}

#[test]
fn empty_parts_change_nothing() {
    let history = History::new(true, 8, 9, 150);
    let q = Random(6).row(8, 1.0);
    for (isa, ops) in all() {
        // A chunk of one block in which the row sees nothing follows the only one it sees.
        let found = history.attend(ops, &q, &[40], 1);
        let first = History {
            k_dim: 8,
            v_dim: 9,
            blocks: history.blocks[..1].to_vec(),
        };
        assert_same_bits(&found, &first.attend(ops, &q, &[40], 1), isa);
        // Two empty rows stay empty, and an empty total takes the bits of what is merged.
        let (mut a, mut b) = (Memory::new(2, 3), Memory::new(2, 3));
        ops.merge_partial(b.view().as_ref(), &mut a.view());
        assert_eq!(
            (&a.max, &a.sum),
            (&vec![f32::NEG_INFINITY; 2], &vec![0.0; 2])
        );
        b = Memory {
            max: vec![-3.0, 2.0],
            sum: vec![1.5, 1.0],
            acc: vec![-0.0, 1.0, 2.0, 3.0, 4.0, 5.0],
        };
        ops.merge_partial(b.view().as_ref(), &mut a.view());
        assert_same_bits(&a.acc, &b.acc, isa);
        assert_eq!((&a.max, &a.sum), (&b.max, &b.sum));
        // Nor does an empty chunk touch the sign of a zero.
        let before = a.acc.clone();
        ops.merge_partial(Memory::new(2, 3).view().as_ref(), &mut a.view());
        assert_same_bits(&a.acc, &before, isa);
    }
}

#[test]
fn non_finite_queries_and_keys_give_nan() {
    for (isa, ops) in all() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e38] {
            let history = History::new(true, 16, 16, 150);
            let mut q = Random(2).row(2 * 16, 1.0);
            q[..16].fill(bad);
            let out = history.attend(ops, &q, &[150, 150], 1);
            let expect_nan = !bad.is_finite();
            assert!(
                !expect_nan || out[..16].iter().all(|x| x.is_nan()),
                "{isa} {bad}"
            );
            assert!(
                out[16..].iter().all(|x| x.is_finite()),
                "{isa} {bad}: the other row"
            );
        }
    }
}
