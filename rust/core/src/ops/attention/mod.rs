//! `attention`: grouped-query attention over the block cache.
//!
//! Numbers do not depend on how a prompt is cut, on who shares the batch, on threads or nodes:
//! scores, maxima and sums of one query row go over positions in ascending order, in partial
//! results of 1,024 absolute positions (a chunk) each, merged in ascending order.
//!
//! With many query rows a worker takes a tile of them over all chunks. With few (`splits`), each
//! node's workers attend over the chunks in their node's memory and leave partial results, which
//! the next phase merges: both ways give the same bits.

mod queries;
mod span;

use std::ops::Range;

use super::operand::{Cache, Count, Positive, Read, Write, operands};
use super::shapes::equal;
use super::{Op, Pass, Phase, Shapes};
use crate::arena::{Area, Deal, Grid, Rows, Tile};
use crate::batch::Run;
use crate::isa::vector::{CacheMut, attend_scratch_elems};
use crate::state::n_chunks;
use queries::{Queries, partial, partial_ref};
use span::{Span, spans};

/// Most query rows of a tile: they share each block's way from memory and its conversion to f32.
const MAX_QUERY_ROWS: usize = 64;

/// Most tokens of a pass whose chunks are attended over where they lie: with more, tiles over all
/// chunks keep every worker busy.
const MAX_SPLIT_TOKENS: usize = 32;

/// Most bytes of partial results. A pass that needs more goes over all chunks tile by tile.
const MAX_PARTIAL_BYTES: usize = 32 << 20;

/// Grid of the op's result.
const OUT: usize = 0;

/// First grid of partial results: one for each part (`Attention::part`).
const FIRST_PART: usize = 1;

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

    /// Query heads of a tile, and most tokens.
    fn tile_size(&self, pass: &Pass<'_>) -> (usize, usize) {
        let n_heads = Self::heads_a_tile(self.group(pass));
        (n_heads, MAX_QUERY_ROWS / n_heads)
    }

    /// Values of a row of partial results: a tile's heads together, their maxima and sums first.
    fn partial_width(&self) -> usize {
        let n_head = self.n_head.get() as usize;
        n_head.saturating_mul(self.v_dim.get() as usize + 2)
    }

    fn spans<'a>(&self, pass: &Pass<'a>) -> impl Iterator<Item = Span> + use<'a> {
        let (_, n_tokens) = self.tile_size(pass);
        spans(&pass.batch.rows, n_tokens, pass.cache.n_nodes())
    }

    /// Whether this pass leaves a partial result for each chunk: it has few tokens, more than one
    /// chunk or node, and room for the results.
    fn splits(&self, pass: &Pass<'_>) -> bool {
        if pass.batch.rows.len() > MAX_SPLIT_TOKENS {
            return false;
        }
        let most_chunks = self.spans(pass).map(|span| span.n_chunks).max();
        let n_rows: usize = self.spans(pass).map(|span| span.n_rows()).sum();
        (pass.cache.n_nodes() > 1 || most_chunks > Some(1))
            && n_rows.saturating_mul(self.partial_width()) <= pass.arena.partial_elems()
    }

    /// The `index`-th pair of a span and a node whose chunks fall to this worker's node.
    fn part(&self, index: usize, pass: &Pass<'_>) -> Option<(Span, usize)> {
        let homes = || pass.team.homes(pass.cache.n_nodes());
        let n_homes = homes().count();
        let span = self.spans(pass).nth(index / n_homes)?;
        Some((span, homes().nth(index % n_homes)?))
    }

    /// Computes the tile's rows of consecutive tokens of one sequence over all chunks.
    fn fill_tokens(
        &self,
        tokens: Range<usize>,
        tile: &mut Tile<'_>,
        pass: &Pass<'_>,
        scratch: &mut [f32],
    ) {
        let (_, v_dim) = self.dims();
        let heads = tile.cols().start / v_dim..tile.cols().end / v_dim;
        let n_heads = heads.len();
        let (mut queries, [mut chunk, mut total]) =
            Queries::new(self, tokens.clone(), heads, pass, scratch);
        total.clear();
        for index in 0..queries.n_chunks() {
            queries.attend(index, &mut chunk);
            pass.vector.merge_partial(chunk.as_ref(), &mut total);
        }
        for (i, token) in tokens.enumerate() {
            let rows = total.as_ref().rows(i * n_heads..(i + 1) * n_heads);
            pass.vector.finish(rows, tile.row_mut(token));
        }
    }

    /// Leaves the partial results of one chunk for the tokens of a span.
    fn fill_partial(
        &self,
        (span, home): &(Span, usize),
        tile: &mut Tile<'_>,
        pass: &Pass<'_>,
        scratch: &mut [f32],
    ) {
        let (_, v_dim) = self.dims();
        let heads = tile.cols().start / (v_dim + 2)..tile.cols().end / (v_dim + 2);
        let n_heads = heads.len();
        let (mut queries, [mut chunk, _]) =
            Queries::new(self, span.tokens.clone(), heads, pass, scratch);
        queries.attend(span.chunk_at(*home, tile.rows().start), &mut chunk);
        for (i, row) in tile.rows().enumerate() {
            let from = chunk.as_ref().rows(i * n_heads..(i + 1) * n_heads);
            let into = partial(tile.row_mut(row), n_heads);
            into.max.copy_from_slice(from.max);
            into.sum.copy_from_slice(from.sum);
            into.acc.copy_from_slice(from.acc);
        }
    }

    /// Merges the chunks of the tile's tokens and heads in ascending order, and finishes.
    fn merge(&self, tile: &mut Tile<'_>, pass: &Pass<'_>, scratch: &mut [f32]) {
        let (_, v_dim) = self.dims();
        let (cols, width) = (tile.cols(), self.partial_width());
        let n_heads = cols.len() / v_dim;
        let heads = cols.start / v_dim * (v_dim + 2)..cols.end / v_dim * (v_dim + 2);
        let mut total = partial(&mut scratch[..heads.len()], n_heads);
        for span in self.spans(pass) {
            let (first, end) = (tile.rows().start, tile.rows().end);
            for token in span.tokens.start.max(first)..span.tokens.end.min(end) {
                total.clear();
                for chunk in 0..span.n_chunks {
                    let row = pass.arena.partial_row(width, span.row(chunk, token));
                    let chunk = partial_ref(&row[heads.clone()], n_heads);
                    pass.vector.merge_partial(chunk, &mut total);
                }
                pass.vector.finish(total.as_ref(), tile.row_mut(token));
            }
        }
    }

    /// Computes a tile over all chunks, sequence by sequence.
    fn fill_whole(&self, tile: &mut Tile<'_>, pass: &Pass<'_>, scratch: &mut [f32]) {
        let mut first = tile.rows().start;
        let rows = &pass.batch.rows[tile.rows()];
        for rows in rows.chunk_by(|a, b| a.sequence == b.sequence) {
            self.fill_tokens(first..first + rows.len(), tile, pass, scratch);
            first += rows.len();
        }
    }
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

    fn phase(&self, index: usize, pass: &Pass<'_>) -> Option<Phase> {
        let out = Phase::Tiles(Deal::All, OUT..OUT + 1);
        match (index, index > 0 && self.splits(pass)) {
            (0, _) => Some(Phase::Store(self.cache.id())),
            (1, true) => {
                let n_homes = pass.team.homes(pass.cache.n_nodes()).count();
                let n_parts = self.spans(pass).count() * n_homes;
                Some(Phase::Tiles(Deal::Node, FIRST_PART..FIRST_PART + n_parts))
            }
            (1, false) | (2, true) => Some(out),
            _ => None,
        }
    }

    fn grid(&self, index: usize, pass: &Pass<'_>) -> Grid {
        let (n_heads, n_tokens) = self.tile_size(pass);
        let (_, v_dim) = self.dims();
        if index == OUT {
            let row_step = if self.splits(pass) { 1 } else { n_tokens };
            return pass.grid(self.out.id(), row_step, n_heads * v_dim);
        }
        let part = self.part(index - FIRST_PART, pass);
        let width = self.partial_width();
        Grid {
            area: Area::Partials { width },
            rows: part
                .as_ref()
                .map_or(0..0, |(span, home)| span.rows_of(*home)),
            cols: 0..width,
            row_step: part.map_or(1, |(span, _)| span.tokens.len()),
            col_step: n_heads * (v_dim + 2),
        }
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

    fn fill(&self, index: usize, tile: &mut Tile<'_>, pass: &Pass<'_>, scratch: &mut [f32]) {
        if index != OUT {
            // `phase` counted the parts.
            if let Some(part) = self.part(index - FIRST_PART, pass) {
                self.fill_partial(&part, tile, pass, scratch);
            }
        } else if self.splits(pass) {
            self.merge(tile, pass, scratch);
        } else {
            self.fill_whole(tile, pass, scratch);
        }
    }

    fn partial_elems(&self, max_rows: usize, n_ctx: usize) -> usize {
        let n_rows = max_rows
            .min(MAX_SPLIT_TOKENS)
            .saturating_mul(n_chunks(n_ctx));
        n_rows
            .saturating_mul(self.partial_width())
            .min(MAX_PARTIAL_BYTES / size_of::<f32>())
    }

    fn scratch_elems(&self, _shapes: &Shapes<'_>) -> usize {
        let (k_dim, v_dim) = self.dims();
        let m = MAX_QUERY_ROWS;
        m * k_dim + 2 * m * (v_dim + 2) + attend_scratch_elems(m, k_dim, v_dim)
    }
}
