//! What the engine remembers of each sequence: the block cache of keys and values.
//!
//! The cache is a pool of blocks of [`BLOCK_POSITIONS`] positions; a block holds all layers, and a
//! sequence is a table of blocks. Inside a block each layer has, per kv head, its keys transposed
//! (`[k_dim][64]`) and its values (`[64][v_dim]`), so that both halves of attention run along
//! contiguous memory. Knows neither ops nor weights; `exec` asks it to admit a batch, attention
//! reads and stores through it.
#![expect(
    unsafe_code,
    reason = "hands out disjoint parts of one mapping to several workers"
)]

use std::collections::HashMap;

use serde::Deserialize;

use crate::batch::{Batch, BatchItem, BlockId, Row, Run};
use crate::error::{Error, Result};
use crate::isa::vector::{BLOCK_POSITIONS, CacheMut, CacheRef};
use crate::memory::{Mapping, round_up};
use crate::workers::Team;

/// Alignment of each layer's part of a block, in bytes: a cache line.
const PART_ALIGN: usize = 64;

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

/// How much a [`State`] is to hold.
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

/// Where one layer's keys and values lie inside a block.
#[derive(Debug, Clone, Copy)]
struct Layer {
    spec: CacheSpec,
    k_offset: usize,
    v_offset: usize,
}

#[derive(Debug, Default)]
struct Sequence {
    blocks: Vec<BlockId>,
    n_past: usize,
}

/// The block pool and the sequences that share it.
#[derive(Debug)]
pub struct State {
    memory: Mapping,
    layers: Vec<Layer>,
    limits: StateLimits,
    block_bytes: usize,
    free: Vec<BlockId>,
    /// Sequences by index; an index stays valid until its sequence is removed.
    sequences: Vec<Sequence>,
    /// From the caller's number to the index.
    index: HashMap<u32, usize>,
    vacant: Vec<usize>,
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

/// Bytes that a cache for `limits` takes, without making one; `usize::MAX` for more than that.
#[must_use]
pub fn cache_bytes(specs: &[CacheSpec], limits: &StateLimits) -> usize {
    n_blocks(limits).saturating_mul(block_layout(specs, limits).0)
}

fn n_blocks(limits: &StateLimits) -> usize {
    let a_sequence = limits.n_ctx.div_ceil(BLOCK_POSITIONS);
    a_sequence.saturating_mul(limits.n_parallel)
}

impl State {
    /// Reserves the pool that `specs` and `limits` need.
    ///
    /// # Errors
    /// [`Error::BadRequest`] for a context of nothing or of more than 2³² positions in all;
    /// [`Error::OutOfMemory`].
    pub fn new(specs: &[CacheSpec], limits: StateLimits) -> Result<Self> {
        let n_blocks = n_blocks(&limits);
        if !(1..=MAX_BLOCKS).contains(&n_blocks) {
            return Err(Error::BadRequest {
                name: "context".into(),
                found: format!("{} sequences of {}", limits.n_parallel, limits.n_ctx),
                expected: format!("1 to {} positions in all", MAX_BLOCKS * BLOCK_POSITIONS),
            });
        }
        let (block_bytes, layers) = block_layout(specs, &limits);
        let memory = Mapping::new("the cache", cache_bytes(specs, &limits).max(1))?;
        let free = (0..n_blocks as u32).rev().map(BlockId).collect();
        Ok(Self {
            memory,
            layers,
            limits,
            block_bytes,
            free,
            sequences: Vec::new(),
            index: HashMap::new(),
            vacant: Vec::new(),
        })
    }

    /// Positions that the sequence holds; 0 for an unknown one.
    #[must_use]
    pub fn n_past(&self, sequence: u32) -> usize {
        self.index
            .get(&sequence)
            .map_or(0, |&i| self.sequences[i].n_past)
    }

    /// Heads that the cache's keys and values have.
    pub(crate) fn n_head_kv(&self, cache: CacheId) -> usize {
        self.layers[cache.0 as usize].spec.n_head_kv as usize
    }

    /// Forgets the sequence and frees its blocks; an unknown one is no error.
    pub fn remove(&mut self, sequence: u32) {
        if let Some(i) = self.index.remove(&sequence) {
            self.free.append(&mut self.sequences[i].blocks);
            self.sequences[i].n_past = 0;
            self.vacant.push(i);
        }
    }

    /// Admits a pass: orders its items into `batch`, takes the blocks it needs, or refuses it
    /// whole and leaves `batch` and every sequence as they were.
    ///
    /// In each sequence positions must be consecutive and start no later than its end; what it
    /// held from there on is replaced.
    ///
    /// # Errors
    /// [`Error::BadRequest`] for a position out of order; [`Error::ContextFull`].
    pub fn admit(&mut self, items: &[BatchItem], batch: &mut Batch) -> Result<()> {
        let mut order: Vec<usize> = (0..items.len()).collect();
        order.sort_by_key(|&i| (items[i].sequence, items[i].position));
        let sorted: Vec<BatchItem> = order.iter().map(|&i| items[i]).collect();
        let groups = || sorted.chunk_by(|a, b| a.sequence == b.sequence);
        let (mut wanted_blocks, mut free_blocks) = (0, self.free.len());
        for group in groups() {
            let (needed, held) = self.check_group(group)?;
            wanted_blocks += needed.saturating_sub(held);
            free_blocks += held.saturating_sub(needed);
        }
        if wanted_blocks > free_blocks {
            return Err(Error::ContextFull {
                wanted: wanted_blocks * BLOCK_POSITIONS,
                room: free_blocks * BLOCK_POSITIONS,
            });
        }
        batch.clear();
        // All give back what they no longer need before anyone takes.
        for group in groups() {
            if let Some(&i) = self.index.get(&group[0].sequence) {
                self.cut(i, group[0].position as usize + group.len());
            }
        }
        for group in groups() {
            self.append_group(group, batch);
        }
        let mut row_of = vec![0; items.len()];
        for (row, &i) in order.iter().enumerate() {
            row_of[i] = row;
        }
        let wanted = (0..items.len()).filter(|&i| items[i].wants_logits);
        batch.outputs.extend(wanted.map(|i| row_of[i]));
        Ok(())
    }

    /// Takes back a pass that did not finish: its sequences end where it began, and blocks past
    /// that end are free again.
    ///
    /// `batch` is the pass admitted last, and no sequence was removed since.
    pub fn retract(&mut self, batch: &Batch) {
        for rows in batch.rows.chunk_by(|a, b| a.sequence == b.sequence) {
            self.cut(rows[0].sequence, rows[0].position);
        }
        // Those that the pass had started are forgotten.
        let (sequences, vacant) = (&self.sequences, &mut self.vacant);
        self.index.retain(|_, &mut i| {
            let keep = sequences[i].n_past > 0;
            vacant.extend((!keep).then_some(i));
            keep
        });
    }

    /// Ends a sequence at `end` if it is longer, and frees blocks past that.
    fn cut(&mut self, sequence: usize, end: usize) {
        let entry = &mut self.sequences[sequence];
        entry.n_past = entry.n_past.min(end);
        let n_blocks = end.div_ceil(BLOCK_POSITIONS).min(entry.blocks.len());
        self.free.extend(entry.blocks.drain(n_blocks..));
    }

    /// Checks one sequence's part of a pass; gives the blocks that it needs in the end and those
    /// that it has.
    fn check_group(&self, group: &[BatchItem]) -> Result<(usize, usize)> {
        let (sequence, first) = (group[0].sequence, group[0].position as usize);
        let n_past = self.n_past(sequence);
        if first > n_past {
            let expected = format!("at most {n_past}, the sequence's end");
            return Err(bad_position(sequence, first, expected));
        }
        for (step, item) in group.iter().enumerate() {
            if item.position as usize != first + step {
                let expected = format!("{}, the next position", first + step);
                return Err(bad_position(sequence, item.position as usize, expected));
            }
        }
        let end = first + group.len();
        if end > self.limits.n_ctx {
            return Err(Error::ContextFull {
                wanted: group.len(),
                room: self.limits.n_ctx - first,
            });
        }
        let held = self.index.get(&sequence);
        let held = held.map_or(0, |&i| self.sequences[i].blocks.len());
        Ok((end.div_ceil(BLOCK_POSITIONS), held))
    }

    fn append_group(&mut self, group: &[BatchItem], batch: &mut Batch) {
        let sequence = self.index_of(group[0].sequence);
        let first = group[0].position as usize;
        let end = first + group.len();
        let entry = &mut self.sequences[sequence];
        let missing = end.div_ceil(BLOCK_POSITIONS) - entry.blocks.len();
        // `admit` counted the free blocks before the first group was appended.
        let taken = self.free.drain(self.free.len() - missing..);
        entry.blocks.extend(taken.rev());
        entry.n_past = end;
        let mut row = batch.rows.len();
        batch.rows.extend(group.iter().map(|item| Row {
            sequence,
            position: item.position as usize,
            token: item.token as usize,
        }));
        let mut position = first;
        while position < end {
            let n_rows = (BLOCK_POSITIONS - position % BLOCK_POSITIONS).min(end - position);
            batch.runs.push(Run {
                block: entry.blocks[position / BLOCK_POSITIONS],
                first_row: row,
                n_rows,
                first_slot: position % BLOCK_POSITIONS,
            });
            row += n_rows;
            position += n_rows;
        }
    }

    fn index_of(&mut self, sequence: u32) -> usize {
        *self.index.entry(sequence).or_insert_with(|| {
            self.vacant.pop().unwrap_or_else(|| {
                self.sequences.push(Sequence::default());
                self.sequences.len() - 1
            })
        })
    }

    /// The blocks of the sequence with this index (of [`Row::sequence`]), in order of position.
    #[must_use]
    pub fn blocks(&self, sequence: usize) -> &[BlockId] {
        &self.sequences[sequence].blocks
    }

    /// Keys of one kv head in one block, `[k_dim][64]`.
    pub(crate) fn keys(&self, cache: CacheId, block: BlockId, head: usize) -> CacheRef<'_> {
        let layer = self.layers[cache.0 as usize];
        self.part(
            layer.k_offset,
            layer.spec.k_dim,
            self.limits.k_type,
            block,
            head,
        )
    }

    /// Values of one kv head in one block, `[64][v_dim]`.
    pub(crate) fn values(&self, cache: CacheId, block: BlockId, head: usize) -> CacheRef<'_> {
        let layer = self.layers[cache.0 as usize];
        self.part(
            layer.v_offset,
            layer.spec.v_dim,
            self.limits.v_type,
            block,
            head,
        )
    }

    /// Gives each of this worker's share of (run, kv head) pairs of the pass to `store`, with the
    /// keys and values of that head in the run's block. Called by every worker in one phase.
    pub(crate) fn for_each_store(
        &self,
        cache: CacheId,
        batch: &Batch,
        team: &Team<'_>,
        mut store: impl FnMut(&Run, usize, CacheMut<'_>, CacheMut<'_>),
    ) {
        let layer = self.layers[cache.0 as usize];
        let n_heads = layer.spec.n_head_kv as usize;
        while let Some(item) = team.next_item(batch.runs.len() * n_heads) {
            let (run, head) = (&batch.runs[item / n_heads], item % n_heads);
            let (k_type, v_type) = (self.limits.k_type, self.limits.v_type);
            // SAFETY: the team hands out each item once a phase, no two runs of a batch have the
            // same block (`append_group` makes one a block and sequence, and a block belongs to
            // one sequence), and heads of a block do not overlap (`block_layout`): no one else
            // holds this part. Nothing reads the cache in a phase that stores.
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
        let at = block.0 as usize * self.block_bytes + offset + head * n_elems * kind.bytes();
        assert!(
            at + n_elems * kind.bytes() <= self.memory.len_bytes(),
            "cache part outside its mapping"
        );
        (self.memory.base_ptr().as_ptr().wrapping_add(at), n_elems)
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
        // SAFETY: inside the live mapping (asserted), aligned because parts and heads are
        // multiples of 64 elements; writers exist only inside `for_each_store`, whose phase has
        // no readers.
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
        // SAFETY: inside the live, writable mapping (asserted) and aligned as in `part`;
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

fn bad_position(sequence: u32, found: usize, expected: String) -> Error {
    Error::BadRequest {
        name: format!("position in sequence {sequence}"),
        found: found.to_string(),
        expected,
    }
}
