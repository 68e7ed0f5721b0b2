//! `attention`: grouped-query attention over the block cache.
//!
//! Numbers do not depend on how a prompt is cut, on who shares the batch or on threads: scores,
//! maxima and sums of one query row go over positions in ascending order, in partial results of
//! [`CHUNK_POSITIONS`] absolute positions each, merged in ascending order.

use super::operand::{Cache, Count, Positive, Read, Write, operands};
use super::shapes::equal;
use super::{Op, Pass, Phase, Shapes};
use crate::arena::{Grid, Rows, Tile};
use crate::batch::Run;
use crate::isa::vector::{KvMut, Partial};
use crate::state::{BLOCK_POSITIONS, BlockId};

/// Absolute positions of one partial result. Part of the results' definition: another value
/// gives other roundings.
const CHUNK_POSITIONS: usize = 1024;

/// Tokens of a tile: they share each block's conversion to f32.
const TOKEN_STEP: usize = 16;

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
    fn n_head_kv(&self, pass: &Pass<'_>) -> usize {
        pass.state.n_head_kv(self.cache.id())
    }

    /// Query heads that share a kv head.
    fn group(&self, pass: &Pass<'_>) -> usize {
        self.n_head.get() as usize / self.n_head_kv(pass)
    }

    fn dims(&self) -> (usize, usize) {
        (self.k_dim.get() as usize, self.v_dim.get() as usize)
    }

    /// Attends with the query rows of `queries` over all positions that they see.
    fn attend(&self, queries: &Queries<'_>, pass: &Pass<'_>, parts: &mut Parts<'_>) {
        let last_block = (queries.first_position + queries.n_tokens - 1) / BLOCK_POSITIONS;
        let blocks_a_chunk = CHUNK_POSITIONS / BLOCK_POSITIONS;
        parts.total.clear();
        for first in (0..=last_block).step_by(blocks_a_chunk) {
            parts.chunk.clear();
            for block in first..(first + blocks_a_chunk).min(last_block + 1) {
                self.attend_block(queries, block, pass, parts);
            }
            pass.vector.merge(&mut parts.total, &parts.chunk);
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
        let cache = self.cache.id();
        let k = pass.state.keys(cache, queries.blocks[block], queries.head);
        let v = pass.state.values(cache, queries.blocks[block], queries.head);
        if first_position + BLOCK_POSITIONS - 1 <= queries.first_position {
            pass.vector.attend_block(parts.q, k, v, BLOCK_POSITIONS, &mut parts.chunk, parts.scores);
            return;
        }
        // The mask cuts through this block: each token sees another number of its positions.
        let k_dim = parts.q.len() / (queries.n_tokens * queries.group);
        for token in 0..queries.n_tokens {
            let position = queries.first_position + token;
            if position < first_position {
                continue;
            }
            let n_visible = (position + 1 - first_position).min(BLOCK_POSITIONS);
            let rows = token * queries.group..(token + 1) * queries.group;
            let q = &parts.q[rows.start * k_dim..rows.end * k_dim];
            let mut chunk = parts.chunk.rows(rows);
            pass.vector.attend_block(q, k, v, n_visible, &mut chunk, parts.scores);
        }
    }
}

/// Query rows of consecutive tokens of one sequence that share a kv head.
struct Queries<'a> {
    first_position: usize,
    n_tokens: usize,
    group: usize,
    head: usize,
    blocks: &'a [BlockId],
}

/// A worker's scratch, cut up for one set of query rows.
struct Parts<'a> {
    /// Scaled queries, `f32[n_tokens · group, k_dim]`.
    q: &'a [f32],
    scores: &'a mut [f32],
    chunk: Partial<'a>,
    total: Partial<'a>,
}

impl Op for Attention {
    fn check(&self, shapes: &Shapes<'_>) -> Result<(), String> {
        let cache = shapes.cache(self.cache);
        let (k_dim, v_dim) = self.dims();
        let (n_head, n_head_kv) = (self.n_head.get() as usize, cache.n_head_kv as usize);
        equal("k_dim of the cache", cache.k_dim as usize, k_dim)?;
        equal("v_dim of the cache", cache.v_dim as usize, v_dim)?;
        if n_head % n_head_kv != 0 {
            return Err(format!("{n_head} query heads do not share {n_head_kv} kv heads evenly"));
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
            1 => Some(Phase::Tiles(1)),
            _ => None,
        }
    }

    fn grid(&self, _index: usize, pass: &Pass<'_>) -> Grid {
        pass.grid(self.out.id(), TOKEN_STEP, self.group(pass) * self.v_dim.get() as usize)
    }

    fn store(&self, run: &Run, head: usize, mut k: KvMut<'_>, mut v: KvMut<'_>, pass: &Pass<'_>) {
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
        let group = self.group(pass);
        let (k_dim, v_dim) = self.dims();
        let head = tile.cols().start / (group * v_dim);
        let rows = &pass.batch.rows;
        let mut first = tile.rows().start;
        while first < tile.rows().end {
            let sequence = rows[first].sequence;
            let n_tokens = (first..tile.rows().end)
                .take_while(|&row| rows[row].sequence == sequence)
                .count();
            let m = n_tokens * group;
            let (q, rest) = scratch.split_at_mut(m * k_dim);
            for (token, q) in q.chunks_exact_mut(group * k_dim).enumerate() {
                let heads = head * group * k_dim..(head + 1) * group * k_dim;
                pass.vector.scale(&pass.row(self.q, first + token)[heads], self.scale.get(), q);
            }
            let (scores, rest) = rest.split_at_mut(m * BLOCK_POSITIONS);
            let (chunk, total) = rest.split_at_mut(Partial::n_elems(m, v_dim));
            let mut parts = Parts {
                q,
                scores,
                chunk: Partial::new(chunk, m, v_dim),
                total: Partial::new(&mut total[..Partial::n_elems(m, v_dim)], m, v_dim),
            };
            let queries = Queries {
                first_position: rows[first].position,
                n_tokens,
                group,
                head,
                blocks: pass.state.blocks(sequence),
            };
            self.attend(&queries, pass, &mut parts);
            for token in 0..n_tokens {
                let rows = token * group..(token + 1) * group;
                pass.vector.finish(&parts.total.rows(rows), tile.row_mut(first + token));
            }
            first += n_tokens;
        }
    }

    fn scratch_elems(&self, shapes: &Shapes<'_>) -> usize {
        let group = self.n_head.get() as usize / shapes.cache(self.cache).n_head_kv as usize;
        let (k_dim, v_dim) = self.dims();
        let m = TOKEN_STEP * group;
        m * (k_dim + BLOCK_POSITIONS) + 2 * Partial::n_elems(m, v_dim)
    }
}
