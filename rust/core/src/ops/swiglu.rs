//! `swiglu`: the gated activation of a feed-forward block.

use super::operand::{Read, Write, operands};
use super::{Op, Pass, Shapes};
use crate::arena::{Grid, Tile};

operands! {
    /// `out = silu(gate) * up` with `silu(x) = x / (1 + exp(-x))`, each `f32[n_rows, width]`.
    ///
    /// Source: Shazeer, "GLU Variants Improve Transformer" (2020), section 2.
    pub struct Swiglu {
        /// The gate's projection.
        gate: Read,
        /// The other projection.
        up: Read,
        /// The product.
        out: Write,
    }
}

impl Op for Swiglu {
    fn check(&self, shapes: &Shapes<'_>) -> Result<(), String> {
        shapes.same_shape(self.gate, self.out)?;
        shapes.same_shape(self.up, self.out)
    }

    fn grid(&self, _index: usize, pass: &Pass<'_>) -> Grid {
        pass.row_grid(self.out.id())
    }

    fn fill(&self, _index: usize, tile: &mut Tile<'_>, pass: &Pass<'_>, _scratch: &mut [f32]) {
        for row in tile.rows() {
            let (gate, up) = (pass.row(self.gate, row), pass.row(self.up, row));
            pass.vector.swiglu(gate, up, tile.row_mut(row));
        }
    }
}
