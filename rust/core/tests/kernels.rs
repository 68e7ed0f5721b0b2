//! Every packed form on every instruction set, walked from the registries.
//!
//! A type is packed and unpacked, its scalar kernel is held against float64, and every other
//! instruction set against the scalar kernel, bit for bit. What the CPU lacks is not run; one
//! line says so.
#![expect(unsafe_code, reason = "calls kernels")]

use numamirror_core::isa::{self, Isa};
use numamirror_core::packed::{
    self, ActivationKind, Activations, BadScale, OutTile, PackedForm, Q8_BLOCK_ELEMS, Q8Activations,
};
use numamirror_core::quant::{self, Decoder, QuantType};
use proptest::prelude::*;

/// What an output that nobody may write holds.
const SENTINEL: f32 = -12_345.678;

/// Shapes that have gone wrong somewhere: one row, odd rows, one block, odd block counts.
const BLOCK_SHAPES: [(usize, usize); 5] = [(1, 32), (3, 64), (8, 96), (7, 160), (8, 2112)];

/// Lengths that no block type can have, for the float forms.
const FLOAT_SHAPES: [(usize, usize); 4] = [(1, 1), (5, 31), (8, 33), (8, 100)];

/// A generator of numbers that is the same on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as u32
    }

    /// Between -1 and 1.
    fn unit(&mut self) -> f32 {
        self.next() as f32 / f32::from_bits(0x4e80_0000) - 1.0
    }
}

/// Columns of both kinds, with the 8-bit ones not quantized from the floats but chosen freely.
struct Columns {
    x: Vec<f32>,
    q: Vec<i8>,
    scale: Vec<f32>,
    sum: Vec<i32>,
}

impl Columns {
    fn new(n_cols: usize, q: Vec<i8>, random: &mut Random) -> Self {
        let whole = q.len() / n_cols * (n_cols / Q8_BLOCK_ELEMS) * Q8_BLOCK_ELEMS;
        let blocks = q[..whole].chunks_exact(Q8_BLOCK_ELEMS);
        let sum: Vec<i32> = blocks
            .map(|b| b.iter().map(|&q| i32::from(q)).sum())
            .collect();
        let scale = sum.iter().map(|_| random.unit().abs() * 0.1).collect();
        Self {
            x: q.iter().map(|_| random.unit()).collect(),
            q,
            scale,
            sum,
        }
    }

    fn random(n_cols: usize, n_tokens: usize, random: &mut Random) -> Self {
        let q = (0..n_cols * n_tokens).map(|_| (random.next() % 255) as i16 - 127);
        let q = q
            .map(|q| i8::try_from(q).expect("within -127..=127"))
            .collect();
        Self::new(n_cols, q, random)
    }

    fn all(n_cols: usize, n_tokens: usize, q: i8, random: &mut Random) -> Self {
        Self::new(n_cols, vec![q; n_cols * n_tokens], random)
    }

    /// The columns from `first` on, as the form wants them.
    fn of_kind(&self, kind: ActivationKind, first: usize, n_cols: usize) -> Activations<'_> {
        let (at, block) = (first * n_cols, first * (n_cols / Q8_BLOCK_ELEMS));
        match kind {
            ActivationKind::F32 => Activations::F32(&self.x[at..]),
            ActivationKind::Q8 => Activations::Q8(Q8Activations {
                q: &self.q[at..],
                scale: &self.scale[block..],
                sum: &self.sum[block..],
            }),
        }
    }

    /// The number that element `k` of token `token` stands for.
    fn value(&self, kind: ActivationKind, n_cols: usize, token: usize, k: usize) -> f64 {
        let at = token * n_cols + k;
        match kind {
            ActivationKind::F32 => f64::from(self.x[at]),
            ActivationKind::Q8 => {
                f64::from(self.q[at]) * f64::from(self.scale[at / Q8_BLOCK_ELEMS])
            }
        }
    }
}

/// Rows of a type as they stand in a file, with scales of either sign and ordinary size.
fn file_rows(quant: &QuantType, n_rows: usize, n_cols: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes: Vec<u8> = Vec::new();
    while bytes.len() < n_rows * quant.row_bytes(n_cols) {
        let block: Vec<u8> = (0..quant.block_bytes)
            .map(|_| random.next() as u8)
            .collect();
        let mut values = vec![0.0; quant.block_elems];
        quant.dequantize(&block, &mut values);
        if values
            .iter()
            .all(|v| v.abs() < 1e4 && (*v == 0.0 || v.abs() > 1e-6))
        {
            bytes.extend(block);
        }
    }
    bytes
}

/// A panel of a type, the type's own form, packed for an instruction set.
fn pack(
    quant: &QuantType,
    rows: &[u8],
    (n_rows, n_cols, panel_rows): (usize, usize, usize),
) -> Result<Vec<u8>, BadScale> {
    let form = form_of(quant);
    // Whatever the packer does not overwrite would be seen.
    let mut panel = vec![0xa5; (form.panel_bytes)(panel_rows, n_cols)];
    (form.pack_panel)(quant, rows, n_rows, n_cols, panel_rows, &mut panel)?;
    Ok(panel)
}

fn form_of(quant: &QuantType) -> &'static PackedForm {
    packed::form_for(quant).expect("every type has a form")
}

/// Runs a kernel, one row of `n_rows + 3` floats a token, sentinels before, between and after.
fn run(
    isa: &Isa,
    form: &PackedForm,
    panel: &[u8],
    (n_rows, n_cols, n_tokens): (usize, usize, usize),
    acts: &Activations<'_>,
) -> Vec<u32> {
    let stride = n_rows + 3;
    let mut out = vec![SENTINEL; stride * (n_tokens + 2)];
    // SAFETY: `n_tokens` rows of `n_rows` floats start at `stride`; panel and activations were
    // made for these sizes; the set is one of `isa::available`.
    unsafe {
        let tile = OutTile::new(out.as_mut_ptr().add(stride), stride, n_rows);
        isa.matmul(form)(panel, isa.panel_rows, n_cols, acts, n_tokens, tile);
    }
    let mut sums = Vec::new();
    for (i, value) in out.iter().enumerate() {
        let inside = (stride..stride * (n_tokens + 1)).contains(&i) && i % stride < n_rows;
        if inside {
            sums.push(value.to_bits());
        } else {
            assert_eq!(
                value.to_bits(),
                SENTINEL.to_bits(),
                "{} wrote outside",
                form.name
            );
        }
    }
    sums
}

/// The sets to test, and a line for each that the CPU lacks.
#[expect(clippy::print_stderr, reason = "a test that does not run must be seen")]
fn isas() -> &'static [&'static Isa] {
    for (name, has) in isa::known() {
        if !has {
            eprintln!("not tested, this cpu lacks it: {name}");
        }
    }
    isa::available()
}

/// The set with the plain kernels.
fn scalar() -> &'static Isa {
    isa::choose(Some("scalar")).expect("every CPU runs plain Rust")
}

/// The shapes a type can have.
fn shapes(quant: &QuantType) -> Vec<(usize, usize)> {
    let mut shapes = BLOCK_SHAPES.to_vec();
    if let Decoder::Floats { .. } = quant.decoder {
        shapes.extend(FLOAT_SHAPES);
    }
    shapes.retain(|(_, n_cols)| n_cols.is_multiple_of(quant.block_elems));
    shapes
}

/// Holds every set against scalar, many columns against one, and both against `columns`.
fn check_sets(quant: &QuantType, rows: &[u8], (n_rows, n_cols): (usize, usize), columns: &Columns) {
    let form = form_of(quant);
    let n_tokens = columns.q.len() / n_cols;
    let mut want: Option<Vec<u32>> = None;
    for isa in isas() {
        let panel = pack(quant, rows, (n_rows, n_cols, isa.panel_rows)).expect("finite scales");
        let all = columns.of_kind(form.activation, 0, n_cols);
        let got = run(isa, form, &panel, (n_rows, n_cols, n_tokens), &all);
        let place = format!("{} {} {n_rows}x{n_cols}", quant.name, isa.name);
        assert_eq!(want.get_or_insert_with(|| got.clone()), &got, "{place}");
        for token in 0..n_tokens {
            let one = columns.of_kind(form.activation, token, n_cols);
            let one = run(isa, form, &panel, (n_rows, n_cols, 1), &one);
            assert_eq!(
                one,
                got[token * n_rows..][..n_rows],
                "{place} token {token}"
            );
        }
    }
}

#[test]
fn every_type_has_exactly_one_form_and_names_are_unique() {
    for quant in quant::TYPES {
        let holds = packed::FORMS
            .iter()
            .filter(|form| form.content == quant.content());
        assert_eq!(holds.count(), 1, "{}", quant.name);
    }
    for form in packed::FORMS {
        assert_eq!(packed::by_name(form.name).map(|f| f.name), Some(form.name));
        assert_eq!(
            packed::FORMS.iter().filter(|f| f.name == form.name).count(),
            1
        );
    }
    assert!(packed::by_name("code9").is_none());
}

#[test]
fn unpacked_rows_are_the_decoded_ones() {
    let mut random = Random(1);
    for quant in quant::TYPES {
        for (n_rows, n_cols) in shapes(quant) {
            let rows = file_rows(quant, n_rows, n_cols, &mut random);
            let mut want = vec![0.0; n_rows * n_cols];
            quant.dequantize(&rows, &mut want);
            for panel_rows in [8, 16] {
                let panel = pack(quant, &rows, (n_rows, n_cols, panel_rows)).expect("finite");
                let mut got = vec![SENTINEL; n_cols];
                for row in 0..panel_rows {
                    let unpack = form_of(quant).unpack_row;
                    unpack(&panel, panel_rows, n_cols, row, &mut got);
                    let same = |want: &[f32]| {
                        got.iter()
                            .zip(want)
                            .all(|(a, b)| a.to_bits() == b.to_bits())
                    };
                    match want.chunks(n_cols).nth(row) {
                        Some(want) => assert!(same(want), "{} row {row}", quant.name),
                        None => assert!(got.iter().all(|v| *v == 0.0), "{} pads", quant.name),
                    }
                }
            }
        }
    }
}

#[test]
fn panels_are_as_large_as_in_the_file() {
    for quant in quant::TYPES {
        for n_cols in [576, 1536, 1056, 8192] {
            for panel_rows in [8, 16] {
                let file_bytes = panel_rows * quant.row_bytes(n_cols);
                let bytes = (form_of(quant).panel_bytes)(panel_rows, n_cols);
                assert!(bytes.is_multiple_of(32), "{}", quant.name);
                assert!(
                    bytes * 100 <= file_bytes * 103,
                    "{} {bytes} {file_bytes}",
                    quant.name
                );
            }
        }
    }
}

#[test]
fn scalar_agrees_with_float64() {
    let mut random = Random(2);
    for quant in quant::TYPES {
        let kind = form_of(quant).activation;
        for (n_rows, n_cols) in shapes(quant) {
            let rows = file_rows(quant, n_rows, n_cols, &mut random);
            let columns = Columns::random(n_cols, 2, &mut random);
            let mut w = vec![0.0; n_rows * n_cols];
            quant.dequantize(&rows, &mut w);
            let panel = pack(quant, &rows, (n_rows, n_cols, 8)).expect("finite");
            let acts = columns.of_kind(kind, 0, n_cols);
            let got = run(scalar(), form_of(quant), &panel, (n_rows, n_cols, 2), &acts);
            for (i, got) in got
                .iter()
                .map(|bits| f64::from(f32::from_bits(*bits)))
                .enumerate()
            {
                let (token, row) = (i / n_rows, i % n_rows);
                let products = (0..n_cols).map(|k| {
                    f64::from(w[row * n_cols + k]) * columns.value(kind, n_cols, token, k)
                });
                let size: f64 = products.clone().map(f64::abs).sum();
                // One rounding of 2^-24 a step, of sums no larger than `size`; n steps at most.
                let steps = (n_cols / 32 * 2 + 8) as f64;
                let error = (got - products.sum::<f64>()).abs();
                assert!(
                    error <= size * steps * 2.0_f64.powi(-24),
                    "{} {error}",
                    quant.name
                );
            }
        }
    }
}

#[test]
fn every_set_agrees_with_scalar_for_1_to_9_columns() {
    let mut random = Random(3);
    for quant in quant::TYPES {
        for (n_rows, n_cols) in shapes(quant) {
            for n_tokens in [1, 2, 3, 4, 5, 6, 7, 8, 9] {
                if n_cols > 1000 && n_tokens < 9 {
                    continue;
                }
                let rows = file_rows(quant, n_rows, n_cols, &mut random);
                let columns = Columns::random(n_cols, n_tokens, &mut random);
                check_sets(quant, &rows, (n_rows, n_cols), &columns);
            }
        }
    }
}

/// Every code everywhere, under the largest scale, times the largest activations of either sign:
/// integer sums that saturate or overflow anywhere would differ.
#[test]
fn extreme_codes_and_activations_agree() {
    let mut random = Random(4);
    for quant in quant::TYPES {
        let Decoder::Codes { .. } = quant.decoder else {
            continue;
        };
        let n_cols = 2 * quant.block_elems;
        for code in 0..=255_u8 {
            let mut rows = vec![code; quant.row_bytes(n_cols) * 8];
            // The one field at the head of all these types is an f16; 0x7bff is its largest.
            for block in rows.chunks_exact_mut(quant.block_bytes) {
                block[..4].copy_from_slice(&[0xff, 0x7b, code, code & 0x7b]);
            }
            for q in [-127, 127] {
                let columns = Columns::all(n_cols, 2, q, &mut random);
                check_sets(quant, &rows, (8, n_cols), &columns);
            }
        }
    }
}

/// The integer part alone, for the code that has no positive counterpart.
#[test]
fn minus_128_is_a_weight() {
    let quant = quant::by_name("Q8_0").expect("a type");
    let mut row = vec![0x80_u8; quant.row_bytes(32)];
    row[..2].copy_from_slice(&0x3c00_u16.to_le_bytes());
    let sum = [32 * 127, -32 * 127];
    let q: Vec<i8> = [[127_i8; 32], [-127; 32]].concat();
    let acts = Activations::Q8(Q8Activations {
        q: &q,
        scale: &[1.0, 1.0],
        sum: &sum,
    });
    for isa in isas() {
        let panel = pack(quant, &row, (1, 32, isa.panel_rows)).expect("finite");
        let got = run(isa, form_of(quant), &panel, (1, 32, 2), &acts);
        let want = [-128.0_f32 * 127.0 * 32.0, 128.0 * 127.0 * 32.0].map(f32::to_bits);
        assert_eq!(got, want, "{}", isa.name);
    }
}

/// Four bytes that are not a finite number as two f16, as two bf16 or as one f32.
const NOT_FINITE: [[u8; 4]; 6] = [
    [0xff, 0xff, 0xff, 0xff],
    [0x00, 0x7c, 0x00, 0xfc],
    [0x01, 0x7c, 0x00, 0x00],
    [0x80, 0x7f, 0x80, 0xff],
    [0x00, 0x00, 0x80, 0x7f],
    [0x00, 0x00, 0x80, 0xff],
];

/// Poisons each pair of bytes of one block in turn. Whether it is a scale, a minimum or codes, the
/// packer refuses the block exactly when its values are not finite, and names it.
#[test]
fn numbers_that_are_not_finite_are_refused_at_their_place() {
    let mut random = Random(5);
    for quant in quant::TYPES {
        let (row, block) = (3, 2);
        let (n_rows, n_cols) = (5, 4 * quant.block_elems);
        let clean = file_rows(quant, n_rows, n_cols, &mut random);
        let at = row * quant.row_bytes(n_cols) + block * quant.block_bytes;
        let mut n_refused = 0;
        for (offset, bad) in (0..quant.block_bytes)
            .step_by(2)
            .flat_map(|o| NOT_FINITE.map(|b| (o, b)))
        {
            let mut rows = clean.clone();
            let n = bad.len().min(quant.block_bytes - offset);
            rows[at + offset..][..n].copy_from_slice(&bad[..n]);
            let mut values = vec![0.0; quant.block_elems];
            quant.dequantize(&rows[at..][..quant.block_bytes], &mut values);
            let got = pack(quant, &rows, (n_rows, n_cols, 8)).map(|_| ());
            let finite = values.iter().all(|v| v.is_finite());
            let bad = BadScale {
                row,
                col: block * quant.block_elems,
            };
            assert_eq!(
                got,
                if finite { Ok(()) } else { Err(bad) },
                "{} {offset}",
                quant.name
            );
            n_refused += usize::from(!finite);
        }
        assert!(n_refused >= 2, "{} {n_refused}", quant.name);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn any_shape_and_any_bits_agree(
        seed in any::<u64>(), n_rows in 1_usize..=8, n_units in 1_usize..=9, n_tokens in 1_usize..=9
    ) {
        let mut random = Random(seed);
        for quant in quant::TYPES {
            let n_cols = n_units * if quant.block_elems == 1 { 13 } else { quant.block_elems };
            let rows = file_rows(quant, n_rows, n_cols, &mut random);
            let columns = Columns::random(n_cols, n_tokens, &mut random);
            check_sets(quant, &rows, (n_rows, n_cols), &columns);
        }
    }
}
