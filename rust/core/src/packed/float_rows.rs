//! The layout that the float forms share: each row in its own order, rows one after another.
//!
//! | bytes of a panel | field |
//! | --- | --- |
//! | `r * n_cols * E ..` | row `r`: its `n_cols` elements of `E` bytes, little endian |
//! | `panel_rows * n_cols * E ..` | zeros up to a multiple of 32 |
//!
//! Knows no format: `f32.rs`, `f16.rs` and `bf16.rs` say how an element is read and written.
#![expect(unsafe_code, reason = "the kernel's output is a raw pointer")]

use super::{Activations, BadScale, MAX_PANEL_ROWS, OutTile, PackedForm, debug_check_operands};
use crate::quant::QuantType;

/// Lanes that a row is summed in: element `k` goes to lane `k % LANES`.
pub(crate) const LANES: usize = 32;

/// Bytes that are copied and looked at together.
const RUN_BYTES: usize = 4096;

/// A float format as it is stored.
pub(crate) trait Element {
    /// Bytes of an element.
    const BYTES: usize;
    /// The form whose elements these are.
    const FORM: &'static PackedForm;
    /// The value of the element at the head of `bytes`.
    fn read(bytes: &[u8]) -> f32;
    /// Whether the element at the head of `bytes` is a finite number.
    fn is_finite(bytes: &[u8]) -> bool;
}

/// Bytes of a panel.
pub(super) fn panel_bytes<E: Element>(panel_rows: usize, n_cols: usize) -> usize {
    (panel_rows * n_cols * E::BYTES).next_multiple_of(32)
}

/// `PackFn` of a float form.
pub(super) fn pack_panel<E: Element>(
    quant: &QuantType,
    file_rows: &[u8],
    n_rows: usize,
    n_cols: usize,
    panel_rows: usize,
    dst: &mut [u8],
) -> Result<(), BadScale> {
    assert!(
        quant.content() == E::FORM.content && quant.row_bytes(1) == E::BYTES,
        "{} was packed into {}",
        quant.name,
        E::FORM.name
    );
    assert!(n_rows <= panel_rows && file_rows.len() == n_rows * quant.row_bytes(n_cols));
    assert_eq!(dst.len(), panel_bytes::<E>(panel_rows, n_cols));
    // A file's elements are the form's own: little endian, in this order.
    let (rows, rest) = dst.split_at_mut(file_rows.len());
    for (i, (from, to)) in file_rows
        .chunks(RUN_BYTES)
        .zip(rows.chunks_mut(RUN_BYTES))
        .enumerate()
    {
        to.copy_from_slice(from);
        // All of them, without a way out on the first: that is what vectors can do.
        let elements = from.chunks_exact(E::BYTES);
        if !elements
            .clone()
            .fold(true, |all, element| all & E::is_finite(element))
        {
            let bad = elements.map(E::is_finite).position(|finite| !finite);
            let at = i * RUN_BYTES / E::BYTES + bad.unwrap_or(0);
            let (row, col) = (at / n_cols, at % n_cols);
            return Err(BadScale { row, col });
        }
    }
    rest.fill(0);
    Ok(())
}

/// `UnpackFn` of a float form.
pub(super) fn unpack_row<E: Element>(
    panel: &[u8],
    panel_rows: usize,
    n_cols: usize,
    row: usize,
    out: &mut [f32],
) {
    assert!(row < panel_rows && out.len() == n_cols);
    let elements = panel[row * n_cols * E::BYTES..].chunks_exact(E::BYTES);
    for (value, element) in out.iter_mut().zip(elements) {
        *value = E::read(element);
    }
}

/// The scalar kernel of a float form.
///
/// # Safety
/// As for `MatmulFn`.
pub(super) unsafe fn matmul<E: Element>(
    panel: &[u8],
    panel_rows: usize,
    n_cols: usize,
    acts: &Activations<'_>,
    n_tokens: usize,
    out: OutTile,
) {
    debug_check_operands(E::FORM, panel, (panel_rows, n_cols), acts, n_tokens, &out);
    let x = acts.f32();
    let row_bytes = n_cols * E::BYTES;
    for token in 0..n_tokens {
        let x = &x[token * n_cols..][..n_cols];
        let mut sums = [0.0_f32; MAX_PANEL_ROWS];
        for (row, sum) in sums[..out.n_rows()].iter_mut().enumerate() {
            *sum = dot::<E>(&panel[row * row_bytes..][..row_bytes], x);
        }
        // SAFETY: `token < n_tokens`, which `out` was made for by the contract of `MatmulFn`.
        unsafe { out.write(token, &sums) };
    }
}

/// One row times one column, in lanes.
fn dot<E: Element>(row: &[u8], x: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    let steps = x.chunks_exact(LANES);
    let (x_tail, steps_end) = (
        steps.remainder(),
        (x.len() - steps.remainder().len()) * E::BYTES,
    );
    for (x, w) in steps.zip(row.chunks_exact(LANES * E::BYTES)) {
        step::<E>(w, x, &mut lanes);
    }
    if !x_tail.is_empty() {
        let mut w = [0; LANES * 4];
        w[..row.len() - steps_end].copy_from_slice(&row[steps_end..]);
        step::<E>(&w[..LANES * E::BYTES], &tail_of(x_tail), &mut lanes);
    }
    sum_lanes(lanes)
}

/// Adds 32 products to their lanes.
fn step<E: Element>(w: &[u8], x: &[f32], lanes: &mut [f32; LANES]) {
    for ((lane, &x), w) in lanes.iter_mut().zip(x).zip(w.chunks_exact(E::BYTES)) {
        *lane = E::read(w).mul_add(x, *lane);
    }
}

/// The last, incomplete step of a column, padded with zeros.
pub(crate) fn tail_of(x_tail: &[f32]) -> [f32; LANES] {
    let mut padded = [0.0; LANES];
    padded[..x_tail.len()].copy_from_slice(x_tail);
    padded
}

/// Sums lanes by the tree that vector registers suggest: neighbours 8 lanes apart, then 16, then
/// within the eight: 4, 2 and 1 apart.
fn sum_lanes(lanes: [f32; LANES]) -> f32 {
    let eight: [f32; 8] =
        std::array::from_fn(|i| (lanes[i] + lanes[i + 8]) + (lanes[i + 16] + lanes[i + 24]));
    let four: [f32; 4] = std::array::from_fn(|i| eight[i] + eight[i + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
}
