//! What the engine remembers of each sequence: which positions it holds, and keys and values.
//!
//! Two halves that know nothing of each other but block numbers: [`Sequences`] is the table of
//! blocks, [`BlockCache`] the memory behind them. A block has [`BLOCK_POSITIONS`] positions of all
//! layers; blocks are dealt to nodes (`deal`). Called by `exec` and the attention op.

mod cache;
mod deal;
mod sequences;

use serde::Deserialize;

use crate::error::{Error, Result};

pub use crate::isa::vector::BLOCK_POSITIONS;
pub use cache::{BlockCache, cache_bytes};
pub(crate) use deal::{CHUNK_BLOCKS, chunks_on, n_chunks};
pub use sequences::Sequences;

/// Most blocks of all pools: 2³² positions, as many as a `u32` counts.
const MAX_BLOCKS: usize = (1 << 32) / BLOCK_POSITIONS;

/// One attention layer's cache, by index in the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(transparent)]
pub struct CacheId(pub u32);

/// Shape of one attention layer's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheSpec {
    /// Heads that keys and values have.
    pub n_head_kv: u32,
    /// Length of a key.
    pub k_dim: u32,
    /// Length of a value.
    pub v_dim: u32,
}

/// Element type of cached keys or values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheType {
    /// 16-bit float, rounded to nearest even.
    F16,
    /// 32-bit float, nothing rounded.
    F32,
}

impl CacheType {
    /// The type that `-ctk` and `-ctv` call `name`.
    pub fn by_name(name: &str) -> Result<Self> {
        match name {
            "f16" => Ok(Self::F16),
            "f32" => Ok(Self::F32),
            _ => Err(Error::Unsupported {
                kind: "cache type",
                name: name.into(),
                known: "f16, f32".into(),
            }),
        }
    }

    fn bytes(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
        }
    }
}

/// How much is to be remembered.
#[derive(Debug, Clone, Copy)]
pub struct StateLimits {
    /// Longest sequence, in positions.
    pub n_ctx: usize,
    /// Sequences of that length that fit at once.
    pub n_parallel: usize,
    /// Element type of keys.
    pub k_type: CacheType,
    /// Element type of values.
    pub v_type: CacheType,
}

impl StateLimits {
    /// Blocks that each node's pool has: as many as the longest sequence has there, times
    /// sequences; `usize::MAX` for more than can be counted.
    fn pool_blocks(&self, n_nodes: usize) -> Vec<usize> {
        let a_sequence = self.n_ctx.div_ceil(BLOCK_POSITIONS);
        let on = |node| deal::blocks_on(node, a_sequence, n_nodes);
        let pools = (0..n_nodes).map(|node| on(node).saturating_mul(self.n_parallel));
        pools.collect()
    }

    /// Refuses limits for no block at all or for too many.
    fn check(&self) -> Result<()> {
        let a_sequence = self.n_ctx.div_ceil(BLOCK_POSITIONS);
        let n_blocks = a_sequence.saturating_mul(self.n_parallel);
        if (1..=MAX_BLOCKS).contains(&n_blocks) {
            return Ok(());
        }
        Err(Error::BadRequest {
            name: "context".into(),
            found: format!("{} sequences of {}", self.n_parallel, self.n_ctx),
            expected: format!("1 to {} positions in all", MAX_BLOCKS * BLOCK_POSITIONS),
        })
    }
}
