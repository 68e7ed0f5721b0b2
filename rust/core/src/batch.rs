//! One forward pass's tokens, put in order.
//!
//! A caller may mix sequences as it likes; the engine works on rows sorted by sequence and
//! position. Holds that order, the cache blocks that the pass writes, and which rows' logits are
//! wanted. Knows neither weights nor ops; `state` fills it, ops read it.

use crate::workers::NodeIndex;

/// One block of the cache: of which node's pool, and which of that pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockId {
    pub(crate) node: NodeIndex,
    pub(crate) index: u32,
}

impl BlockId {
    /// The node whose memory it lies in.
    #[must_use]
    pub fn node(self) -> NodeIndex {
        self.node
    }
}

/// One token of a forward pass, as the caller gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchItem {
    /// The caller's number for the sequence; an unknown one starts a sequence.
    pub sequence: u32,
    /// Position in the sequence, from 0.
    pub position: u32,
    /// Token id.
    pub token: u32,
    /// Whether the logits after this token are asked for.
    pub wants_logits: bool,
}

/// One row of the pass: a token at its place.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Index of the sequence among those the state knows.
    pub sequence: usize,
    /// Position in the sequence.
    pub position: usize,
    /// Token id.
    pub token: usize,
}

/// Consecutive rows whose positions lie in one cache block.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// The block that the rows' keys and values go to; no other run of the pass has it.
    pub block: BlockId,
    /// First row of the run.
    pub first_row: usize,
    /// Number of rows.
    pub n_rows: usize,
    /// Slot of the first row inside the block, 0 to 63.
    pub first_slot: usize,
}

/// A pass in the order in which the engine computes it.
///
/// Only the state fills one: that no two runs have the same block is what lets workers store side
/// by side.
#[derive(Debug, Default)]
pub struct Batch {
    /// Rows sorted by sequence, then position.
    pub(crate) rows: Vec<Row>,
    /// The rows again, by the block they are stored in.
    pub(crate) runs: Vec<Run>,
    /// By node: the runs, by index, whose blocks lie there.
    pub(crate) runs_on: Vec<Vec<usize>>,
    /// Rows whose logits are wanted, in the order in which the caller named them.
    pub(crate) outputs: Vec<usize>,
}

impl Batch {
    pub(crate) fn with_capacity(max_rows: usize) -> Self {
        Self {
            rows: Vec::with_capacity(max_rows),
            runs: Vec::with_capacity(max_rows),
            runs_on: Vec::new(),
            outputs: Vec::with_capacity(max_rows),
        }
    }

    /// Rows sorted by sequence, then position.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The rows again, by the block they are stored in.
    #[must_use]
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Rows whose logits are wanted, in the order in which the caller named them.
    #[must_use]
    pub fn outputs(&self) -> &[usize] {
        &self.outputs
    }

    /// Adds a run to those of all and to those of its node.
    pub(crate) fn push_run(&mut self, run: Run) {
        let node = run.block.node.0;
        if self.runs_on.len() <= node {
            self.runs_on.resize_with(node + 1, Vec::new);
        }
        self.runs_on[node].push(self.runs.len());
        self.runs.push(run);
    }

    pub(crate) fn clear(&mut self) {
        self.rows.clear();
        self.runs.clear();
        self.runs_on.iter_mut().for_each(Vec::clear);
        self.outputs.clear();
    }
}
