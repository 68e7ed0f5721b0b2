//! The ops a program is made of: what each takes, what it checks, and its work on one tile.
//!
//! One file an op. An op says which phases it has and computes one tile at a time; it knows
//! nothing of threads, allocates nothing and sees no raw memory. `program.rs` verifies ops, `exec`
//! runs them.

use std::ops::Range;

use serde::Deserialize;

use crate::arena::{Area, Arena, Deal, Grid, Rows, SlotId, Tile};
use crate::batch::{Batch, Run};
use crate::isa::vector::{CacheMut, VectorOps};
use crate::mapped::MappedReads;
use crate::packed::ActivationKind;
use crate::state::{BlockCache, CacheId, Sequences};
use crate::weights::{MatrixRef, NodeWeights};
use crate::workers::{NodeIndex, Team};

pub mod operand;
mod shapes;

mod add;
mod attention;
mod embed;
mod linear;
mod rms_norm;
mod rope;
mod rope_angles;
mod select;
mod swiglu;

use operand::{Field, Operands, Read, Visitor};
pub use shapes::Shapes;

/// What one step of an op is, between two barriers.
#[derive(Debug, Clone)]
pub enum Phase {
    /// The rows of a slot are quantized to 8 bits.
    Quantize(Read),
    /// Keys and values are stored into a block cache, by [`Op::store`].
    Store(CacheId),
    /// The tiles of these grids ([`Op::grid`]) are filled by [`Op::fill`]: the same grids on every
    /// node, or each node's own.
    Tiles(Deal, Range<usize>),
    /// Each row of the op's one grid is filled by a worker of its owner ([`Op::owner`]).
    Rows(SlotId),
}

/// Everything a running op may look at.
#[derive(Debug, Clone, Copy)]
pub struct Pass<'a> {
    /// The model's weights, as this worker's node reads them.
    pub weights: NodeWeights<'a>,
    /// Element-wise functions of the instruction set in use.
    pub vector: &'static VectorOps,
    /// Tokens of the pass.
    pub batch: &'a Batch,
    /// Which sequence holds which blocks.
    pub sequences: &'a Sequences,
    /// Keys and values in those blocks.
    pub cache: &'a BlockCache,
    pub(crate) team: &'a Team<'a>,
    pub(crate) arena: &'a Arena,
    pub(crate) rows: &'a [Rows],
    /// With what the worker reads weights that stay in their file.
    pub(crate) reads: &'a MappedReads<'a>,
}

impl<'a> Pass<'a> {
    /// Rows that a slot has in this pass.
    #[must_use]
    pub fn n_rows(&self, slot: SlotId) -> usize {
        match self.rows[slot.0 as usize] {
            Rows::Tokens => self.batch.rows.len(),
            Rows::Outputs => self.batch.outputs.len(),
        }
    }

    /// Rows of a slot that the op reads, `f32[rows.len(), width]`.
    #[must_use]
    pub fn read(&self, operand: Read, rows: Range<usize>) -> &'a [f32] {
        self.arena.rows(operand.id(), rows)
    }

    /// One row of a slot that the op reads, `f32[width]`.
    #[must_use]
    pub fn row(&self, operand: Read, row: usize) -> &'a [f32] {
        self.read(operand, row..row + 1)
    }

    /// A grid over all rows and columns of `slot`.
    fn grid(&self, slot: SlotId, row_step: usize, col_step: usize) -> Grid {
        Grid {
            area: Area::Slot(slot),
            rows: 0..self.n_rows(slot),
            cols: 0..self.arena.width(slot),
            row_step,
            col_step,
        }
    }

    /// A grid whose tiles are [`ROW_STEP`] whole rows.
    fn row_grid(&self, slot: SlotId) -> Grid {
        self.grid(slot, ROW_STEP, self.arena.width(slot))
    }

    /// Rows of `input` as `matrix` wants them for a product.
    fn multiply(&self, tile: &mut Tile<'_>, input: Read, matrix: &MatrixRef<'_>) {
        let rows = tile.rows();
        let activations = match matrix.activation() {
            ActivationKind::F32 => crate::packed::Activations::F32(self.read(input, rows)),
            ActivationKind::Q8 => crate::packed::Activations::Q8(self.arena.quantized(
                self.team.node(),
                rows,
                matrix.n_cols(),
            )),
        };
        tile.multiply(matrix, &activations, self.reads);
    }
}

/// Rows a worker takes at a time in ops that work row by row.
const ROW_STEP: usize = 4;

/// One kind of op.
pub(crate) trait Op: Sync {
    /// Checks widths and shapes against each other; ids and order were checked before.
    fn check(&self, shapes: &Shapes<'_>) -> Result<(), String>;

    /// The `index`-th phase, or `None` after the last.
    fn phase(&self, index: usize, _pass: &Pass<'_>) -> Option<Phase> {
        (index == 0).then_some(Phase::Tiles(Deal::All, 0..1))
    }

    /// How the `index`-th grid cuts what it covers.
    fn grid(&self, index: usize, pass: &Pass<'_>) -> Grid;

    /// Computes one tile of the `index`-th grid. `scratch` is the worker's own.
    fn fill(&self, index: usize, tile: &mut Tile<'_>, pass: &Pass<'_>, scratch: &mut [f32]);

    /// The node whose workers fill a row, in a phase of rows.
    fn owner(&self, _row: usize, pass: &Pass<'_>) -> NodeIndex {
        pass.team.node()
    }

    /// Stores the keys and values of one run and kv head.
    fn store(
        &self,
        _run: &Run,
        _head: usize,
        _k: CacheMut<'_>,
        _v: CacheMut<'_>,
        _pass: &Pass<'_>,
    ) {
    }

    /// Values of scratch that [`Op::fill`] needs.
    fn scratch_elems(&self, _shapes: &Shapes<'_>) -> usize {
        0
    }

    /// Values of partial results that the op leaves from one of its phases to the next, in passes
    /// of up to `max_rows` tokens and sequences of up to `n_ctx` positions.
    fn partial_elems(&self, _max_rows: usize, _n_ctx: usize) -> usize {
        0
    }
}

/// The list of ops: name in a program, module and type.
macro_rules! ops {
    ($( $name:literal => $module:ident::$op:ident ),* $(,)?) => {
        /// An op of any kind, as a program holds it.
        #[derive(Debug, Clone, Deserialize)]
        pub enum AnyOp {
            $(
                #[doc = concat!("`", $name, "`")]
                #[serde(rename = $name)]
                $op($module::$op),
            )*
        }

        impl AnyOp {
            /// Its name in a program.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self { $( Self::$op(_) => $name, )* }
            }

            pub(crate) fn as_op(&self) -> &dyn Op {
                match self { $( Self::$op(op) => op, )* }
            }

            pub(crate) fn visit(&self, visitor: &mut Visitor<'_>) {
                match self { $( Self::$op(op) => op.visit(visitor), )* }
            }
        }

        /// Every op: its name and fields.
        #[must_use]
        pub fn schema() -> Vec<(&'static str, Vec<Field>)> {
            vec![$( ($name, <$module::$op as Operands>::schema()) ),*]
        }
    };
}

ops! {
    "embed" => embed::Embed,
    "rms_norm" => rms_norm::RmsNorm,
    "linear" => linear::Linear,
    "rope_angles" => rope_angles::RopeAngles,
    "rope" => rope::Rope,
    "attention" => attention::Attention,
    "add" => add::Add,
    "swiglu" => swiglu::Swiglu,
    "select" => select::Select,
}
