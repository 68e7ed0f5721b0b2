//! `linear`: products of one input with one or more matrices, as q, k and v are.

use super::operand::{Matrix, Read, Records, Vector, Write, operands};
use super::shapes::equal;
use super::{Op, Pass, Phase, Shapes};
use crate::arena::{Deal, Grid, Tile};
use crate::packed::ActivationKind;
use crate::weights::MatrixRef;

/// Rows of activations a tile has: their 8-bit codes stay in a core's cache while the tile's
/// weights pass by.
const TOKEN_STEP: usize = 64;

/// Panels a tile has: long enough a stream for memory, short enough to balance workers.
const PANEL_STEP: usize = 8;

operands! {
    /// One product: `out = input · weightᵀ + bias`.
    pub(crate) struct Product {
        /// `[n_out, n_in]`.
        weight: Matrix,
        /// `f32[n_out]`.
        bias: Option<Vector>,
        /// `f32[n_rows, n_out]`.
        out: Write,
    }
}

operands! {
    /// Products that share an input, which is quantized once for all of them.
    ///
    /// Block types multiply 8-bit activations and add integers; float types multiply f32 and
    /// add f32, nothing rounded.
    pub struct Linear {
        /// `f32[n_rows, n_in]`.
        input: Read,
        /// The products.
        products: Records<Product>,
    }
}

impl Product {
    fn matrix<'a>(&self, pass: &Pass<'a>) -> MatrixRef<'a> {
        pass.weights.matrix(self.weight.id())
    }
}

impl Linear {
    /// The product, and the part of its matrix, that the `index`-th grid is of.
    fn part(&self, index: usize, pass: &Pass<'_>) -> (&Product, usize) {
        let mut part = index;
        let mut products = self.products.iter();
        loop {
            // The executor asks for grids that `phase` has counted.
            let product = products.next().unwrap_or(&self.products[0]);
            let n_parts = product.matrix(pass).n_parts();
            if part < n_parts {
                return (product, part);
            }
            part -= n_parts;
        }
    }
}

impl Op for Linear {
    fn check(&self, shapes: &Shapes<'_>) -> Result<(), String> {
        for product in self.products.iter() {
            let weight = shapes.matrix(product.weight);
            let name = &weight.name;
            equal(
                &format!("row length of {name}"),
                weight.n_cols as usize,
                shapes.width(self.input),
            )?;
            equal(
                &format!("rows of {name}"),
                weight.n_rows as usize,
                shapes.width(product.out),
            )?;
            shapes.same_rows(self.input, product.out)?;
            if let Some(bias) = product.bias {
                shapes.length("length of bias", bias, shapes.width(product.out))?;
            }
        }
        Ok(())
    }

    fn phase(&self, index: usize, pass: &Pass<'_>) -> Option<Phase> {
        let quantized = self
            .products
            .iter()
            .any(|product| product.matrix(pass).activation() == ActivationKind::Q8);
        match (index, quantized) {
            (0, true) => Some(Phase::Quantize(self.input)),
            (0, false) | (1, true) => {
                let parts = self
                    .products
                    .iter()
                    .map(|product| product.matrix(pass).n_parts());
                Some(Phase::Tiles(Deal::Node, 0..parts.sum()))
            }
            _ => None,
        }
    }

    fn grid(&self, index: usize, pass: &Pass<'_>) -> Grid {
        let (product, part) = self.part(index, pass);
        let matrix = product.matrix(pass);
        let (panel_rows, panels) = (matrix.panel_rows(), matrix.work(part, pass.team));
        let end_row = (panels.end * panel_rows).min(matrix.n_rows());
        // A panel that is packed for each tile is packed once for all rows.
        let row_step = if matrix.is_mapped() {
            usize::MAX
        } else {
            TOKEN_STEP
        };
        Grid {
            cols: (panels.start * panel_rows).min(end_row)..end_row,
            ..pass.grid(product.out.id(), row_step, PANEL_STEP * panel_rows)
        }
    }

    fn fill(&self, index: usize, tile: &mut Tile<'_>, pass: &Pass<'_>, _scratch: &mut [f32]) {
        let (product, _) = self.part(index, pass);
        pass.multiply(tile, self.input, &product.matrix(pass));
        if let Some(bias) = product.bias {
            let bias = &pass.weights.vector(bias.id())[tile.cols()];
            for row in tile.rows() {
                pass.vector.add_assign(tile.row_mut(row), bias);
            }
        }
    }
}
