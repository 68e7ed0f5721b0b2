//! `rms_norm`: root-mean-square normalisation with a weight a channel.

use super::operand::{Positive, Read, Vector, Write, operands};
use super::{Op, Pass, Shapes};
use crate::arena::{Grid, Tile};

operands! {
    /// `out = input / sqrt(mean(input²) + eps) * weight`, rows of `f32[n_rows, width]`.
    ///
    /// Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019), equation 4.
    pub struct RmsNorm {
        /// What is normalised.
        input: Read,
        /// `f32[width]`.
        weight: Vector,
        /// The result.
        out: Write,
        /// Added to the mean square.
        eps: Positive,
    }
}

impl Op for RmsNorm {
    fn check(&self, shapes: &Shapes<'_>) -> Result<(), String> {
        shapes.same_shape(self.input, self.out)?;
        shapes.length("length of weight", self.weight, shapes.width(self.input))
    }

    fn grid(&self, _index: usize, pass: &Pass<'_>) -> Grid {
        pass.row_grid(self.out.id())
    }

    fn fill(&self, _index: usize, tile: &mut Tile<'_>, pass: &Pass<'_>, _scratch: &mut [f32]) {
        let weight = pass.weights.vector(self.weight.id());
        for row in tile.rows() {
            let input = pass.row(self.input, row);
            pass.vector
                .rms_norm(input, weight, self.eps.get(), tile.row_mut(row));
        }
    }
}
