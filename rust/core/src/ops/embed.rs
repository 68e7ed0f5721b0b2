//! `embed`: the embedding of each token of the pass.

use super::operand::{Matrix, Write, operands};
use super::shapes::equal;
use super::{Op, Pass, Phase, Shapes};
use crate::arena::{Grid, Rows, Tile};
use crate::workers::NodeIndex;

operands! {
    /// `out[row] = table[token of row]`, decoded exactly; `table` is `[n_vocab, n_embd]`.
    pub struct Embed {
        /// The embedding matrix; the output projection may be the same tensor.
        table: Matrix,
        /// `f32[n_tokens, n_embd]`.
        out: Write,
    }
}

impl Embed {
    /// Tokens must be below this: rows of the table.
    pub(crate) fn table(&self) -> Matrix {
        self.table
    }
}

impl Op for Embed {
    fn check(&self, shapes: &Shapes<'_>) -> Result<(), String> {
        if shapes.rows(self.out) != Rows::Tokens {
            return Err("out must have a row a token".into());
        }
        equal(
            "width of out",
            shapes.width(self.out),
            shapes.matrix(self.table).n_cols as usize,
        )
    }

    fn phase(&self, index: usize, _pass: &Pass<'_>) -> Option<Phase> {
        (index == 0).then_some(Phase::Rows(self.out.id()))
    }

    fn grid(&self, _index: usize, pass: &Pass<'_>) -> Grid {
        pass.row_grid(self.out.id())
    }

    fn owner(&self, row: usize, pass: &Pass<'_>) -> NodeIndex {
        let table = pass.weights.matrix(self.table.id());
        table.owner(pass.batch.rows[row].token, pass.team)
    }

    fn fill(&self, _index: usize, tile: &mut Tile<'_>, pass: &Pass<'_>, _scratch: &mut [f32]) {
        let table = pass.weights.matrix(self.table.id());
        for row in tile.rows() {
            let token = pass.batch.rows[row].token;
            if let Err(error) = table.unpack_row(token, tile.row_mut(row)) {
                pass.reads.report(error);
            }
        }
    }
}
