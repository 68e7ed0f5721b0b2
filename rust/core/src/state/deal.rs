//! Which node keeps which positions of a sequence: runs of one attention chunk, dealt in turn.
//!
//! Pure arithmetic, the same for every sequence. The table takes blocks by it, the cache sizes its
//! memory by it, the attention op finds a node's chunks by it.

use super::BLOCK_POSITIONS;
use crate::workers::NodeIndex;

/// Absolute positions of one partial result of attention. Part of the results' definition:
/// another value gives other roundings.
const CHUNK_POSITIONS: usize = 1024;

/// Blocks of one chunk.
pub(crate) const CHUNK_BLOCKS: usize = CHUNK_POSITIONS / BLOCK_POSITIONS;

/// Chunks that the first `n_positions` of a sequence lie in.
pub(crate) fn n_chunks(n_positions: usize) -> usize {
    n_positions.div_ceil(CHUNK_POSITIONS)
}

/// The node that the `block`-th block of a sequence lies on.
pub(super) fn home_of_block(block: usize, n_nodes: usize) -> NodeIndex {
    NodeIndex(block / CHUNK_BLOCKS % n_nodes)
}

/// Chunks that a node has of the first `n_chunks` of a sequence: the `node`-th and every
/// `n_nodes`-th after it.
pub(crate) fn chunks_on(node: usize, n_chunks: usize, n_nodes: usize) -> usize {
    n_chunks.saturating_sub(node).div_ceil(n_nodes)
}

/// Blocks that a node has of the first `n_blocks` of a sequence.
pub(super) fn blocks_on(node: usize, n_blocks: usize, n_nodes: usize) -> usize {
    let (n_whole, rest) = (n_blocks / CHUNK_BLOCKS, n_blocks % CHUNK_BLOCKS);
    let last = if n_whole % n_nodes == node { rest } else { 0 };
    chunks_on(node, n_whole, n_nodes) * CHUNK_BLOCKS + last
}

#[cfg(test)]
mod tests {
    use super::{blocks_on, chunks_on, home_of_block, n_chunks};

    #[test]
    fn counts_are_those_of_dealing_one_by_one() {
        for n_nodes in 1..=5 {
            let mut dealt = vec![0; n_nodes];
            for n_blocks in 0..200 {
                for (node, &count) in dealt.iter().enumerate() {
                    assert_eq!(blocks_on(node, n_blocks, n_nodes), count, "{n_blocks}");
                    if n_blocks % 16 == 0 {
                        assert_eq!(chunks_on(node, n_blocks / 16, n_nodes) * 16, count);
                    }
                }
                dealt[home_of_block(n_blocks, n_nodes).0] += 1;
            }
        }
        assert_eq!([0, 1, 1024, 1025].map(n_chunks), [0, 1, 1, 2]);
    }
}
