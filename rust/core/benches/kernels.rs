//! Speed of every packed form on every instruction set that this CPU has, one thread.
//!
//! For 1, 4, 16, 64 and 256 columns: weight bytes read a second, their share of a plain streaming
//! read of the same buffer measured just before, and multiply-adds a second. The weights lie in a
//! buffer larger than most caches and panels are visited in order, as in a forward pass.
//!
//! `cargo bench -p numamirror-core --bench kernels [-- [FORM] [N_COLS]]`; asserts nothing.
#![expect(unsafe_code, reason = "calls kernels")]
#![expect(clippy::print_stdout, reason = "a benchmark's table is its output")]

use numamirror_core::isa::{self, Isa};
use numamirror_core::packed::{
    self, ActivationKind, Activations, OutTile, PackedForm, Q8Activations,
};
use std::hint::black_box;
use std::time::{Duration, Instant};

const BUFFER_BYTES: usize = 128 << 20;
const HUGE_PAGE_BYTES: usize = 2 << 20;
const COLUMN_COUNTS: [usize; 5] = [1, 4, 16, 64, 256];
const RUN_TIME: Duration = Duration::from_millis(5);
const N_REPEATS: usize = 30;

fn main() {
    let args: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with("--"))
        .collect();
    let only = args.iter().find(|a| a.parse::<usize>().is_err());
    let n_cols = args.iter().find_map(|a| a.parse().ok()).unwrap_or(2048);
    println!(
        "rows of {n_cols} columns, {} MiB of weights, 1 thread",
        BUFFER_BYTES >> 20
    );
    println!("form       isa     columns   GB/s  of read  GMAC/s");
    let buffer = Buffer::new();
    for form in packed::FORMS {
        if only.is_some_and(|name| name != form.name) {
            continue;
        }
        for isa in isa::available() {
            for n_tokens in COLUMN_COUNTS {
                row(form, isa, n_cols, n_tokens, &buffer);
            }
        }
    }
}

/// Measures one cell of the table, best of a few repeats, and prints it.
fn row(form: &PackedForm, isa: &Isa, n_cols: usize, n_tokens: usize, buffer: &Buffer) {
    let (mut best, mut read) = (0.0_f64, 0.0_f64);
    for _ in 0..N_REPEATS {
        read = read.max(read_gbps(buffer.bytes()));
        best = best.max(matmul_gbps(form, isa, n_cols, n_tokens, buffer));
    }
    let macs_a_byte = (isa.panel_rows * n_cols * n_tokens) as f64
        / (form.panel_bytes)(isa.panel_rows, n_cols) as f64;
    println!(
        "{:10} {:7} {n_tokens:7} {best:6.1} {:8.2} {:7.1}",
        form.name,
        isa.name,
        best / read,
        best * macs_a_byte
    );
}

/// Weight bytes a second of one form's kernel.
fn matmul_gbps(
    form: &PackedForm,
    isa: &Isa,
    n_cols: usize,
    n_tokens: usize,
    buffer: &Buffer,
) -> f64 {
    let panel_bytes = (form.panel_bytes)(isa.panel_rows, n_cols);
    let matmul = isa.matmul(form);
    let columns = Columns::new(n_cols, n_tokens);
    let acts = columns.of_kind(form.activation);
    let mut out = vec![0.0_f32; n_tokens * isa.panel_rows];
    let (start, mut n_bytes) = (Instant::now(), 0);
    for panel in buffer.bytes().chunks_exact(panel_bytes).cycle() {
        // SAFETY: `out` has `n_tokens` rows of `panel_rows` floats; panel and activations have
        // the form's sizes; the set is one of `isa::available`.
        unsafe {
            let tile = OutTile::new(out.as_mut_ptr(), isa.panel_rows, isa.panel_rows);
            matmul(panel, isa.panel_rows, n_cols, &acts, n_tokens, tile);
        }
        n_bytes += panel_bytes;
        if start.elapsed() > RUN_TIME {
            break;
        }
    }
    black_box(&out);
    n_bytes as f64 / start.elapsed().as_secs_f64() / 1e9
}

/// Bytes a second of a plain read of everything.
fn read_gbps(bytes: &[u8]) -> f64 {
    let start = Instant::now();
    let mut sums = [0_u64; 16];
    for line in bytes.as_chunks::<128>().0 {
        for (sum, word) in sums.iter_mut().zip(line.as_chunks::<8>().0) {
            *sum = sum.wrapping_add(u64::from_ne_bytes(*word));
        }
    }
    black_box(sums);
    bytes.len() as f64 / start.elapsed().as_secs_f64() / 1e9
}

/// Weight bytes that are harmless in every form: no float of them is large.
struct Buffer {
    bytes: Vec<u8>,
    start: usize,
}

impl Buffer {
    fn new() -> Self {
        let mut bytes = Vec::<u8>::with_capacity(BUFFER_BYTES + HUGE_PAGE_BYTES);
        let start = bytes.as_ptr().align_offset(HUGE_PAGE_BYTES);
        // SAFETY: advice on reserved memory of ours; a refusal leaves small pages.
        unsafe {
            let first = bytes.as_mut_ptr().add(start);
            libc::madvise(first.cast(), BUFFER_BYTES, libc::MADV_HUGEPAGE);
        }
        bytes.resize(BUFFER_BYTES + HUGE_PAGE_BYTES, 0);
        let mut state = 1_u32;
        for word in bytes.as_chunks_mut::<4>().0 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Both halves as f16 or bf16, and the whole as f32, are ordinary numbers below 2.
            word.copy_from_slice(&(state & 0x83ff_83ff | 0x3c00_3c00).to_le_bytes());
        }
        Self { bytes, start }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..][..BUFFER_BYTES]
    }
}

/// Activations of both kinds.
struct Columns {
    x: Vec<f32>,
    q: Vec<i8>,
    scale: Vec<f32>,
    sum: Vec<i32>,
}

impl Columns {
    fn new(n_cols: usize, n_tokens: usize) -> Self {
        let q: Vec<i8> = (0..n_cols * n_tokens)
            .map(|i| (i * 37 % 255) as i8)
            .collect();
        let sum = q
            .chunks(packed::Q8_BLOCK_ELEMS)
            .map(|b| b.iter().map(|&q| i32::from(q)).sum());
        let sum: Vec<i32> = sum.collect();
        Self {
            x: vec![0.25; q.len()],
            scale: vec![0.01; sum.len()],
            q,
            sum,
        }
    }

    fn of_kind(&self, kind: ActivationKind) -> Activations<'_> {
        match kind {
            ActivationKind::F32 => Activations::F32(&self.x),
            ActivationKind::Q8 => Activations::Q8(Q8Activations {
                q: &self.q,
                scale: &self.scale,
                sum: &self.sum,
            }),
        }
    }
}
