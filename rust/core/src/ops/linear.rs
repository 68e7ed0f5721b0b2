//! `linear`: products of one input with one or more matrices, as q, k and v are.

use super::operand::{Matrix, Read, Records, Vector, Write, operands};
use super::shapes::equal;
use super::{Op, Pass, Phase, Shapes};
use crate::arena::{Grid, Tile};
use crate::packed::ActivationKind;

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
        let quantized = self.products.iter().any(|product| {
            pass.weights.matrix(product.weight.id()).activation() == ActivationKind::Q8
        });
        match (index, quantized) {
            (0, true) => Some(Phase::Quantize(self.input)),
            (0, false) | (1, true) => Some(Phase::Tiles(self.products.len())),
            _ => None,
        }
    }

    fn grid(&self, index: usize, pass: &Pass<'_>) -> Grid {
        let product = &self.products[index];
        let panel_rows = pass.weights.matrix(product.weight.id()).panel_rows();
        pass.grid(product.out.id(), TOKEN_STEP, PANEL_STEP * panel_rows)
    }

    fn fill(&self, index: usize, tile: &mut Tile<'_>, pass: &Pass<'_>, _scratch: &mut [f32]) {
        let product = &self.products[index];
        let weight = pass.weights.matrix(product.weight.id());
        pass.multiply(tile, self.input, &weight);
        if let Some(bias) = product.bias {
            let bias = &pass.weights.vector(bias.id())[tile.cols()];
            for row in tile.rows() {
                pass.vector.add_assign(tile.row_mut(row), bias);
            }
        }
    }
}
