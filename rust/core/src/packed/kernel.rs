//! The face of every matrix-product kernel: what it takes and where it writes.
//!
//! Holds the operand types that scalar and vector kernels share. Knows no layout. Built by the
//! `linear` op, read by the kernels in `packed/` and `isa/`.
//!
//! # Arithmetic, the same in every kernel of every instruction set
//! Block forms, for each row and token, from `acc = 0`, over blocks in ascending order:
//!
//! ```text
//! acc = fma(d_w * d_a, (f32) Σ (code - offset) * q_a, acc)
//! acc = fma(m_w, d_a * (f32) Σ q_a, acc)                      only with minima
//! ```
//!
//! The sums are integers and exact. Float forms: element `k` is added by one fma into lane
//! `k mod 32`, the last step padded with zeros; lanes are summed by one fixed tree
//! (`float_rows.rs`). So one column and many give the same bits.
#![expect(
    unsafe_code,
    reason = "kernels write through a raw pointer: threads share one output"
)]

use super::{ActivationKind, MAX_PANEL_ROWS, PackedForm, Q8_BLOCK_ELEMS};

/// Activations rounded to 8 bits in blocks of 32: `x ≈ scale * q`.
#[derive(Debug, Clone, Copy)]
pub struct Q8Activations<'a> {
    /// `i8[n_tokens, n_cols]`, each in -127..=127.
    pub q: &'a [i8],
    /// `f32[n_tokens, n_cols / 32]`.
    pub scale: &'a [f32],
    /// `i32[n_tokens, n_cols / 32]`: the sum of each block's `q`.
    pub sum: &'a [i32],
}

/// The activations that a kernel multiplies with.
#[derive(Debug, Clone, Copy)]
pub enum Activations<'a> {
    /// `f32[n_tokens, n_cols]`.
    F32(&'a [f32]),
    /// 8-bit blocks.
    Q8(Q8Activations<'a>),
}

impl<'a> Activations<'a> {
    /// The floats.
    ///
    /// # Panics
    /// If they are 8-bit blocks: a fault of the caller.
    #[must_use]
    pub fn f32(&self) -> &'a [f32] {
        match *self {
            Self::F32(x) => x,
            Self::Q8(_) => panic!("a float form was given 8-bit activations"),
        }
    }

    /// The 8-bit blocks.
    ///
    /// # Panics
    /// If they are floats: a fault of the caller.
    #[must_use]
    pub fn q8(&self) -> Q8Activations<'a> {
        match *self {
            Self::Q8(x) => x,
            Self::F32(_) => panic!("a block form was given float activations"),
        }
    }

    /// Whether the lengths and the kind are those of `n_tokens` columns for `form`.
    fn fits(&self, kind: ActivationKind, n_cols: usize, n_tokens: usize) -> bool {
        let n_blocks = n_tokens * (n_cols / Q8_BLOCK_ELEMS);
        match (*self, kind) {
            (Self::F32(x), ActivationKind::F32) => x.len() >= n_tokens * n_cols,
            (Self::Q8(x), ActivationKind::Q8) => {
                x.q.len() >= n_tokens * n_cols
                    && x.scale.len() >= n_blocks
                    && x.sum.len() >= n_blocks
            }
            _ => false,
        }
    }
}

/// Where the outputs of one panel go: row `r` of token `t` at `ptr[t * row_stride + r]`.
#[derive(Debug, Clone, Copy)]
pub struct OutTile {
    ptr: *mut f32,
    row_stride: usize,
    n_rows: usize,
}

impl OutTile {
    /// Describes a tile.
    ///
    /// # Args
    /// `ptr`: row 0 of token 0; `row_stride`: floats between tokens; `n_rows`: rows of the panel
    /// that exist, at most its `panel_rows`.
    ///
    /// # Safety
    /// Until the kernel returns, `n_rows` floats at `ptr + t * row_stride` are valid for writes
    /// and touched by nobody else, for every token `t` that the kernel is given.
    #[must_use]
    pub unsafe fn new(ptr: *mut f32, row_stride: usize, n_rows: usize) -> Self {
        debug_assert!(n_rows <= MAX_PANEL_ROWS && n_rows <= row_stride);
        Self {
            ptr,
            row_stride,
            n_rows,
        }
    }

    /// Rows that exist.
    #[must_use]
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Row 0 of a token; `n_rows` floats may be written there.
    ///
    /// # Safety
    /// `token` is one of those that the tile was made for.
    #[must_use]
    pub unsafe fn token(&self, token: usize) -> *mut f32 {
        // SAFETY: in bounds by the contract of `new`, for the tokens that it speaks of.
        unsafe { self.ptr.add(token * self.row_stride) }
    }

    /// Writes the rows of one token that exist, from `values[0..n_rows]`.
    ///
    /// # Safety
    /// As for [`OutTile::token`].
    pub unsafe fn write(&self, token: usize, values: &[f32]) {
        let values = &values[..self.n_rows];
        // SAFETY: `n_rows` floats are writable there by the contract of `new`; `values` is a
        // Rust slice of as many and, the target being exclusive, does not overlap.
        unsafe {
            std::ptr::copy_nonoverlapping(values.as_ptr(), self.token(token), self.n_rows);
        }
    }
}

/// Multiplies one panel with `n_tokens` columns: `out[t][r] = Σ_k w[r][k] * x[t][k]`.
///
/// # Shapes
/// `panel`: `panel_bytes(panel_rows, n_cols)` bytes of the kernel's form; `acts`: at least
/// `n_tokens` columns of the form's activation kind; `out`: `n_tokens` tokens.
///
/// # Safety
/// The shapes hold, `out` was made for `n_tokens` tokens, `panel_rows` is that of the kernel's
/// instruction set, and the CPU has that set (an `&Isa` from `isa::choose` or `isa::available`
/// proves it).
pub type MatmulFn = unsafe fn(
    panel: &[u8],
    panel_rows: usize,
    n_cols: usize,
    acts: &Activations<'_>,
    n_tokens: usize,
    out: OutTile,
);

/// In debug builds, panics when the contract of [`MatmulFn`] is seen to be broken.
pub(crate) fn debug_check_operands(
    form: &PackedForm,
    panel: &[u8],
    (panel_rows, n_cols): (usize, usize),
    acts: &Activations<'_>,
    n_tokens: usize,
    out: &OutTile,
) {
    debug_assert_eq!(
        panel.len(),
        (form.panel_bytes)(panel_rows, n_cols),
        "panel of {}",
        form.name
    );
    debug_assert!(
        acts.fits(form.activation, n_cols, n_tokens),
        "activations of {}",
        form.name
    );
    debug_assert!(out.n_rows <= panel_rows, "rows of {}", form.name);
}
