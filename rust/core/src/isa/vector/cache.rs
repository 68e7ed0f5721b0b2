//! One block of the key and value cache, seen by one key-value head.
//!
//! A block holds 64 positions. Keys lie transposed, `[k_dim][64]`, so that a vector is one
//! dimension of eight positions; values lie `[64][v_dim]`, so that a vector is eight dimensions of one
//! position. Knows nothing of which block holds which positions: the sequence's state does.

use half::f16;

use crate::isa::lanes::{LANES, Lanes, load_tail, store_tail};

/// Positions of a cache block.
pub const BLOCK_POSITIONS: usize = 64;

/// Keys or values of one block and head, to read.
#[derive(Debug, Clone, Copy)]
pub enum CacheRef<'a> {
    /// Half floats, the default.
    F16(&'a [f16]),
    /// Floats, for comparisons.
    F32(&'a [f32]),
}

impl CacheRef<'_> {
    /// Elements of the block.
    #[must_use]
    pub fn n_elems(&self) -> usize {
        match self {
            Self::F16(x) => x.len(),
            Self::F32(x) => x.len(),
        }
    }
}

/// Keys or values of one block and head, to write.
#[derive(Debug)]
pub enum CacheMut<'a> {
    /// Half floats, the default.
    F16(&'a mut [f16]),
    /// Floats, for comparisons.
    F32(&'a mut [f32]),
}

/// A type that keys and values are stored in.
pub(super) trait Element: Copy + Default {
    /// Eight neighbouring elements, widened exactly.
    fn load<V: Lanes>(v: V, x: &[Self; LANES]) -> V::F;
    /// Eight elements, rounded to nearest even.
    fn store<V: Lanes>(v: V, x: V::F, out: &mut [Self; LANES]);
}

impl Element for f16 {
    #[inline(always)]
    fn load<V: Lanes>(v: V, x: &[Self; LANES]) -> V::F {
        v.load_f16(x)
    }

    #[inline(always)]
    fn store<V: Lanes>(v: V, x: V::F, out: &mut [Self; LANES]) {
        v.store_f16(x, out);
    }
}

impl Element for f32 {
    #[inline(always)]
    fn load<V: Lanes>(v: V, x: &[Self; LANES]) -> V::F {
        v.load(x)
    }

    #[inline(always)]
    fn store<V: Lanes>(v: V, x: V::F, out: &mut [Self; LANES]) {
        v.store(x, out);
    }
}

/// Keys of one position to column `slot` of a transposed block.
///
/// Half floats round to nearest even; what is too large for them becomes an infinity, which
/// attention turns into NaN.
///
/// Shapes: `k`: `[k_dim]`; `block`: `[k_dim][64]`.
#[inline(always)]
pub(super) fn store_k<V: Lanes>(v: V, k: &[f32], block: &mut CacheMut<'_>, slot: usize) {
    match block {
        CacheMut::F16(block) => store_column(v, k, block, slot),
        CacheMut::F32(block) => store_column(v, k, block, slot),
    }
}

/// Values of one position to row `slot` of a block; rounding as for keys.
///
/// Shapes: `x`: `[v_dim]`; `block`: `[64][v_dim]`.
#[inline(always)]
pub(super) fn store_v<V: Lanes>(v: V, x: &[f32], block: &mut CacheMut<'_>, slot: usize) {
    match block {
        CacheMut::F16(block) => store_row(v, x, block, slot),
        CacheMut::F32(block) => store_row(v, x, block, slot),
    }
}

#[inline(always)]
fn store_column<V: Lanes, T: Element>(v: V, k: &[f32], block: &mut [T], slot: usize) {
    assert!(block.len() == k.len() * BLOCK_POSITIONS && slot < BLOCK_POSITIONS);
    let (rows, _) = block.as_chunks_mut::<BLOCK_POSITIONS>();
    for (k, rows) in k.chunks(LANES).zip(rows.chunks_mut(LANES)) {
        let mut converted = [T::default(); LANES];
        T::store(v, load_tail(v, k), &mut converted);
        for (row, x) in rows.iter_mut().zip(converted) {
            row[slot] = x;
        }
    }
}

#[inline(always)]
fn store_row<V: Lanes, T: Element>(v: V, x: &[f32], block: &mut [T], slot: usize) {
    assert!(block.len() == x.len() * BLOCK_POSITIONS && slot < BLOCK_POSITIONS);
    let row = &mut block[slot * x.len()..][..x.len()];
    for (x, row) in x.chunks(LANES).zip(row.chunks_mut(LANES)) {
        let mut converted = [T::default(); LANES];
        T::store(v, load_tail(v, x), &mut converted);
        row.copy_from_slice(&converted[..row.len()]);
    }
}

/// Half floats to floats, exactly.
#[inline(always)]
pub(super) fn widen<V: Lanes>(v: V, x: &[f16], out: &mut [f32]) {
    let (x, x_tail) = x.as_chunks::<LANES>();
    let (out, out_tail) = out.as_chunks_mut::<LANES>();
    for (x, out) in x.iter().zip(out) {
        v.store(v.load_f16(x), out);
    }
    store_tail(v, load_some(v, x_tail), out_tail);
}

/// Up to eight elements; the missing lanes are zero.
#[inline(always)]
pub(super) fn load_some<V: Lanes, T: Element>(v: V, x: &[T]) -> V::F {
    let mut padded = [T::default(); LANES];
    padded[..x.len()].copy_from_slice(x);
    T::load(v, &padded)
}
