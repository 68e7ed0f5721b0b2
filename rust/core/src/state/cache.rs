//! The memory behind cache blocks: keys and values of every layer.
//!
//! Each node has an arena with the blocks of its pool, written and read by its own workers. Inside
//! a block each layer has, per kv head, its keys transposed (`[k_dim][64]`) and its values
//! (`[64][v_dim]`), so that both halves of attention run along contiguous memory. Knows no
//! sequences: which block belongs to whom is the table's business.
#![expect(
    unsafe_code,
    reason = "hands out disjoint parts of arenas to several workers"
)]

use super::{BLOCK_POSITIONS, CacheId, CacheSpec, CacheType, StateLimits};
use crate::batch::{Batch, BlockId, Run};
use crate::error::Result;
use crate::isa::vector::{CacheMut, CacheRef};
use crate::load::Memory;
use crate::memory::{NodeArenas, first_touch, round_up};
use crate::workers::{Control, Team, Workers};

/// Alignment of each layer's part of a block, in bytes: a cache line.
const PART_ALIGN: usize = 64;

/// Where one layer's keys and values lie inside a block.
#[derive(Debug, Clone, Copy)]
struct Layer {
    spec: CacheSpec,
    k_offset: usize,
    v_offset: usize,
}

/// The keys and values of all blocks.
#[derive(Debug)]
pub struct BlockCache {
    arenas: NodeArenas,
    layers: Vec<Layer>,
    k_type: CacheType,
    v_type: CacheType,
    block_bytes: usize,
}

/// Bytes of one block over all layers, and each layer's place in it; `usize::MAX` bytes when it
/// is larger than any memory.
fn block_layout(specs: &[CacheSpec], limits: &StateLimits) -> (usize, Vec<Layer>) {
    let mut bytes = 0;
    let layers = specs.iter().map(|&spec| {
        let part = |dim: u32, kind: CacheType| {
            let n_elems = (spec.n_head_kv as usize).saturating_mul(dim as usize);
            round_up(
                n_elems.saturating_mul(BLOCK_POSITIONS * kind.bytes()),
                PART_ALIGN,
            )
        };
        let k_offset = bytes;
        let v_offset = part(spec.k_dim, limits.k_type).saturating_add(k_offset);
        bytes = part(spec.v_dim, limits.v_type).saturating_add(v_offset);
        Layer {
            spec,
            k_offset,
            v_offset,
        }
    });
    let layers = layers.collect();
    (bytes, layers)
}

/// Bytes that a cache for `limits` takes on each node, without making one; `usize::MAX` for more
/// than memory has.
///
/// # Panics
/// If there is no node.
#[must_use]
pub fn cache_bytes(specs: &[CacheSpec], limits: &StateLimits, n_nodes: usize) -> Vec<usize> {
    assert!(n_nodes > 0, "no node");
    let (block_bytes, _) = block_layout(specs, limits);
    let pools = limits.pool_blocks(n_nodes).into_iter();
    pools
        .map(|n_blocks| n_blocks.saturating_mul(block_bytes))
        .collect()
}

impl BlockCache {
    /// Gives each node the memory that `specs` and `limits` need there, touched by its workers.
    ///
    /// # Args
    /// `memory`: that of the weights: one kernel node for each of the workers' nodes. `poll` is
    /// called every now and then and may stop the first touch.
    ///
    /// # Errors
    /// [`Error::BadRequest`](crate::error::Error::BadRequest) for limits out of range;
    /// [`Error::Interrupted`](crate::error::Error::Interrupted); what arenas can meet with.
    ///
    /// # Panics
    /// If there are fewer kernel nodes than nodes of workers.
    pub fn new(
        specs: &[CacheSpec],
        limits: &StateLimits,
        memory: &Memory<'_>,
        workers: &Workers,
        poll: &mut dyn FnMut() -> Control,
    ) -> Result<Self> {
        limits.check()?;
        let (block_bytes, layers) = block_layout(specs, limits);
        let node_bytes = cache_bytes(specs, limits, workers.n_nodes());
        let kernel_nodes = &memory.kernel_nodes[..workers.n_nodes()];
        let mut arenas = NodeArenas::reserve("the cache", &node_bytes, kernel_nodes)?;
        arenas.commit(memory.pages, memory.sysfs_root)?;
        first_touch(&mut arenas, workers, &mut |_| poll())?;
        Ok(Self {
            arenas,
            layers,
            k_type: limits.k_type,
            v_type: limits.v_type,
            block_bytes,
        })
    }

    /// The memory that holds them.
    #[must_use]
    pub fn arenas(&self) -> &NodeArenas {
        &self.arenas
    }

    /// Nodes that blocks are dealt to.
    pub(crate) fn n_nodes(&self) -> usize {
        self.arenas.n_nodes()
    }

    /// Heads that the cache's keys and values have.
    pub(crate) fn n_head_kv(&self, cache: CacheId) -> usize {
        self.layers[cache.0 as usize].spec.n_head_kv as usize
    }

    /// Keys of one kv head in one block, `[k_dim][64]`.
    pub(crate) fn keys(&self, cache: CacheId, block: BlockId, head: usize) -> CacheRef<'_> {
        let layer = self.layers[cache.0 as usize];
        self.part(layer.k_offset, layer.spec.k_dim, self.k_type, block, head)
    }

    /// Values of one kv head in one block, `[64][v_dim]`.
    pub(crate) fn values(&self, cache: CacheId, block: BlockId, head: usize) -> CacheRef<'_> {
        let layer = self.layers[cache.0 as usize];
        self.part(layer.v_offset, layer.spec.v_dim, self.v_type, block, head)
    }

    /// Gives each of this worker's share of (run, kv head) pairs of the pass to `store`, with the
    /// keys and values of that head in the run's block. Called by every worker in one phase.
    ///
    /// A run falls to the workers of its block's node; if that has none, to those of another.
    pub(crate) fn for_each_store(
        &self,
        cache: CacheId,
        batch: &Batch,
        team: &Team<'_>,
        mut store: impl FnMut(&Run, usize, CacheMut<'_>, CacheMut<'_>),
    ) {
        let layer = self.layers[cache.0 as usize];
        let n_heads = layer.spec.n_head_kv as usize;
        let homes = || team.homes(batch.runs_on.len());
        let n_own: usize = homes().map(|home| batch.runs_on[home].len()).sum();
        let nth = |n| homes().flat_map(|home| &batch.runs_on[home]).nth(n);
        while let Some(item) = team.next_chunk(n_own * n_heads) {
            // There are `n_own`.
            let Some(&run) = nth(item / n_heads) else {
                break;
            };
            let (run, head) = (&batch.runs[run], item % n_heads);
            let (k_type, v_type) = (self.k_type, self.v_type);
            // SAFETY: a run is listed once, under the node of its block (`Batch::push_run`), and
            // each node's list falls to the workers of one node (`Team::homes`), among whom the team
            // hands out each item once a phase. No two runs of a batch have the same block (the
            // table makes one a block and sequence, and a block belongs to one sequence), and heads
            // of a block do not overlap (`block_layout`): no one else holds this part. Nothing
            // reads the cache in a phase that stores.
            let (k, v) = unsafe {
                (
                    self.part_mut(layer.k_offset, layer.spec.k_dim, k_type, run.block, head),
                    self.part_mut(layer.v_offset, layer.spec.v_dim, v_type, run.block, head),
                )
            };
            store(run, head, k, v);
        }
    }

    fn part_pointer(
        &self,
        offset: usize,
        dim: u32,
        kind: CacheType,
        block: BlockId,
        head: usize,
    ) -> (*mut u8, usize) {
        let n_elems = dim as usize * BLOCK_POSITIONS;
        let at = block.index as usize * self.block_bytes + offset + head * n_elems * kind.bytes();
        let arena = self.arenas.arena(block.node);
        assert!(
            at + n_elems * kind.bytes() <= arena.len_bytes(),
            "cache part outside its arena"
        );
        (arena.base_ptr().as_ptr().wrapping_add(at), n_elems)
    }

    fn part(
        &self,
        offset: usize,
        dim: u32,
        kind: CacheType,
        block: BlockId,
        head: usize,
    ) -> CacheRef<'_> {
        let (pointer, n_elems) = self.part_pointer(offset, dim, kind, block, head);
        // SAFETY: inside the arena (asserted), which `new` touched and which lives as long as self;
        // aligned because parts and heads are multiples of 64 elements; writers exist only inside
        // `for_each_store`, whose phase has no readers.
        unsafe {
            match kind {
                CacheType::F16 => {
                    CacheRef::F16(std::slice::from_raw_parts(pointer.cast(), n_elems))
                }
                CacheType::F32 => {
                    CacheRef::F32(std::slice::from_raw_parts(pointer.cast(), n_elems))
                }
            }
        }
    }

    /// # Safety
    /// No other reference to this part may exist while the result lives.
    unsafe fn part_mut(
        &self,
        offset: usize,
        dim: u32,
        kind: CacheType,
        block: BlockId,
        head: usize,
    ) -> CacheMut<'_> {
        let (pointer, n_elems) = self.part_pointer(offset, dim, kind, block, head);
        // SAFETY: inside the live, writable arena (asserted) and aligned as in `part`;
        // exclusive by this function's contract.
        unsafe {
            match kind {
                CacheType::F16 => {
                    CacheMut::F16(std::slice::from_raw_parts_mut(pointer.cast(), n_elems))
                }
                CacheType::F32 => {
                    CacheMut::F32(std::slice::from_raw_parts_mut(pointer.cast(), n_elems))
                }
            }
        }
    }
}
