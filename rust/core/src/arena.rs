//! Activations of a forward pass: slots of f32 rows, and who may write which part of them.
//!
//! A slot is `f32[n_rows, width]`, row-major; its memory is reused by the program's compiler, not
//! here. Ops never see a pointer: a phase cuts the slot it writes into a [`Grid`] of tiles, each
//! worker claims tiles from the team's counter, and a [`Tile`] is the exclusive right to its
//! rectangle. Knows no op; `exec` drives it, ops fill tiles.
#![expect(
    unsafe_code,
    reason = "hands out disjoint rectangles of one mapping to several workers"
)]

use std::ops::Range;

use serde::Deserialize;

use crate::error::Result;
use crate::isa::vector::VectorOps;
use crate::mapped::MappedReads;
use crate::memory::{Mapping, round_up};
use crate::packed::{Activations, OutTile, Q8_BLOCK_ELEMS, Q8Activations};
use crate::weights::MatrixRef;
use crate::workers::{NodeIndex, Team};

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

/// Memory for all slots and for activations quantized to 8 bits.
#[derive(Debug)]
pub struct Arena {
    memory: Mapping,
    slots: Vec<Place>,
    max_rows: usize,
    /// One a node.
    quantized: Vec<QuantizedPlace>,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    offset: usize,
    width: usize,
}

/// Byte offsets of the quantized activations' three arrays.
#[derive(Debug, Clone, Copy)]
struct QuantizedPlace {
    q: usize,
    scale: usize,
    sum: usize,
}

/// Bytes, where each slot starts, and the quantized activations of each node.
type Layout = (usize, Vec<Place>, Vec<QuantizedPlace>);

/// Lays an arena out; `usize::MAX` bytes when it is larger than any
/// memory.
fn layout(slots: &[SlotSpec], max_rows: usize, n_nodes: usize) -> Layout {
    let mut end = 0;
    let mut take = |bytes: usize| {
        let offset = end;
        end = round_up(bytes, 64).saturating_add(end);
        offset
    };
    let places = slots.iter().map(|slot| Place {
        offset: take(max_rows.saturating_mul(slot.width as usize * size_of::<f32>())),
        width: slot.width as usize,
    });
    let places = places.collect();
    let widest = slots
        .iter()
        .map(|slot| slot.width as usize)
        .max()
        .unwrap_or(0);
    let n_blocks = max_rows.saturating_mul(widest.div_ceil(Q8_BLOCK_ELEMS));
    let quantized = (0..n_nodes).map(|_| QuantizedPlace {
        q: take(n_blocks.saturating_mul(Q8_BLOCK_ELEMS)),
        scale: take(n_blocks.saturating_mul(size_of::<f32>())),
        sum: take(n_blocks.saturating_mul(size_of::<i32>())),
    });
    let quantized = quantized.collect();
    (end, places, quantized)
}

/// Bytes that the arena of a program takes, without making one; `usize::MAX` for more than that.
#[must_use]
pub fn arena_bytes(slots: &[SlotSpec], max_rows: usize, n_nodes: usize) -> usize {
    layout(slots, max_rows, n_nodes).0
}

/// Whose the tiles of a phase are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deal {
    /// Everybody's: dealt to nodes by their workers.
    All,
    /// Each node has tiles of its own.
    Node,
}

/// How a phase cuts one slot: tiles of `row_step` × `col_step`, row by row of tiles.
#[derive(Debug, Clone)]
pub struct Grid {
    /// The slot that the tiles cover.
    pub slot: SlotId,
    /// Rows that the slot has in this pass.
    pub n_rows: usize,
    /// Columns that it covers.
    pub cols: Range<usize>,
    /// Rows a tile.
    pub row_step: usize,
    /// Columns a tile.
    pub col_step: usize,
}

impl Grid {
    fn n_across(&self) -> usize {
        self.cols.len().div_ceil(self.col_step)
    }

    fn n_tiles(&self) -> usize {
        self.n_rows.div_ceil(self.row_step) * self.n_across()
    }
}

impl Arena {
    /// Memory for `slots` with up to `max_rows` rows each, and for activations quantized on each
    /// of `n_nodes` nodes.
    pub fn new(slots: &[SlotSpec], max_rows: usize, n_nodes: usize) -> Result<Self> {
        let (bytes, slots, quantized) = layout(slots, max_rows, n_nodes);
        let memory = Mapping::new("activations", bytes.max(1))?;
        Ok(Self {
            memory,
            slots,
            max_rows,
            quantized,
        })
    }

    /// Rows a slot can hold.
    #[must_use]
    pub fn max_rows(&self) -> usize {
        self.max_rows
    }

    /// Values a row of the slot.
    #[must_use]
    pub fn width(&self, slot: SlotId) -> usize {
        self.slots[slot.0 as usize].width
    }

    /// Rows of a slot, `f32[rows.len(), width]`.
    ///
    /// Sound because a verified op never reads a slot that it writes, and ops are apart by a
    /// barrier: no tile of this slot lives while the result does.
    pub(crate) fn rows(&self, slot: SlotId, rows: Range<usize>) -> &[f32] {
        let place = self.slots[slot.0 as usize];
        let pointer = self.at::<f32>(place.offset, self.max_rows * place.width);
        assert!(
            rows.start <= rows.end && rows.end <= self.max_rows,
            "rows outside their slot"
        );
        // SAFETY: inside the slot (asserted), which `layout` put inside the mapping, 64-byte
        // aligned; no writer, as said above.
        unsafe {
            std::slice::from_raw_parts(
                pointer.add(rows.start * place.width),
                rows.len() * place.width,
            )
        }
    }

    /// Gives this worker's share of the tiles of `grids` to `fill`, with the grid's index. Called
    /// by every worker in one phase.
    ///
    /// # Args
    /// `deal`: whose the tiles are. With [`Deal::Node`] the grids of different nodes must not
    /// overlap.
    pub(crate) fn for_each_tile(
        &self,
        team: &Team<'_>,
        deal: Deal,
        n_grids: usize,
        grid: impl Fn(usize) -> Grid,
        mut fill: impl FnMut(usize, &mut Tile<'_>),
    ) {
        let total = (0..n_grids).map(|i| grid(i).n_tiles()).sum();
        let claim = || match deal {
            Deal::All => team.next_item(total),
            Deal::Node => team.next_chunk(total),
        };
        while let Some(mut item) = claim() {
            let mut index = 0;
            let mut cut = grid(index);
            while item >= cut.n_tiles() {
                item -= cut.n_tiles();
                index += 1;
                cut = grid(index);
            }
            fill(index, &mut self.tile(&cut, item));
        }
    }

    /// Gives the rows of `slot` that fall to this worker to `fill`, each as a tile of one row.
    /// Called by every worker in one phase.
    ///
    /// # Args
    /// `owner`: the node of each row: the same answer to every worker.
    pub(crate) fn for_each_row(
        &self,
        team: &Team<'_>,
        slot: SlotId,
        n_rows: usize,
        owner: impl Fn(usize) -> NodeIndex,
        mut fill: impl FnMut(&mut Tile<'_>),
    ) {
        let cols = 0..self.width(slot);
        let col_step = cols.len();
        let rows = Grid {
            slot,
            n_rows,
            cols,
            row_step: 1,
            col_step,
        };
        while let Some(row) = team.next_chunk(n_rows) {
            if owner(row) == team.node() {
                fill(&mut self.tile(&rows, row));
            }
        }
    }

    /// The `item`-th tile of a grid.
    ///
    /// Exclusive by construction: tiles of one grid do not overlap, the slots of a phase's grids
    /// differ or their columns do (an op's written slots are distinct, `program.rs`; panels of a
    /// matrix are dealt to nodes once, `MatrixRef::work`), and each item is claimed once a phase.
    fn tile(&self, grid: &Grid, item: usize) -> Tile<'_> {
        let place = self.slots[grid.slot.0 as usize];
        assert!(
            grid.n_rows <= self.max_rows && grid.cols.end <= place.width,
            "grid outside its slot"
        );
        let first_row = item / grid.n_across() * grid.row_step;
        let first_col = grid.cols.start + item % grid.n_across() * grid.col_step;
        Tile {
            pointer: self.at::<f32>(place.offset, self.max_rows * place.width),
            width: place.width,
            rows: first_row..(first_row + grid.row_step).min(grid.n_rows),
            cols: first_col..(first_col + grid.col_step).min(grid.cols.end),
            _arena: std::marker::PhantomData,
        }
    }

    /// Quantizes this worker's share of the first `n_rows` rows of `slot` to 8 bits, for its own
    /// node. Called by every worker in one phase.
    pub(crate) fn quantize(
        &self,
        team: &Team<'_>,
        slot: SlotId,
        n_rows: usize,
        vector: &VectorOps,
    ) {
        let width = self.width(slot);
        let n_blocks = width / Q8_BLOCK_ELEMS;
        let place = self.quantized[team.node().0];
        while let Some(row) = team.next_chunk(n_rows) {
            // SAFETY: each row is claimed by one worker of the node a phase, rows do not overlap, and
            // each node has its own arrays; the three arrays were laid out for `max_rows` rows of the widest slot; nothing reads
            // them in this phase.
            let (q, scale, sum) = unsafe {
                (
                    self.row_mut::<i8>(place.q, row, width),
                    self.row_mut::<f32>(place.scale, row, n_blocks),
                    self.row_mut::<i32>(place.sum, row, n_blocks),
                )
            };
            vector.quantize_q8(self.rows(slot, row..row + 1), q, scale, sum);
        }
    }

    /// What [`Arena::quantize`] left on a node, for rows of `width` values; read in a later phase.
    pub(crate) fn quantized(
        &self,
        node: NodeIndex,
        rows: Range<usize>,
        width: usize,
    ) -> Q8Activations<'_> {
        let n_blocks = width / Q8_BLOCK_ELEMS;
        let place = self.quantized[node.0];
        Q8Activations {
            q: self.array(place.q, rows.start * width, rows.len() * width),
            scale: self.array(place.scale, rows.start * n_blocks, rows.len() * n_blocks),
            sum: self.array(place.sum, rows.start * n_blocks, rows.len() * n_blocks),
        }
    }

    fn array<T: Plain>(&self, offset: usize, start: usize, len: usize) -> &[T] {
        let pointer = self.at::<T>(offset, start + len);
        // SAFETY: inside the mapping (`at`), aligned by `layout`; written only by `quantize`, in
        // a phase of its own.
        unsafe { std::slice::from_raw_parts(pointer.add(start), len) }
    }

    /// # Safety
    /// No other reference to this row of this array may exist while the result lives.
    #[expect(
        clippy::mut_from_ref,
        reason = "exclusive by contract, the claim of the row"
    )]
    unsafe fn row_mut<T: Plain>(&self, offset: usize, row: usize, len: usize) -> &mut [T] {
        let pointer = self.at::<T>(offset, (row + 1) * len);
        // SAFETY: inside the mapping (`at`), aligned by `layout`, exclusive by contract.
        unsafe { std::slice::from_raw_parts_mut(pointer.add(row * len), len) }
    }

    /// Start of an array of `n_elems` at `offset`, checked to end inside the mapping.
    fn at<T: Plain>(&self, offset: usize, n_elems: usize) -> *mut T {
        assert!(
            offset + n_elems * size_of::<T>() <= self.memory.len_bytes(),
            "outside the arena"
        );
        self.memory.base_ptr().as_ptr().wrapping_add(offset).cast()
    }
}

/// Types for which any bytes are a value, so that fresh zeroed memory is one.
trait Plain: Copy {}
impl Plain for i8 {}
impl Plain for i32 {}
impl Plain for f32 {}

/// The exclusive right to one rectangle of a slot, for one worker in one phase.
#[derive(Debug)]
pub struct Tile<'a> {
    pointer: *mut f32,
    width: usize,
    rows: Range<usize>,
    cols: Range<usize>,
    _arena: std::marker::PhantomData<&'a Arena>,
}

impl Tile<'_> {
    /// Rows of the slot that the tile covers.
    #[must_use]
    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// Columns of the slot that the tile covers.
    #[must_use]
    pub fn cols(&self) -> Range<usize> {
        self.cols.clone()
    }

    /// The tile's part of one of its rows, `f32[cols.len()]`.
    ///
    /// # Panics
    /// If the row is not one of [`Tile::rows`].
    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        assert!(self.rows.contains(&row), "row outside the tile");
        // SAFETY: row and columns lie in the tile, the tile in its slot (`Arena::tile`), and
        // tiles do not overlap.
        unsafe {
            let start = self.pointer.add(row * self.width + self.cols.start);
            std::slice::from_raw_parts_mut(start, self.cols.len())
        }
    }

    /// The product of the tile's rows of activations with the matrix rows that are its columns.
    ///
    /// `activations` holds the tile's rows only. Columns start at a panel's first row.
    pub(crate) fn multiply(
        &mut self,
        matrix: &MatrixRef<'_>,
        activations: &Activations<'_>,
        reads: &MappedReads<'_>,
    ) {
        assert_eq!(matrix.n_rows(), self.width, "matrix and slot differ");
        let first_panel = self.cols.start / matrix.panel_rows();
        let last_panel = self.cols.end.div_ceil(matrix.panel_rows());
        for panel in first_panel..last_panel {
            let col = panel * matrix.panel_rows();
            assert!(self.cols.contains(&col), "tile does not start at a panel");
            let n_rows = matrix.panel_rows().min(self.cols.end - col);
            // SAFETY: `out` covers rows and columns of this tile only (asserted above), and a
            // tile is exclusive.
            unsafe {
                let start = self.pointer.add(self.rows.start * self.width + col);
                let out = OutTile::new(start, self.width, n_rows);
                matrix.multiply(panel, activations, self.rows.len(), out, reads);
            }
        }
    }
}
