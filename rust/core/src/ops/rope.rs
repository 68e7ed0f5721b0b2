//! `rope`: rotary position embedding of every head, in place.

use serde::Deserialize;

use super::operand::{Count, Field, Operand, Read, Update, Use, Visitor, operands, plain};
use super::{Op, Pass, Shapes};
use crate::arena::{Grid, Tile};

/// Which values of a head rotate together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RopeStyle {
    /// Neighbours: 2i and 2i + 1 (llama.cpp's "norm").
    Interleaved,
    /// Halves: i and i + `n_rot`/2.
    Neox,
}

impl Operand for RopeStyle {
    fn field(name: &'static str) -> Field {
        plain(name, "rope_style")
    }
    fn visit(&self, name: &'static str, visitor: &mut Visitor<'_>) {
        visitor(name, Use::Number);
    }
}

operands! {
    /// Rotates the first `2 · n_pairs` values of each head by the row's angles.
    ///
    /// Source: Su et al., "RoFormer" (2021), equation 34.
    pub struct Rope {
        /// `f32[n_tokens, n_heads · head_dim]`.
        data: Update,
        /// What `rope_angles` wrote.
        angles: Read,
        /// Length of a head.
        head_dim: Count,
        /// Which values go together.
        style: RopeStyle,
    }
}

impl Op for Rope {
    fn check(&self, shapes: &Shapes<'_>) -> Result<(), String> {
        shapes.same_rows(self.data, self.angles)?;
        let (head_dim, n_rot) = (self.head_dim.get() as usize, shapes.width(self.angles));
        if !shapes.width(self.data).is_multiple_of(head_dim) {
            return Err(format!(
                "width {} is not whole heads of {head_dim}",
                shapes.width(self.data)
            ));
        }
        if n_rot > head_dim || !n_rot.is_multiple_of(2) {
            return Err(format!("{n_rot} rotated values in heads of {head_dim}"));
        }
        Ok(())
    }

    fn grid(&self, _index: usize, pass: &Pass<'_>) -> Grid {
        pass.row_grid(self.data.id())
    }

    fn fill(&self, _index: usize, tile: &mut Tile<'_>, pass: &Pass<'_>, _scratch: &mut [f32]) {
        for row in tile.rows() {
            let angles = pass.row(self.angles, row);
            for head in tile
                .row_mut(row)
                .chunks_exact_mut(self.head_dim.get() as usize)
            {
                match self.style {
                    RopeStyle::Interleaved => pass.vector.rope_interleaved(head, angles),
                    RopeStyle::Neox => pass.vector.rope_neox(head, angles),
                }
            }
        }
    }
}
