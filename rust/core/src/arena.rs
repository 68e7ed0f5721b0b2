//! Activations of a forward pass: slots of f32 rows, and who may write which part of them.
//!
//! A slot is `f32[n_rows, width]`, row-major; its memory is reused by the program's compiler, not
//! here. Beside slots lie their 8-bit copies, and partial results that an op leaves from one of
//! its phases to the next. Ops never see a pointer: a phase cuts what it writes into a [`Grid`] of
//! tiles, each worker claims tiles from the team's counter, and a [`Tile`] is the exclusive right to
//! its rectangle. Knows no op; `exec` drives it, ops fill tiles.
#![expect(
    unsafe_code,
    reason = "hands out disjoint rectangles of one mapping to several workers"
)]

mod grid;
mod layout;

use std::ops::Range;

use crate::error::Result;
use crate::isa::vector::VectorOps;
use crate::mapped::MappedReads;
use crate::memory::Mapping;
use crate::packed::{Activations, OutTile, Q8_BLOCK_ELEMS, Q8Activations};
use crate::weights::MatrixRef;
use crate::workers::{NodeIndex, Team};

pub use grid::{Area, Deal, Grid};
pub use layout::{ArenaSize, Rows, SlotId, SlotSpec, arena_bytes};
use layout::{Layout, Place};

/// Memory for all slots, for activations quantized to 8 bits and for partial results.
#[derive(Debug)]
pub struct Arena {
    memory: Mapping,
    layout: Layout,
    size: ArenaSize,
}

impl Arena {
    /// Memory for `slots` and what else `size` asks for.
    pub fn new(slots: &[SlotSpec], size: ArenaSize) -> Result<Self> {
        let layout = Layout::new(slots, &size);
        let memory = Mapping::new("activations", layout.n_bytes.max(1))?;
        Ok(Self {
            memory,
            layout,
            size,
        })
    }

    /// Rows a slot can hold.
    #[must_use]
    pub fn max_rows(&self) -> usize {
        self.size.max_rows
    }

    /// Values of partial results that there is memory for.
    pub(crate) fn partial_elems(&self) -> usize {
        self.size.partial_elems
    }

    /// Values a row of the slot.
    #[must_use]
    pub fn width(&self, slot: SlotId) -> usize {
        self.layout.slots[slot.0 as usize].width
    }

    /// Rows of a slot, `f32[rows.len(), width]`.
    pub(crate) fn rows(&self, slot: SlotId, rows: Range<usize>) -> &[f32] {
        self.area_rows(Area::Slot(slot), rows)
    }

    /// One row of partial results, `f32[width]`, as the last phase left it.
    pub(crate) fn partial_row(&self, width: usize, row: usize) -> &[f32] {
        self.area_rows(Area::Partials { width }, row..row + 1)
    }

    /// Sound because a verified op never reads a slot that it writes, no phase both reads and
    /// writes partial results, and phases are apart by a barrier: no tile of this area lives while
    /// the result does.
    fn area_rows(&self, area: Area, rows: Range<usize>) -> &[f32] {
        let (place, n_rows) = self.place(area);
        let pointer = self.at::<f32>(place.offset, n_rows * place.width);
        assert!(
            rows.start <= rows.end && rows.end <= n_rows,
            "rows outside their area"
        );
        // SAFETY: inside the area (asserted), which `Layout` put inside the mapping, 64-byte
        // aligned; no writer, as said above.
        unsafe {
            std::slice::from_raw_parts(
                pointer.add(rows.start * place.width),
                rows.len() * place.width,
            )
        }
    }

    /// Where an area lies, and how many rows it has.
    fn place(&self, area: Area) -> (Place, usize) {
        match area {
            Area::Slot(slot) => (self.layout.slots[slot.0 as usize], self.size.max_rows),
            Area::Partials { width } => {
                let offset = self.layout.partials;
                (Place { offset, width }, self.size.partial_elems / width)
            }
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
        grids: Range<usize>,
        grid: impl Fn(usize) -> Grid,
        mut fill: impl FnMut(usize, &mut Tile<'_>),
    ) {
        let total = grids.clone().map(|i| grid(i).n_tiles()).sum();
        let claim = || match deal {
            Deal::All => team.next_item(total),
            Deal::Node => team.next_chunk(total),
        };
        while let Some(mut item) = claim() {
            let mut index = grids.start;
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
        let width = self.width(slot);
        let rows = Grid {
            area: Area::Slot(slot),
            rows: 0..n_rows,
            cols: 0..width,
            row_step: 1,
            col_step: width,
        };
        while let Some(row) = team.next_chunk(n_rows) {
            if owner(row) == team.node() {
                fill(&mut self.tile(&rows, row));
            }
        }
    }

    /// The `item`-th tile of a grid.
    ///
    /// Exclusive by construction: tiles of one grid do not overlap (`Grid::cut`), and each item is
    /// claimed once a phase. Of a phase's grids the slots differ or their columns do (an op's
    /// written slots are distinct, `program.rs`; panels of a matrix are dealt to nodes once,
    /// `MatrixRef::work`), or the rows of partial results do (chunks are dealt to nodes once,
    /// `Team::homes`, and have rows of their own, `ops/attention/span.rs`).
    fn tile(&self, grid: &Grid, item: usize) -> Tile<'_> {
        let (place, n_rows) = self.place(grid.area);
        assert!(
            grid.rows.end <= n_rows && grid.cols.end <= place.width,
            "grid outside its area"
        );
        let (rows, cols) = grid.cut(item);
        Tile {
            pointer: self.at::<f32>(place.offset, n_rows * place.width),
            width: place.width,
            rows,
            cols,
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
        let place = self.layout.quantized[team.node().0];
        while let Some(row) = team.next_chunk(n_rows) {
            // SAFETY: each row is claimed by one worker of the node a phase, rows do not overlap,
            // and each node has its own arrays; the three arrays were laid out for `max_rows` rows
            // of the widest slot; nothing reads them in this phase.
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
        let place = self.layout.quantized[node.0];
        Q8Activations {
            q: self.array(place.q, rows.start * width, rows.len() * width),
            scale: self.array(place.scale, rows.start * n_blocks, rows.len() * n_blocks),
            sum: self.array(place.sum, rows.start * n_blocks, rows.len() * n_blocks),
        }
    }

    fn array<T: Plain>(&self, offset: usize, start: usize, len: usize) -> &[T] {
        let pointer = self.at::<T>(offset, start + len);
        // SAFETY: inside the mapping (`at`), aligned by `Layout`; written only by `quantize`, in
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
        // SAFETY: inside the mapping (`at`), aligned by `Layout`, exclusive by contract.
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

/// The exclusive right to one rectangle of an area, for one worker in one phase.
#[derive(Debug)]
pub struct Tile<'a> {
    pointer: *mut f32,
    width: usize,
    rows: Range<usize>,
    cols: Range<usize>,
    _arena: std::marker::PhantomData<&'a Arena>,
}

impl Tile<'_> {
    /// Rows of the area that the tile covers.
    #[must_use]
    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// Columns of the area that the tile covers.
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
        // SAFETY: row and columns lie in the tile, the tile in its area (`Arena::tile`), and
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
