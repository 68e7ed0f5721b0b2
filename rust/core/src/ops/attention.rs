//! `attention`: grouped-query attention over the block cache.
//!
//! Numbers do not depend on how a prompt is cut, on who shares the batch or on threads: scores,
//! maxima and sums of one query row go over positions in ascending order, in partial results of
//! [`CHUNK_POSITIONS`] absolute positions each, merged in ascending order.

use std::ops::Range;

use super::operand::{Cache, Count, Positive, Read, Write, operands};
use super::shapes::equal;
use super::{Op, Pass, Phase, Shapes};
use crate::arena::{Deal, Grid, Rows, Tile};
use crate::batch::{BlockId, Run};
use crate::isa::vector::{AttendBlock, BLOCK_POSITIONS, CacheMut, Partial, attend_scratch_elems};

/// Absolute positions of one partial result. Part of the results' definition: another value
/// gives other roundings.
const CHUNK_POSITIONS: usize = 1024;
const CHUNK_BLOCKS: usize = CHUNK_POSITIONS / BLOCK_POSITIONS;

/// Most query rows of a tile: they share each block's way from memory and its conversion to f32.
const MAX_QUERY_ROWS: usize = 64;

operands! {
    /// `out = softmax(q · kᵀ · scale) · v`, causal, over this pass and what the sequence holds.
    ///
    /// Query head h attends with kv head `h / (n_head / n_head_kv)`.
    ///
    /// Source: Vaswani et al., "Attention Is All You Need" (2017); Ainslie et al., "GQA" (2023);
    /// online softmax after Milakov and Gimelshein (2018).
    pub struct Attention {
        /// Queries, `f32[n_tokens, n_head · k_dim]`.
        q: Read,
        /// New keys, `f32[n_tokens, n_head_kv · k_dim]`.
        k: Read,
        /// New values, `f32[n_tokens, n_head_kv · v_dim]`.
        v: Read,
        /// `f32[n_tokens, n_head · v_dim]`.
        out: Write,
        /// Where keys and values are kept.
        cache: Cache,
        /// Query heads.
        n_head: Count,
        /// Length of a key.
        k_dim: Count,
        /// Length of a value.
        v_dim: Count,
        /// Factor on scores.
        scale: Positive,
    }
}

impl Attention {
    /// Query heads that share a kv head.
    fn group(&self, pass: &Pass<'_>) -> usize {
        self.n_head.get() as usize / pass.cache.n_head_kv(self.cache.id())
    }

    /// Query heads of a tile: as many of a group as fit, in equal parts.
    fn heads_a_tile(group: usize) -> usize {
        (1..=group.min(MAX_QUERY_ROWS))
            .rev()
            .find(|&n| group.is_multiple_of(n))
            .unwrap_or(1)
    }

    fn dims(&self) -> (usize, usize) {
        (self.k_dim.get() as usize, self.v_dim.get() as usize)
    }

    /// Computes the tile's rows of consecutive tokens of one sequence.
    fn fill_tokens(
        &self,
        tokens: Range<usize>,
        tile: &mut Tile<'_>,
        pass: &Pass<'_>,
        scratch: &mut [f32],
    ) {
        let (k_dim, v_dim) = self.dims();
        let n_heads = tile.cols().len() / v_dim;
        let first_head = tile.cols().start / v_dim;
        let m = tokens.len() * n_heads;
        let (q, rest) = scratch.split_at_mut(m * k_dim);
        for (token, q) in tokens.clone().zip(q.chunks_exact_mut(n_heads * k_dim)) {
            let heads = first_head * k_dim..(first_head + n_heads) * k_dim;
            q.copy_from_slice(&pass.row(self.q, token)[heads]);
        }
        pass.vector.scale(q, self.scale.get());
        let (chunk, rest) = rest.split_at_mut(m * (v_dim + 2));
        let (total, scratch) = rest.split_at_mut(m * (v_dim + 2));
        let first = &pass.batch.rows[tokens.start];
        let queries = Queries {
            first_position: first.position,
            n_tokens: tokens.len(),
            n_heads,
            head: first_head / self.group(pass),
            blocks: pass.sequences.blocks(first.sequence),
        };
        let mut parts = Parts {
            q,
            n_visible: &mut [0; MAX_QUERY_ROWS][..m],
            chunk: partial(chunk, m),
            total: partial(total, m),
            scratch,
        };
        self.attend(&queries, pass, &mut parts);
        let total = parts.total.as_ref();
        for (i, token) in tokens.enumerate() {
            let rows = i * n_heads..(i + 1) * n_heads;
            pass.vector.finish(total.rows(rows), tile.row_mut(token));
        }
    }

    /// Attends with the query rows of `queries` over all positions that they see; the result is
    /// in `parts.total`.
    fn attend(&self, queries: &Queries<'_>, pass: &Pass<'_>, parts: &mut Parts<'_>) {
        let n_blocks = (queries.first_position + queries.n_tokens).div_ceil(BLOCK_POSITIONS);
        parts.total.clear();
        for first in (0..n_blocks).step_by(CHUNK_BLOCKS) {
            parts.chunk.clear();
            for block in first..(first + CHUNK_BLOCKS).min(n_blocks) {
                self.attend_block(queries, block, pass, parts);
            }
            pass.vector
                .merge_partial(parts.chunk.as_ref(), &mut parts.total);
        }
    }

    /// Adds one block's positions to the chunk's partial result.
    fn attend_block(
        &self,
        queries: &Queries<'_>,
        block: usize,
        pass: &Pass<'_>,
        parts: &mut Parts<'_>,
    ) {
        let first_position = block * BLOCK_POSITIONS;
        for (row, n_visible) in parts.n_visible.iter_mut().enumerate() {
            let position = queries.first_position + row / queries.n_heads;
            *n_visible = (position + 1)
                .saturating_sub(first_position)
                .min(BLOCK_POSITIONS);
        }
        let (k_dim, v_dim) = self.dims();
        let (cache, id) = (self.cache.id(), queries.blocks[block]);
        let what = AttendBlock {
            q: parts.q,
            n_visible: parts.n_visible,
            k: pass.cache.keys(cache, id, queries.head),
            v: pass.cache.values(cache, id, queries.head),
            k_dim,
            v_dim,
        };
        pass.vector
            .attend_block(&what, &mut parts.chunk, parts.scratch);
    }
}

/// Query rows of consecutive tokens of one sequence that share a kv head: row
/// `token * n_heads + head`.
struct Queries<'a> {
    first_position: usize,
    n_tokens: usize,
    /// Query heads of each token.
    n_heads: usize,
    /// Their kv head.
    head: usize,
    blocks: &'a [BlockId],
}

/// A worker's scratch, cut up for one set of query rows.
struct Parts<'a> {
    /// Scaled queries, `f32[m, k_dim]`.
    q: &'a [f32],
    n_visible: &'a mut [usize],
    chunk: Partial<'a>,
    total: Partial<'a>,
    scratch: &'a mut [f32],
}

/// A partial result of `m` rows in `memory` of m · (`v_dim` + 2) values.
fn partial(memory: &mut [f32], m: usize) -> Partial<'_> {
    let (max, rest) = memory.split_at_mut(m);
    let (sum, acc) = rest.split_at_mut(m);
    Partial { max, sum, acc }
}

impl Op for Attention {
    fn check(&self, shapes: &Shapes<'_>) -> Result<(), String> {
        let cache = shapes.cache(self.cache);
        let (k_dim, v_dim) = self.dims();
        let (n_head, n_head_kv) = (self.n_head.get() as usize, cache.n_head_kv as usize);
        equal("k_dim of the cache", cache.k_dim as usize, k_dim)?;
        equal("v_dim of the cache", cache.v_dim as usize, v_dim)?;
        if !n_head.is_multiple_of(n_head_kv) {
            return Err(format!(
                "{n_head} query heads do not share {n_head_kv} kv heads evenly"
            ));
        }
        equal("width of q", shapes.width(self.q), n_head * k_dim)?;
        equal("width of k", shapes.width(self.k), n_head_kv * k_dim)?;
        equal("width of v", shapes.width(self.v), n_head_kv * v_dim)?;
        equal("width of out", shapes.width(self.out), n_head * v_dim)?;
        for slot in [self.q, self.k, self.v] {
            shapes.same_rows(slot, self.out)?;
        }
        if shapes.rows(self.out) == Rows::Tokens {
            Ok(())
        } else {
            Err("needs a row a token".into())
        }
    }

    fn phase(&self, index: usize, _pass: &Pass<'_>) -> Option<Phase> {
        match index {
            0 => Some(Phase::Store(self.cache.id())),
            1 => Some(Phase::Tiles(Deal::All, 1)),
            _ => None,
        }
    }

    fn grid(&self, _index: usize, pass: &Pass<'_>) -> Grid {
        let n_heads = Self::heads_a_tile(self.group(pass));
        let n_tokens = MAX_QUERY_ROWS / n_heads;
        pass.grid(self.out.id(), n_tokens, n_heads * self.v_dim.get() as usize)
    }

    fn store(
        &self,
        run: &Run,
        head: usize,
        mut k: CacheMut<'_>,
        mut v: CacheMut<'_>,
        pass: &Pass<'_>,
    ) {
        let (k_dim, v_dim) = self.dims();
        for step in 0..run.n_rows {
            let (row, slot) = (run.first_row + step, run.first_slot + step);
            let key = &pass.row(self.k, row)[head * k_dim..(head + 1) * k_dim];
            let value = &pass.row(self.v, row)[head * v_dim..(head + 1) * v_dim];
            pass.vector.store_k(key, &mut k, slot);
            pass.vector.store_v(value, &mut v, slot);
        }
    }

    fn fill(&self, _index: usize, tile: &mut Tile<'_>, pass: &Pass<'_>, scratch: &mut [f32]) {
        let rows = &pass.batch.rows;
        let mut first = tile.rows().start;
        while first < tile.rows().end {
            let sequence = rows[first].sequence;
            let same = rows[first..tile.rows().end]
                .iter()
                .take_while(|row| row.sequence == sequence);
            let n_tokens = same.count();
            self.fill_tokens(first..first + n_tokens, tile, pass, scratch);
            first += n_tokens;
        }
    }

    fn scratch_elems(&self, _shapes: &Shapes<'_>) -> usize {
        let (k_dim, v_dim) = self.dims();
        let m = MAX_QUERY_ROWS;
        m * k_dim + 2 * m * (v_dim + 2) + attend_scratch_elems(m, k_dim, v_dim)
    }
}
