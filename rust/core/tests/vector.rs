//! Vector ops: every instruction set against the scalar bodies bit for bit, and the scalar bodies
//! against plain `f64` arithmetic.
#![expect(
    clippy::float_cmp,
    reason = "where results are compared exactly, they are exact"
)]

use half::f16;
use numamirror_core::isa::vector::{CacheMut, SCALAR, VectorOps};

mod vector_data;
use vector_data::{Random, assert_same_bits, others, rows};

/// Lengths that end in every possible tail, at least once past four vectors.
const LENGTHS: std::ops::RangeInclusive<usize> = 1..=70;

/// Runs `op` on rows of many lengths and contents with each instruction set and compares bits.
fn compare(name: &str, op: impl Fn(&VectorOps, &[f32], &[f32]) -> Vec<f32>) {
    for (isa, ops) in others() {
        for length in LENGTHS {
            for (a, b) in rows(length) {
                let expected = op(&SCALAR, &a, &b);
                assert_same_bits(
                    &op(ops, &a, &b),
                    &expected,
                    &format!("{isa} {name} {length}"),
                );
            }
        }
    }
}

/// Result of an op that writes a row as long as its operands.
fn written(length: usize, write: impl FnOnce(&mut [f32])) -> Vec<f32> {
    let mut out = vec![f32::NAN; length];
    write(&mut out);
    out
}

#[test]
fn elementwise_ops_agree() {
    compare("add", |ops, a, b| {
        written(a.len(), |out| ops.add(a, b, out))
    });
    compare("add_assign", |ops, a, b| {
        let mut x = a.to_vec();
        ops.add_assign(&mut x, b);
        x
    });
    compare("swiglu", |ops, a, b| {
        written(a.len(), |out| ops.swiglu(a, b, out))
    });
    compare("rms_norm", |ops, a, b| {
        written(a.len(), |out| ops.rms_norm(a, b, 1e-5, out))
    });
    compare("scale", |ops, a, b| {
        let mut x = a.to_vec();
        ops.scale(&mut x, b[0]);
        x
    });
    compare("all_finite", |ops, a, _| {
        vec![f32::from(u8::from(ops.all_finite(a)))]
    });
}

#[test]
fn rotations_agree() {
    for less in [0, 1, 6, 20] {
        let n_rot = |length: usize| length.saturating_sub(less) & !1;
        compare("rope_interleaved", |ops, a, b| {
            let mut x = a.to_vec();
            ops.rope_interleaved(&mut x, &b[..n_rot(a.len())]);
            x
        });
        compare("rope_neox", |ops, a, b| {
            let mut x = a.to_vec();
            ops.rope_neox(&mut x, &b[..n_rot(a.len())]);
            x
        });
    }
}

/// Codes, scale and sum of each block of a row.
fn quantized(ops: &VectorOps, x: &[f32]) -> (Vec<i8>, Vec<f32>, Vec<i32>) {
    let n_blocks = x.len() / 32;
    let mut row = (vec![99; x.len()], vec![9.0; n_blocks], vec![9; n_blocks]);
    ops.quantize_q8(x, &mut row.0, &mut row.1, &mut row.2);
    row
}

#[test]
fn quantization_agrees() {
    for (isa, ops) in others() {
        for n_blocks in 1..=5 {
            for (x, _) in rows(32 * n_blocks) {
                let (expected, found) = (quantized(&SCALAR, &x), quantized(ops, &x));
                assert_eq!(found.0, expected.0, "{isa}: codes");
                assert_eq!(found.2, expected.2, "{isa}: sums");
                assert_same_bits(&found.1, &expected.1, isa);
            }
        }
    }
}

#[test]
fn quantization_is_what_it_says() {
    let x = Random(7).row(64, 3.0);
    let (q, scale, sum) = quantized(&SCALAR, &x);
    for block in 0..2 {
        let range = 32 * block..32 * (block + 1);
        let largest = x[range.clone()]
            .iter()
            .fold(0.0_f32, |most, x| most.max(x.abs()));
        assert_eq!(scale[block], largest / 127.0);
        assert_eq!(
            sum[block],
            q[range.clone()].iter().map(|&q| i32::from(q)).sum::<i32>()
        );
        assert!(q[range.clone()].iter().any(|q| q.abs() == 127));
        for (q, x) in q[range.clone()].iter().zip(&x[range]) {
            // Half a step, and the rounding of x * (127 / largest) in the tie.
            assert!((f32::from(*q) * scale[block] - x).abs() <= scale[block] * 0.500_1);
        }
    }
}

#[test]
fn quantization_rounds_ties_to_even() {
    let mut x = [0.0; 32];
    x[..5].copy_from_slice(&[127.0, 0.5, 1.5, -2.5, -3.5]);
    let (q, scale, sum) = quantized(&SCALAR, &x);
    assert_eq!(q[..5], [127, 0, 2, -2, -4]);
    assert_eq!((scale[0], sum[0]), (1.0, 123));
}

#[test]
fn quantization_of_blocks_without_a_scale() {
    for tiny in [0.0, -0.0, 1e-40, 3e-37] {
        assert_eq!(
            quantized(&SCALAR, &[tiny; 32]),
            (vec![0; 32], vec![0.0], vec![0])
        );
    }
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for place in 0..32 {
            let mut x = [1.0; 64];
            x[place] = bad;
            let (q, scale, sum) = quantized(&SCALAR, &x);
            assert!(scale[0].is_nan() && q[..32] == [0; 32] && sum[0] == 0);
            assert_eq!((scale[1], sum[1]), (1.0 / 127.0, 32 * 127));
        }
    }
    let (q, scale, _) = quantized(&SCALAR, &[f32::MAX; 32]);
    assert!(q[0] == 127 && scale[0].is_finite());
}

/// Asserts that values agree within `tolerance` times the largest expected magnitude.
fn assert_near(found: &[f32], expected: &[f64], tolerance: f64) {
    let largest = expected.iter().fold(0.0_f64, |most, x| most.max(x.abs()));
    for (found, expected) in found.iter().zip(expected) {
        let error = (f64::from(*found) - expected).abs();
        assert!(
            error <= tolerance * largest,
            "{found} instead of {expected}"
        );
    }
}

#[test]
fn norm_and_gate_match_double_precision() {
    let (x, w) = (Random(1).row(576, 4.0), Random(2).row(576, 1.0));
    let f = |x: &f32| f64::from(*x);
    let mean = x.iter().map(|x| f(x) * f(x)).sum::<f64>() / 576.0;
    let norm: Vec<f64> = x
        .iter()
        .zip(&w)
        .map(|(x, w)| f(x) / (mean + 1e-5).sqrt() * f(w))
        .collect();
    // Three roundings of an element: the factor and two products.
    assert_near(
        &written(576, |out| SCALAR.rms_norm(&x, &w, 1e-5, out)),
        &norm,
        2e-7,
    );
    let gated: Vec<f64> = x
        .iter()
        .zip(&w)
        .map(|(g, u)| f(g) / (1.0 + (-f(g)).exp()) * f(u))
        .collect();
    assert_near(
        &written(576, |out| SCALAR.swiglu(&x, &w, out)),
        &gated,
        3e-7,
    );
}

#[test]
fn norm_of_large_rows_is_finite() {
    let out = written(33, |out| {
        SCALAR.rms_norm(&[1e30; 33], &[1.0; 33], 1e-5, out);
    });
    assert!(out.iter().all(|x| (x - 1.0).abs() < 1e-6));
}

#[test]
fn gate_at_the_ends() {
    let gate = [-f32::MAX, -200.0, 0.0, 200.0];
    let out = written(4, |out| SCALAR.swiglu(&gate, &[2.0; 4], out));
    assert_eq!(out, [0.0, 0.0, 0.0, 400.0]);
}

#[test]
fn rotations_match_double_precision() {
    let (x, n_rot) = (Random(3).row(80, 1.0), 64);
    let angles: Vec<f64> = (0..n_rot / 2).map(|i| f64::from(i) * 0.37).collect();
    let cos_sin: Vec<f32> = angles
        .iter()
        .flat_map(|a| [a.cos() as f32, a.sin() as f32])
        .collect();
    let rotated = |pair: fn(usize) -> (usize, usize)| {
        let mut y: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        for (i, angle) in angles.iter().enumerate() {
            let (a, b) = pair(i);
            let (xa, xb) = (y[a], y[b]);
            y[a] = xa * angle.cos() - xb * angle.sin();
            y[b] = xa * angle.sin() + xb * angle.cos();
        }
        y
    };
    let mut found = x.clone();
    SCALAR.rope_interleaved(&mut found, &cos_sin);
    assert_near(&found, &rotated(|i| (2 * i, 2 * i + 1)), 2e-7);
    assert_eq!(found[64..], x[64..]);
    found.clone_from(&x);
    SCALAR.rope_neox(&mut found, &cos_sin);
    assert_near(&found, &rotated(|i| (i, i + 32)), 2e-7);
    assert_eq!(found[64..], x[64..]);
}

#[test]
fn finite_check_finds_every_place() {
    for length in LENGTHS {
        let mut x = vec![f32::MAX; length];
        assert!(SCALAR.all_finite(&x));
        for place in 0..length {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                x[place] = bad;
                assert!(!SCALAR.all_finite(&x));
            }
            x[place] = -0.0;
        }
    }
    assert!(SCALAR.all_finite(&[]));
}

#[test]
fn storing_rounds_and_leaves_other_slots() {
    for (isa, ops) in [("scalar", &SCALAR)].into_iter().chain(others()) {
        for length in LENGTHS {
            for (x, _) in rows(length) {
                let mut k = vec![f16::ONE; length * 64];
                ops.store_k(&x, &mut CacheMut::F16(&mut k), 63);
                let mut v = vec![f16::ONE; length * 64];
                ops.store_v(&x, &mut CacheMut::F16(&mut v), 1);
                for (i, x) in x.iter().map(|x| f16::from_f32(*x)).enumerate() {
                    for found in [k[i * 64 + 63], v[length + i]] {
                        assert!(
                            found.to_bits() == x.to_bits() || found.is_nan() && x.is_nan(),
                            "{isa}"
                        );
                    }
                }
                let others = |x: &[f16]| x.iter().filter(|x| **x == f16::ONE).count();
                assert!(
                    others(&k) >= length * 63 && others(&v) == others(&k),
                    "{isa}"
                );
            }
        }
    }
}
