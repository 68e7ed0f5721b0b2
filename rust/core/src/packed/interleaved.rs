//! What the block forms share: rows interleaved in steps of four columns.
//!
//! A *step* is 4 consecutive columns of each of the panel's `R` rows: `4 * R` bytes, byte
//! `4 * r + i` being column `i` of row `r`, so that one vector register of 4-byte lanes holds a
//! step and one broadcast 4-byte piece of a column multiplies it. 8-bit codes take 8 steps a
//! block of 32; 4-bit codes take 4, step `q` having column `4q + i` in the low nibbles and
//! `16 + 4q + i` in the high ones. Before the steps lies a *header* of `4 * R` bytes with the f16
//! scales. Each form says what its header holds; every byte is in reading order, and with 8 or
//! 16 rows no vector load crosses a 64-byte line when the panel starts on a multiple of 32 or 64.
//!
//! Knows no form by name; used by `code4.rs`, `code4_min.rs` and `code8.rs`.
#![expect(unsafe_code, reason = "the kernel's output is a raw pointer")]

use super::{
    Activations, BadScale, MAX_PANEL_ROWS, OutTile, PackedForm, Q8_BLOCK_ELEMS,
    debug_check_operands,
};
use crate::quant::{CodeMeaning, CodeSpec, CodedBlock, Decoder, QuantType};
use half::f16;

/// One block form.
pub(crate) trait Blocks {
    /// What its codes and scales mean; sub-blocks of 32 under f16 scales.
    const SPEC: CodeSpec;
    /// The form itself.
    const FORM: &'static PackedForm;
}

/// Where the parts of one block lie in a panel, for its row 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Scales: f16, row `r` at `scales + 2 * r`.
    pub(crate) scales: usize,
    /// Minima, likewise; meaningless in forms without.
    pub(crate) minima: usize,
    /// The first step; each is `4 * panel_rows` bytes.
    pub(crate) codes: usize,
}

/// Bytes of the codes of one block of `panel_rows` rows.
const fn code_bytes(spec: &CodeSpec, panel_rows: usize) -> usize {
    panel_rows * Q8_BLOCK_ELEMS * spec.code_bits as usize / 8
}

/// Bytes of a header.
const fn header_bytes(panel_rows: usize) -> usize {
    4 * panel_rows
}

/// Where block `block` lies. A header serves one block with scales and minima, or two with
/// scales only; a lone last block has a header of its own, half used.
pub(crate) const fn place(spec: &CodeSpec, panel_rows: usize, block: usize) -> Place {
    let (header, codes) = (header_bytes(panel_rows), code_bytes(spec, panel_rows));
    if spec.has_minima {
        let scales = block * (header + codes);
        return Place {
            scales,
            minima: scales + 2 * panel_rows,
            codes: scales + header,
        };
    }
    let start = block / 2 * (header + 2 * codes);
    let scales = start + block % 2 * 2 * panel_rows;
    Place {
        scales,
        minima: scales,
        codes: start + header + block % 2 * codes,
    }
}

/// Bytes of a panel.
pub(super) fn panel_bytes<B: Blocks>(panel_rows: usize, n_cols: usize) -> usize {
    let n_blocks = n_cols / Q8_BLOCK_ELEMS;
    let n_headers = if B::SPEC.has_minima {
        n_blocks
    } else {
        n_blocks.div_ceil(2)
    };
    n_headers * header_bytes(panel_rows) + n_blocks * code_bytes(&B::SPEC, panel_rows)
}

/// `PackFn` of a block form.
pub(super) fn pack_panel<B: Blocks>(
    quant: &QuantType,
    file_rows: &[u8],
    n_rows: usize,
    n_cols: usize,
    panel_rows: usize,
    dst: &mut [u8],
) -> Result<(), BadScale> {
    let Decoder::Codes { spec, decode } = quant.decoder else {
        panic!("{} was packed into a block form", quant.name);
    };
    assert!(
        spec == B::SPEC,
        "{} was packed into {}",
        quant.name,
        B::FORM.name
    );
    assert!(n_rows <= panel_rows && file_rows.len() == n_rows * quant.row_bytes(n_cols));
    assert_eq!(dst.len(), panel_bytes::<B>(panel_rows, n_cols));
    let n_subs = quant.block_elems / Q8_BLOCK_ELEMS;
    let n_blocks_a_row = n_cols / quant.block_elems;
    if n_rows < panel_rows || !(n_blocks_a_row * n_subs).is_multiple_of(2) {
        // Rows, or half of a header, that nothing is put into.
        dst.fill(0);
    }
    let mut block = CodedBlock::new();
    let row_bytes = quant.row_bytes(n_cols);
    // Block by block, so that what is written is a few neighbouring lines at a time.
    for file_block in 0..n_blocks_a_row {
        for row in 0..n_rows {
            let at = row * row_bytes + file_block * quant.block_bytes;
            let bytes = &file_rows[at..][..quant.block_bytes];
            decode(bytes, &mut block);
            if !block.is_finite(&B::SPEC, quant.block_elems) {
                return Err(BadScale {
                    row,
                    col: file_block * quant.block_elems,
                });
            }
            for sub in 0..n_subs {
                let place = place(&B::SPEC, panel_rows, file_block * n_subs + sub);
                put_block::<B>(&block, sub, (panel_rows, row), place, dst);
            }
        }
    }
    Ok(())
}

/// Writes sub-block `sub` of a row's block to its place.
#[inline]
fn put_block<B: Blocks>(
    block: &CodedBlock,
    sub: usize,
    (panel_rows, row): (usize, usize),
    place: Place,
    dst: &mut [u8],
) {
    dst[place.scales + 2 * row..][..2].copy_from_slice(&f16_bytes(block.scales[sub]));
    if B::SPEC.has_minima {
        dst[place.minima + 2 * row..][..2].copy_from_slice(&f16_bytes(block.minima[sub]));
    }
    let codes = &block.codes[sub * Q8_BLOCK_ELEMS..][..Q8_BLOCK_ELEMS];
    let dst = &mut dst[place.codes..][..code_bytes(&B::SPEC, panel_rows)];
    // Indexed: chunks of a step would cost a division a block.
    let mut put = |q: usize, bytes: [u8; 4]| {
        dst[4 * (q * panel_rows + row)..][..4].copy_from_slice(&bytes);
    };
    if B::SPEC.code_bits == 8 {
        for (q, &codes) in codes.as_chunks::<4>().0.iter().enumerate() {
            put(q, codes);
        }
    } else {
        let (low, high) = codes.split_at(Q8_BLOCK_ELEMS / 2);
        let nibbles = low.as_chunks::<4>().0.iter().zip(high.as_chunks::<4>().0);
        for (q, (low, high)) in nibbles.enumerate() {
            // Four codes at once: each is below 16 and stays in its byte.
            let bytes = u32::from_le_bytes(*low) | u32::from_le_bytes(*high) << 4;
            put(q, bytes.to_le_bytes());
        }
    }
}

/// A finite f32 that an f16 holds exactly, as that f16.
///
/// In software: the `half` crate asks for the CPU's conversion at each call, which costs more.
fn f16_bytes(value: f32) -> [u8; 2] {
    const SMALLEST_NORMAL: u32 = 0x3880_0000;
    let (bits, magnitude) = (value.to_bits(), value.abs().to_bits());
    if magnitude < SMALLEST_NORMAL {
        return f16::from_f32_const(value).to_le_bytes();
    }
    // The exponent's bias is 15 in place of 127, the last 13 bits of the mantissa are zeros.
    let narrow = (magnitude - (112 << 23)) >> 13;
    ((bits >> 16) as u16 & 0x8000 | narrow as u16).to_le_bytes()
}

/// Reads one row's block back; the inverse of [`put_block`].
fn get_block(
    spec: &CodeSpec,
    panel: &[u8],
    (panel_rows, row): (usize, usize),
    place: Place,
    block: &mut CodedBlock,
) {
    block.scales[0] = f16_at(panel, place.scales + 2 * row);
    block.minima[0] = f16_at(panel, place.minima + 2 * row);
    let codes = &panel[place.codes..][..code_bytes(spec, panel_rows)];
    for (q, step) in codes.chunks_exact(4 * panel_rows).enumerate() {
        for (i, &byte) in step[4 * row..][..4].iter().enumerate() {
            if spec.code_bits == 8 {
                block.codes[4 * q + i] = byte;
            } else {
                block.codes[4 * q + i] = byte & 0x0f;
                block.codes[Q8_BLOCK_ELEMS / 2 + 4 * q + i] = byte >> 4;
            }
        }
    }
}

/// The f16 at a byte offset.
fn f16_at(panel: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([panel[at], panel[at + 1]]).to_f32()
}

/// `UnpackFn` of a block form.
pub(super) fn unpack_row<B: Blocks>(
    panel: &[u8],
    panel_rows: usize,
    n_cols: usize,
    row: usize,
    out: &mut [f32],
) {
    assert!(row < panel_rows && out.len() == n_cols);
    let mut block = CodedBlock::new();
    for (b, out) in out.chunks_exact_mut(Q8_BLOCK_ELEMS).enumerate() {
        let place = place(&B::SPEC, panel_rows, b);
        get_block(&B::SPEC, panel, (panel_rows, row), place, &mut block);
        block.values(&B::SPEC, out);
    }
}

/// The scalar kernel of a block form.
///
/// # Safety
/// As for `MatmulFn`.
pub(super) unsafe fn matmul<B: Blocks>(
    panel: &[u8],
    panel_rows: usize,
    n_cols: usize,
    acts: &Activations<'_>,
    n_tokens: usize,
    out: OutTile,
) {
    debug_check_operands(B::FORM, panel, (panel_rows, n_cols), acts, n_tokens, &out);
    let (acts, n_blocks) = (acts.q8(), n_cols / Q8_BLOCK_ELEMS);
    for token in 0..n_tokens {
        let mut acc = [0.0_f32; MAX_PANEL_ROWS];
        for block in 0..n_blocks {
            let at = token * n_blocks + block;
            let place = place(&B::SPEC, panel_rows, block);
            let (scale, sum) = (acts.scale[at], acts.sum[at]);
            let q = &acts.q[at * Q8_BLOCK_ELEMS..][..Q8_BLOCK_ELEMS];
            let dots = block_dots(&B::SPEC, &panel[place.codes..], panel_rows, q, sum);
            for (row, acc) in acc[..panel_rows].iter_mut().enumerate() {
                let d = f16_at(panel, place.scales + 2 * row) * scale;
                *acc = d.mul_add(dots[row] as f32, *acc);
                if B::SPEC.has_minima {
                    let m = f16_at(panel, place.minima + 2 * row);
                    *acc = m.mul_add(scale * sum as f32, *acc);
                }
            }
        }
        // SAFETY: `token < n_tokens`, which `out` was made for by the contract of `MatmulFn`.
        unsafe { out.write(token, &acc) };
    }
}

/// `Σ (code - offset) * q` over one block, for each row of the panel; `sum` is `Σ q`.
fn block_dots(
    spec: &CodeSpec,
    codes: &[u8],
    panel_rows: usize,
    q: &[i8],
    sum: i32,
) -> [i32; MAX_PANEL_ROWS] {
    let CodeMeaning::Offset(offset) = spec.meaning else {
        unreachable!("no block form holds a table type");
    };
    let mut dots = [-i32::from(offset) * sum; MAX_PANEL_ROWS];
    let n_steps = usize::from(spec.code_bits);
    for (s, step) in codes.chunks_exact(4 * panel_rows).take(n_steps).enumerate() {
        for (i, &byte) in step.iter().enumerate() {
            let (dot, k) = (&mut dots[i / 4], 4 * s + i % 4);
            if spec.code_bits == 8 {
                *dot += i32::from(byte) * i32::from(q[k]);
            } else {
                *dot += i32::from(byte & 0x0f) * i32::from(q[k]);
                *dot += i32::from(byte >> 4) * i32::from(q[Q8_BLOCK_ELEMS / 2 + k]);
            }
        }
    }
    dots
}
