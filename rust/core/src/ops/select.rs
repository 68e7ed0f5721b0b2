//! `select`: only the rows whose logits are asked for go on.

use super::operand::{Read, Write, operands};
use super::shapes::equal;
use super::{Op, Pass, Shapes};
use crate::arena::{Grid, Rows, Tile};

operands! {
    /// `out[i] = input[row of the i-th token whose logits are wanted]`.
    ///
    /// Everything after the last attention needs these rows alone.
    pub struct Select {
        /// `f32[n_tokens, width]`.
        input: Read,
        /// `f32[n_outputs, width]`, in the caller's order.
        out: Write,
    }
}

impl Op for Select {
    fn check(&self, shapes: &Shapes<'_>) -> Result<(), String> {
        if shapes.rows(self.input) != Rows::Tokens || shapes.rows(self.out) != Rows::Outputs {
            return Err("input must have a row a token, out a row an output".into());
        }
        equal(
            "width of out",
            shapes.width(self.out),
            shapes.width(self.input),
        )
    }

    fn grid(&self, _index: usize, pass: &Pass<'_>) -> Grid {
        pass.row_grid(self.out.id())
    }

    fn fill(&self, _index: usize, tile: &mut Tile<'_>, pass: &Pass<'_>, _scratch: &mut [f32]) {
        for row in tile.rows() {
            tile.row_mut(row)
                .copy_from_slice(pass.row(self.input, pass.batch.outputs[row]));
        }
    }
}
