//! `rope_angles`: cosine and sine of every rotary angle, once a pass for all layers.

use super::operand::{Frequency, List, Positive, Vector, Write, operands};
use super::shapes::equal;
use super::{Op, Pass, Shapes};
use crate::arena::{Grid, Rows, Tile};

operands! {
    /// `out[row] = (m·cos(p·f_i), m·sin(p·f_i))` for each pair i, p the row's position.
    ///
    /// `f_i = frequencies[i] / factors[i]`, m = `magnitude`. Angles are taken in f64: a position
    /// times a frequency near 1 loses whole turns in f32. How frequencies come about (base,
    /// scaling, YaRN) is the architecture's business.
    ///
    /// Source: Su et al., "RoFormer" (2021), section 3.2; the factors are Llama 3's
    /// `rope_freqs.weight`.
    pub struct RopeAngles {
        /// Radians a position, one for each rotated pair.
        frequencies: List<Frequency>,
        /// Divisors of the frequencies, `f32[n_pairs]`.
        factors: Option<Vector>,
        /// Factor on both cosine and sine.
        magnitude: Positive,
        /// `f32[n_tokens, 2 · n_pairs]`: cosine and sine of pair 0, of pair 1, …
        out: Write,
    }
}

impl Op for RopeAngles {
    fn check(&self, shapes: &Shapes<'_>) -> Result<(), String> {
        if shapes.rows(self.out) != Rows::Tokens {
            return Err("out must have a row a token".into());
        }
        if let Some(factors) = self.factors {
            shapes.length("length of factors", factors, self.frequencies.len())?;
        }
        equal(
            "width of out",
            shapes.width(self.out),
            2 * self.frequencies.len(),
        )
    }

    fn grid(&self, _index: usize, pass: &Pass<'_>) -> Grid {
        pass.row_grid(self.out.id())
    }

    fn fill(&self, _index: usize, tile: &mut Tile<'_>, pass: &Pass<'_>, _scratch: &mut [f32]) {
        let factors = self
            .factors
            .map(|factors| pass.weights.vector(factors.id()));
        let magnitude = f64::from(self.magnitude.get());
        for row in tile.rows() {
            let position = pass.batch.rows[row].position as f64;
            for (i, pair) in tile.row_mut(row).chunks_exact_mut(2).enumerate() {
                let factor = factors.map_or(1.0, |factors| f64::from(factors[i]));
                let (sin, cos) = (position * self.frequencies[i].get() / factor).sin_cos();
                pair[0] = (magnitude * cos) as f32;
                pair[1] = (magnitude * sin) as f32;
            }
        }
    }
}
