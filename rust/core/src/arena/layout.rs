//! Places in the activations' memory: slots, 8-bit copies, partial results. Offsets only.

use serde::Deserialize;

use crate::memory::round_up;
use crate::packed::Q8_BLOCK_ELEMS;

/// One slot, by index in the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(transparent)]
pub struct SlotId(pub u32);

/// Which rows of the pass a slot has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rows {
    /// One for each token of the pass.
    Tokens,
    /// One for each token whose logits are asked for.
    Outputs,
}

/// Shape of one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlotSpec {
    /// Values a row.
    pub width: u32,
    /// Which rows it has.
    pub rows: Rows,
}

/// How much an arena is to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArenaSize {
    /// Rows a slot.
    pub max_rows: usize,
    /// Nodes that quantize activations for themselves.
    pub n_nodes: usize,
    /// Values of partial results, as [`Program::partial_elems`](crate::program::Program) says.
    pub partial_elems: usize,
}

/// Where one slot lies.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) offset: usize,
    pub(super) width: usize,
}

/// Byte offsets of the quantized activations' three arrays.
#[derive(Debug, Clone, Copy)]
pub(super) struct QuantizedPlace {
    pub(super) q: usize,
    pub(super) scale: usize,
    pub(super) sum: usize,
}

/// Where everything lies.
#[derive(Debug)]
pub(super) struct Layout {
    /// Bytes of all; `usize::MAX` for more than any memory.
    pub(super) n_bytes: usize,
    pub(super) slots: Vec<Place>,
    /// One a node.
    pub(super) quantized: Vec<QuantizedPlace>,
    /// Byte offset of partial results.
    pub(super) partials: usize,
}

impl Layout {
    pub(super) fn new(slots: &[SlotSpec], size: &ArenaSize) -> Self {
        let mut end = 0;
        let mut take = |n_elems: usize, elem_bytes: usize| {
            let offset = end;
            end = round_up(n_elems.saturating_mul(elem_bytes), 64).saturating_add(end);
            offset
        };
        let widths = || slots.iter().map(|slot| slot.width as usize);
        let places = widths().map(|width| Place {
            offset: take(size.max_rows.saturating_mul(width), size_of::<f32>()),
            width,
        });
        let places = places.collect();
        let widest = widths().max().unwrap_or(0);
        let n_blocks = size
            .max_rows
            .saturating_mul(widest.div_ceil(Q8_BLOCK_ELEMS));
        let quantized = (0..size.n_nodes).map(|_| QuantizedPlace {
            q: take(n_blocks, Q8_BLOCK_ELEMS),
            scale: take(n_blocks, size_of::<f32>()),
            sum: take(n_blocks, size_of::<i32>()),
        });
        let quantized = quantized.collect();
        let partials = take(size.partial_elems, size_of::<f32>());
        Self {
            n_bytes: end,
            slots: places,
            quantized,
            partials,
        }
    }
}

/// Bytes that the arena of a program takes, without making one; `usize::MAX` for more than that.
#[must_use]
pub fn arena_bytes(slots: &[SlotSpec], size: &ArenaSize) -> usize {
    Layout::new(slots, size).n_bytes
}
