//! What the engine remembers of each sequence: which positions it holds, and keys and values.
//!
//! Two halves that know nothing of each other but block numbers: [`Sequences`] is the table of
//! blocks, [`BlockCache`] the memory behind them. A block has [`BLOCK_POSITIONS`] positions of all
//! layers. Called by `exec` and the attention op.

mod cache;
mod sequences;

use serde::Deserialize;

use crate::error::{Error, Result};

pub use crate::isa::vector::BLOCK_POSITIONS;
pub use cache::{BlockCache, cache_bytes};
pub use sequences::Sequences;

/// Most blocks of a pool: 2³² positions, as many as a `u32` counts.
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
    /// Blocks that the pool has; `usize::MAX` for more than can be counted.
    fn n_blocks(&self) -> usize {
        let a_sequence = self.n_ctx.div_ceil(BLOCK_POSITIONS);
        a_sequence.saturating_mul(self.n_parallel)
    }

    /// The same, or an error if that is none or too many.
    fn checked_n_blocks(&self) -> Result<usize> {
        let n_blocks = self.n_blocks();
        if (1..=MAX_BLOCKS).contains(&n_blocks) {
            return Ok(n_blocks);
        }
        Err(Error::BadRequest {
            name: "context".into(),
            found: format!("{} sequences of {}", self.n_parallel, self.n_ctx),
            expected: format!("1 to {} positions in all", MAX_BLOCKS * BLOCK_POSITIONS),
        })
    }
}
