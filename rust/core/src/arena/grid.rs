//! How a phase cuts what it writes into tiles, and whose they are. Numbers only.

use std::ops::Range;

use super::SlotId;

/// Whose the tiles of a phase are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deal {
    /// Everybody's: dealt to nodes by their workers.
    All,
    /// Each node has tiles of its own.
    Node,
}

/// What tiles cover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Area {
    /// A slot.
    Slot(SlotId),
    /// The memory of partial results as rows of `width` values: what one op leaves there for its
    /// own next phase. All grids of a phase have the same width.
    Partials {
        /// Values a row.
        width: usize,
    },
}

/// A rectangle cut into tiles of `row_step` × `col_step`, row by row of tiles.
#[derive(Debug, Clone)]
pub struct Grid {
    /// What the tiles cover.
    pub area: Area,
    /// Rows that it covers.
    pub rows: Range<usize>,
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

    pub(super) fn n_tiles(&self) -> usize {
        self.rows.len().div_ceil(self.row_step) * self.n_across()
    }

    /// Rows and columns of the `item`-th tile. No two tiles have an element in common.
    pub(super) fn cut(&self, item: usize) -> (Range<usize>, Range<usize>) {
        let row = self.rows.start + item / self.n_across() * self.row_step;
        let col = self.cols.start + item % self.n_across() * self.col_step;
        (
            row..(row + self.row_step).min(self.rows.end),
            col..(col + self.col_step).min(self.cols.end),
        )
    }
}
