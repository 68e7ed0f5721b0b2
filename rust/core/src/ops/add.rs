//! `add`: the sum of two slots, as in a residual connection.

use super::operand::{Read, Write, operands};
use super::{Op, Pass, Shapes};
use crate::arena::{Grid, Tile};

operands! {
    /// `out = a + b`, each `f32[n_rows, width]`.
    pub struct Add {
        /// First summand.
        a: Read,
        /// Second summand.
        b: Read,
        /// The sum.
        out: Write,
    }
}

impl Op for Add {
    fn check(&self, shapes: &Shapes<'_>) -> Result<(), String> {
        shapes.same_shape(self.a, self.out)?;
        shapes.same_shape(self.b, self.out)
    }

    fn grid(&self, _index: usize, pass: &Pass<'_>) -> Grid {
        pass.row_grid(self.out.id())
    }

    fn fill(&self, _index: usize, tile: &mut Tile<'_>, pass: &Pass<'_>, _scratch: &mut [f32]) {
        for row in tile.rows() {
            pass.vector.add(
                pass.row(self.a, row),
                pass.row(self.b, row),
                tile.row_mut(row),
            );
        }
    }
}
