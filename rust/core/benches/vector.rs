//! Nanoseconds of the vector ops at the sizes of a 135M and a 1B llama.
//!
//! Prints the best of many short repeats, one thread, data in cache. `cargo bench --bench vector`
//! runs all instruction sets, with `-- avx2` one of them.
#![expect(clippy::print_stdout, reason = "the figures are what it is for")]

use std::hint::black_box;
use std::time::Instant;

use half::f16;
use numamirror_core::isa::vector::{
    AttendBlock, CacheRef, Partial, SCALAR, VectorOps, attend_scratch_elems,
};

/// Length of a repeat: short, so that some repeats of many are not interrupted.
const REPEAT_NS: u128 = 200_000;
/// Calls between looks at the clock, which take some 50 ns.
const CALLS_A_LOOK: u32 = 10;
/// Repeats of a measurement.
const N_REPEATS: usize = 60;

/// Nanoseconds a call in the best repeat.
fn best_ns(mut call: impl FnMut()) -> f64 {
    call();
    let repeat = |_| {
        let start = Instant::now();
        let mut n_calls = 0_u32;
        while start.elapsed().as_nanos() < REPEAT_NS {
            for _ in 0..CALLS_A_LOOK {
                call();
            }
            n_calls += CALLS_A_LOOK;
        }
        start.elapsed().as_nanos() as f64 / f64::from(n_calls)
    };
    (0..N_REPEATS).map(repeat).fold(f64::INFINITY, f64::min)
}

/// Deterministic values in [-1, 1].
fn row(n: usize) -> Vec<f32> {
    (0..n)
        .map(|i| ((i * 7919 + 13) % 2001) as f32 / 1000.0 - 1.0)
        .collect()
}

fn rows(isa: &str, ops: &VectorOps) {
    for n in [576, 2048] {
        let (x, mut out) = (row(n), vec![0.0; n]);
        let ns = best_ns(|| ops.rms_norm(black_box(&x), &x, 1e-5, &mut out));
        println!("{isa:6} rms_norm {n:27} {ns:10.0} ns");
        let ns = best_ns(|| ops.add(black_box(&x), &x, &mut out));
        println!("{isa:6} add {n:32} {ns:10.0} ns");
    }
    for n in [576, 1536, 2048, 8192] {
        let (x, mut out) = (row(n), vec![0.0; n]);
        let ns = best_ns(|| ops.swiglu(black_box(&x), &x, &mut out));
        println!("{isa:6} swiglu {n:29} {ns:10.0} ns");
        let (mut q, mut scale, mut sum) = (vec![0; n], vec![0.0; n / 32], vec![0; n / 32]);
        let ns = best_ns(|| {
            ops.quantize_q8(black_box(&x), &mut q, &mut scale, &mut sum);
        });
        println!("{isa:6} quantize_q8 {n:24} {ns:10.0} ns");
    }
    let angles: Vec<f32> = (0..32)
        .flat_map(|i| [(i as f32).cos(), (i as f32).sin()])
        .collect();
    let mut x = row(64);
    let ns = best_ns(|| ops.rope_interleaved(black_box(&mut x), &angles));
    println!("{isa:6} rope_interleaved {:19} {ns:10.0} ns", 64);
    let ns = best_ns(|| ops.rope_neox(black_box(&mut x), &angles));
    println!("{isa:6} rope_neox {:26} {ns:10.0} ns", 64);
    let logits = row(49_152);
    let ns = best_ns(|| {
        assert!(ops.all_finite(black_box(&logits)));
    });
    println!("{isa:6} all_finite {:25} {ns:10.0} ns", logits.len());
}

fn attention(isa: &str, ops: &VectorOps) {
    for dim in [64, 128] {
        let wide = row(dim * 64);
        let half: Vec<f16> = wide.iter().map(|x| f16::from_f32(*x)).collect();
        for m in [1, 2, 3, 4, 8, 16, 48, 64] {
            let (q, n_visible) = (row(m * dim), vec![64; m]);
            let (mut max, mut sum, mut acc) = (vec![0.0; m], vec![0.0; m], vec![0.0; m * dim]);
            let mut scratch = vec![0.0; attend_scratch_elems(m, dim, dim)];
            let mut partial = Partial {
                max: &mut max,
                sum: &mut sum,
                acc: &mut acc,
            };
            let mut time = |kv: CacheRef<'_>| {
                let block = AttendBlock {
                    q: &q,
                    n_visible: &n_visible,
                    k: kv,
                    v: kv,
                    k_dim: dim,
                    v_dim: dim,
                };
                partial.clear();
                best_ns(|| {
                    ops.attend_block(black_box(&block), &mut partial, &mut scratch);
                })
            };
            let (half, wide) = (time(CacheRef::F16(&half)), time(CacheRef::F32(&wide)));
            // Two products of m x 64 x dim multiply-adds.
            let gmac = (2 * m * 64 * dim) as f64 / half;
            println!(
                "{isa:6} attend_block dim {dim:3} rows {m:2}  f16 {half:10.0} ns  f32 {wide:10.0} ns  \
                 {gmac:6.1} GMAC/s"
            );
        }
    }
}

fn main() {
    let wanted = |isa| {
        std::env::args()
            .skip(1)
            .all(|arg| arg.starts_with('-') || arg == isa)
    };
    #[cfg(target_arch = "x86_64")]
    if let Some(ops) = numamirror_core::isa::vector::avx2().filter(|_| wanted("avx2")) {
        rows("avx2", ops);
        attention("avx2", ops);
    }
    if wanted("scalar") {
        rows("scalar", &SCALAR);
        attention("scalar", &SCALAR);
    }
}
