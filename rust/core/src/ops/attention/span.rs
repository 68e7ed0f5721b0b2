//! Where partial results lie: a row for each chunk and token, the chunks of a node together.
//!
//! Pure arithmetic on the rows of a pass; who computes and merges is the op's business.

use std::ops::Range;

use crate::batch::Row;
use crate::state::{chunks_on, n_chunks};

/// Consecutive tokens of one sequence whose queries share their way through the cache, and their
/// rows of partial results.
#[derive(Debug)]
pub(super) struct Span {
    /// Rows of the pass.
    pub(super) tokens: Range<usize>,
    /// Chunks that the last of them sees.
    pub(super) n_chunks: usize,
    /// Nodes that chunks are dealt to.
    n_homes: usize,
    first_row: usize,
}

impl Span {
    /// Rows of partial results.
    pub(super) fn n_rows(&self) -> usize {
        self.n_chunks * self.tokens.len()
    }

    /// Those of one node's chunks: chunk by chunk, in each token by token.
    pub(super) fn rows_of(&self, home: usize) -> Range<usize> {
        let chunks = |node| chunks_on(node, self.n_chunks, self.n_homes);
        let n_before: usize = (0..home).map(chunks).sum();
        let start = self.first_row + n_before * self.tokens.len();
        start..start + chunks(home) * self.tokens.len()
    }

    /// That of one chunk and token.
    pub(super) fn row(&self, chunk: usize, token: usize) -> usize {
        let first = self.rows_of(chunk % self.n_homes).start;
        first + chunk / self.n_homes * self.tokens.len() + token - self.tokens.start
    }

    /// The chunk that a row of [`Span::rows_of`] a node is of.
    pub(super) fn chunk_at(&self, home: usize, row: usize) -> usize {
        home + (row - self.rows_of(home).start) / self.tokens.len() * self.n_homes
    }
}

/// The spans of a pass, of at most `most_tokens` each; their rows follow one another.
pub(super) fn spans(
    rows: &[Row],
    most_tokens: usize,
    n_homes: usize,
) -> impl Iterator<Item = Span> {
    let sequences = rows.chunk_by(|a, b| a.sequence == b.sequence);
    let parts = sequences.flat_map(move |rows| rows.chunks(most_tokens));
    let (mut token, mut first_row) = (0, 0);
    parts.map(move |rows| {
        let span = Span {
            tokens: token..token + rows.len(),
            n_chunks: n_chunks(rows[0].position + rows.len()),
            n_homes,
            first_row,
        };
        token = span.tokens.end;
        first_row += span.n_rows();
        span
    })
}

#[cfg(test)]
mod tests {
    use super::spans;
    use crate::batch::Row;

    #[test]
    fn every_chunk_and_token_has_a_row_of_its_own_beside_those_of_its_node() {
        let mut rows = Vec::new();
        for (sequence, positions) in [(0, 1020..1030), (4, 0..3), (2, 5000..5001)] {
            rows.extend(positions.map(|position| Row {
                sequence,
                position,
                token: 0,
            }));
        }
        for n_homes in 1..=7 {
            let mut taken = Vec::new();
            let mut n_tokens = 0;
            for span in spans(&rows, 4, n_homes) {
                n_tokens += span.tokens.len();
                let last = rows[span.tokens.end - 1].position;
                assert_eq!(span.n_chunks, last / 1024 + 1);
                for chunk in 0..span.n_chunks {
                    for token in span.tokens.clone() {
                        let (home, row) = (chunk % n_homes, span.row(chunk, token));
                        assert!(span.rows_of(home).contains(&row));
                        assert_eq!(span.chunk_at(home, row), chunk);
                        taken.push(row);
                    }
                }
            }
            assert_eq!(n_tokens, rows.len());
            taken.sort_unstable();
            assert!(taken.iter().copied().eq(0..taken.len()), "{taken:?}");
        }
    }
}
