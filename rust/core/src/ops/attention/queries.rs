//! Query rows of a few tokens and heads on their way over the blocks of one chunk.
//!
//! Knows nothing of tiles or of who computes which chunk; the op asks for one chunk at a time.

use std::ops::Range;

use super::{Attention, MAX_QUERY_ROWS};
use crate::batch::BlockId;
use crate::isa::vector::{AttendBlock, BLOCK_POSITIONS, Partial, PartialRef};
use crate::ops::Pass;
use crate::state::{CHUNK_BLOCKS, n_chunks};

/// Queries of consecutive tokens of one sequence, for heads that share a kv head.
///
/// Row i·`n_heads` + h is head h of token i.
pub(super) struct Queries<'a, 'p> {
    op: &'a Attention,
    pass: &'a Pass<'p>,
    tokens: Range<usize>,
    n_heads: usize,
    /// Their kv head.
    head: usize,
    first_position: usize,
    blocks: &'a [BlockId],
    /// Scaled, `f32[m, k_dim]`.
    q: &'a [f32],
    n_visible: [usize; MAX_QUERY_ROWS],
    scratch: &'a mut [f32],
}

impl<'a, 'p> Queries<'a, 'p> {
    /// Gathers and scales the queries.
    ///
    /// # Returns
    /// They, and memory for two partial results of all their rows.
    pub(super) fn new(
        op: &'a Attention,
        tokens: Range<usize>,
        heads: Range<usize>,
        pass: &'a Pass<'p>,
        scratch: &'a mut [f32],
    ) -> (Self, [Partial<'a>; 2]) {
        let (k_dim, v_dim) = op.dims();
        let m = tokens.len() * heads.len();
        let (q, rest) = scratch.split_at_mut(m * k_dim);
        for (token, q) in tokens.clone().zip(q.chunks_exact_mut(heads.len() * k_dim)) {
            let row = pass.row(op.q, token);
            q.copy_from_slice(&row[heads.start * k_dim..heads.end * k_dim]);
        }
        pass.vector.scale(q, op.scale.get());
        let (first, rest) = rest.split_at_mut(m * (v_dim + 2));
        let (second, scratch) = rest.split_at_mut(m * (v_dim + 2));
        let row = &pass.batch.rows[tokens.start];
        let queries = Self {
            op,
            pass,
            tokens,
            n_heads: heads.len(),
            head: heads.start / op.group(pass),
            first_position: row.position,
            blocks: pass.sequences.blocks(row.sequence),
            q,
            n_visible: [0; MAX_QUERY_ROWS],
            scratch,
        };
        (queries, [partial(first, m), partial(second, m)])
    }

    fn n_positions(&self) -> usize {
        self.first_position + self.tokens.len()
    }

    /// Chunks that the last token sees.
    pub(super) fn n_chunks(&self) -> usize {
        n_chunks(self.n_positions())
    }

    /// Leaves in `partial` what the positions of one chunk come to.
    pub(super) fn attend(&mut self, chunk: usize, partial: &mut Partial<'_>) {
        let n_blocks = self.n_positions().div_ceil(BLOCK_POSITIONS);
        let first = chunk * CHUNK_BLOCKS;
        partial.clear();
        for block in first..(first + CHUNK_BLOCKS).min(n_blocks) {
            self.attend_block(block, partial);
        }
    }

    fn attend_block(&mut self, block: usize, partial: &mut Partial<'_>) {
        let first_position = block * BLOCK_POSITIONS;
        let n_visible = &mut self.n_visible[..partial.max.len()];
        for (row, n_visible) in n_visible.iter_mut().enumerate() {
            let position = self.first_position + row / self.n_heads;
            *n_visible = (position + 1)
                .saturating_sub(first_position)
                .min(BLOCK_POSITIONS);
        }
        let (k_dim, v_dim) = self.op.dims();
        let (id, block, cache) = (self.op.cache.id(), self.blocks[block], self.pass.cache);
        let what = AttendBlock {
            q: self.q,
            n_visible,
            k: cache.keys(id, block, self.head),
            v: cache.values(id, block, self.head),
            k_dim,
            v_dim,
        };
        self.pass.vector.attend_block(&what, partial, self.scratch);
    }
}

/// A partial result of `m` rows in `memory` of m · (`v_dim` + 2) values.
pub(super) fn partial(memory: &mut [f32], m: usize) -> Partial<'_> {
    let (max, rest) = memory.split_at_mut(m);
    let (sum, acc) = rest.split_at_mut(m);
    Partial { max, sum, acc }
}

/// The same, to read.
pub(super) fn partial_ref(memory: &[f32], m: usize) -> PartialRef<'_> {
    let (max, rest) = memory.split_at(m);
    let (sum, acc) = rest.split_at(m);
    PartialRef { max, sum, acc }
}
