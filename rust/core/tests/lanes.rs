//! Each operation of the lanes, on every instruction set, against the scalar one bit for bit.
#![cfg(target_arch = "x86_64")]
#![expect(unsafe_code, reason = "a token is made after detection")]

use half::f16;
use numamirror_core::isa::lanes::{Avx2Lanes, LANES, Lanes, ScalarLanes};

#[expect(dead_code, reason = "tables of ops are not needed here")]
mod vector_data;
use vector_data::{assert_same_bits, rows};

/// Results of all operations of `v` on three vectors, one after another.
fn everything<V: Lanes>(v: V, x: &[[f32; LANES]; 3]) -> Vec<f32> {
    let [a, b, c] = [v.load(&x[0]), v.load(&x[1]), v.load(&x[2])];
    let (even, odd) = v.deinterleave(a, b);
    let mut half = [f16::ZERO; LANES];
    v.store_f16(a, &mut half);
    let vectors = [
        v.splat(x[0][3]),
        v.add(a, b),
        v.sub(a, b),
        v.mul(a, b),
        v.div(a, b),
        v.fma(a, b, c),
        v.fms(a, b, c),
        v.fnma(a, b, c),
        v.fma_sub_add(a, b, c),
        v.max(a, b),
        v.min(a, b),
        v.abs(a),
        v.round(a),
        v.select_gt(a, b, c, a),
        v.swap_pairs(a),
        v.dup_even(a),
        v.dup_odd(a),
        even,
        odd,
        v.load_f16(&half),
        v.add_exponent(
            v.splat(1.25),
            v.round(v.max(v.splat(-126.0), v.min(a, v.splat(127.0)))),
        ),
    ];
    let mut out = Vec::new();
    for vector in vectors {
        let mut lanes = [0.0; LANES];
        v.store(vector, &mut lanes);
        out.extend(lanes);
    }
    let codes = [a, b, c, a].map(|x| v.round(v.max(v.splat(-128.0), v.min(x, v.splat(127.0)))));
    if !codes.iter().any(|x| v.any_nan(*x)) {
        let mut bytes = [0; 4 * LANES];
        v.store_i8(codes, &mut bytes);
        out.extend(bytes.map(f32::from));
    }
    let squares = v.add_square_f64(b, v.add_square_f64(a, v.zero_f64()));
    let squares = v.sum_f64(v.add_f64(squares, v.add_square_f64(c, v.zero_f64())));
    // Both halves of the double, so that no bit is lost.
    out.extend([squares as f32, (squares - f64::from(squares as f32)) as f32]);
    out.extend([v.sum(a), v.max_lane(a), f32::from(u8::from(v.any_nan(a)))]);
    out
}

#[test]
#[expect(clippy::print_stderr, reason = "a skipped comparison must be visible")]
fn avx2_equals_scalar() {
    if !Avx2Lanes::detected() {
        eprintln!("skipped: this cpu has no avx2 with fma and f16c");
        return;
    }
    // SAFETY: detected above.
    let avx2 = unsafe { Avx2Lanes::new() };
    // Ordinary rows, any bits, extremes; enough of each that a step fused in one only shows.
    for (a, b) in rows(3 * LANES * 200) {
        for row in [a, b] {
            for x in row.as_chunks::<LANES>().0.as_chunks::<3>().0 {
                let expected = everything(ScalarLanes, x);
                assert_same_bits(&everything(avx2, x), &expected, &format!("{x:?}"));
            }
        }
    }
}
