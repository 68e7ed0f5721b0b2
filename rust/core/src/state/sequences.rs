//! The table of cache blocks: which sequence holds which positions in which blocks.
//!
//! Admits passes, orders them and takes them back. Each node has a pool of blocks, from which come
//! the chunks that are dealt to it (`deal`). Knows nothing of memory or of what is in a block.

use std::collections::HashMap;

use super::deal::{blocks_on, home_of_block};
use super::{BLOCK_POSITIONS, StateLimits};
use crate::batch::{Batch, BatchItem, BlockId, Row, Run};
use crate::error::{Error, Result};
use crate::workers::NodeIndex;

#[derive(Debug, Default)]
struct Sequence {
    blocks: Vec<BlockId>,
    n_past: usize,
}

/// Blocks that a sequence has before a pass and after it.
#[derive(Debug, Clone, Copy)]
struct Change {
    held: usize,
    needed: usize,
}

/// The sequences and the pools of blocks that they share.
#[derive(Debug)]
pub struct Sequences {
    n_ctx: usize,
    /// By node.
    free: Vec<Vec<BlockId>>,
    /// Sequences by index; an index stays valid until its sequence is removed.
    entries: Vec<Sequence>,
    /// From the caller's number to the index.
    index: HashMap<u32, usize>,
    vacant: Vec<usize>,
}

impl Sequences {
    /// No sequence yet, and all blocks free.
    ///
    /// The pools are such that `n_parallel` sequences of `n_ctx` positions always fit, whatever
    /// their order; more and shorter ones fit as long as each node's pool has what falls to it.
    ///
    /// # Errors
    /// [`Error::BadRequest`] for a context of nothing or of more than 2³² positions in all.
    ///
    /// # Panics
    /// If there is no node.
    pub fn new(limits: &StateLimits, n_nodes: usize) -> Result<Self> {
        assert!(n_nodes > 0, "no node");
        limits.check()?;
        let pools = limits.pool_blocks(n_nodes).into_iter().enumerate();
        let free = pools.map(|(node, n_blocks)| {
            let node = NodeIndex(node);
            let indices = (0..n_blocks as u32).rev();
            indices.map(|index| BlockId { node, index }).collect()
        });
        Ok(Self {
            n_ctx: limits.n_ctx,
            free: free.collect(),
            entries: Vec::new(),
            index: HashMap::new(),
            vacant: Vec::new(),
        })
    }

    /// Positions that the sequence holds; 0 for an unknown one.
    #[must_use]
    pub fn n_past(&self, sequence: u32) -> usize {
        self.index
            .get(&sequence)
            .map_or(0, |&i| self.entries[i].n_past)
    }

    /// Forgets the sequence and frees its blocks; an unknown one is no error.
    pub fn remove(&mut self, sequence: u32) {
        if let Some(i) = self.index.remove(&sequence) {
            self.cut(i, 0);
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
    /// [`Error::BadRequest`] for a position out of order; [`Error::ContextFull`] with the numbers of
    /// the sequence that would be too long, or of the first node whose pool is too small.
    pub fn admit(&mut self, items: &[BatchItem], batch: &mut Batch) -> Result<()> {
        let mut order: Vec<usize> = (0..items.len()).collect();
        order.sort_by_key(|&i| (items[i].sequence, items[i].position));
        let sorted: Vec<BatchItem> = order.iter().map(|&i| items[i]).collect();
        let groups = || sorted.chunk_by(|a, b| a.sequence == b.sequence);
        let changes: Result<Vec<Change>> = groups().map(|group| self.check_group(group)).collect();
        self.check_pools(&changes?)?;
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
        let (entries, vacant) = (&self.entries, &mut self.vacant);
        self.index.retain(|_, &mut i| {
            let keep = entries[i].n_past > 0;
            vacant.extend((!keep).then_some(i));
            keep
        });
    }

    /// Ends a sequence at `end` if it is longer, and frees blocks past that.
    fn cut(&mut self, sequence: usize, end: usize) {
        let entry = &mut self.entries[sequence];
        entry.n_past = entry.n_past.min(end);
        let n_blocks = end.div_ceil(BLOCK_POSITIONS).min(entry.blocks.len());
        for block in entry.blocks.drain(n_blocks..) {
            self.free[block.node.0].push(block);
        }
    }

    /// Checks that every node's pool has the blocks that sequences will take there.
    fn check_pools(&self, changes: &[Change]) -> Result<()> {
        let n_nodes = self.free.len();
        for (node, pool) in self.free.iter().enumerate() {
            let (mut wanted, mut free) = (0, pool.len());
            for change in changes {
                let held = blocks_on(node, change.held, n_nodes);
                let needed = blocks_on(node, change.needed, n_nodes);
                wanted += needed.saturating_sub(held);
                free += held.saturating_sub(needed);
            }
            if wanted > free {
                return Err(Error::ContextFull {
                    wanted: wanted * BLOCK_POSITIONS,
                    room: free * BLOCK_POSITIONS,
                });
            }
        }
        Ok(())
    }

    /// Checks one sequence's part of a pass.
    fn check_group(&self, group: &[BatchItem]) -> Result<Change> {
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
        if end > self.n_ctx {
            return Err(Error::ContextFull {
                wanted: group.len(),
                room: self.n_ctx - first,
            });
        }
        let held = self.index.get(&sequence);
        Ok(Change {
            held: held.map_or(0, |&i| self.entries[i].blocks.len()),
            needed: end.div_ceil(BLOCK_POSITIONS),
        })
    }

    fn append_group(&mut self, group: &[BatchItem], batch: &mut Batch) {
        let sequence = self.index_of(group[0].sequence);
        let first = group[0].position as usize;
        let end = first + group.len();
        let entry = &mut self.entries[sequence];
        for block in entry.blocks.len()..end.div_ceil(BLOCK_POSITIONS) {
            let home = home_of_block(block, self.free.len());
            // `admit` counted the free blocks before the first group was appended.
            entry.blocks.extend(self.free[home.0].pop());
        }
        debug_assert!(
            entry.blocks.len() * BLOCK_POSITIONS >= end,
            "too few blocks"
        );
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
            batch.push_run(Run {
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
                self.entries.push(Sequence::default());
                self.entries.len() - 1
            })
        })
    }

    /// The blocks of the sequence with this index (of [`Row::sequence`]), in order of position.
    #[must_use]
    pub fn blocks(&self, sequence: usize) -> &[BlockId] {
        &self.entries[sequence].blocks
    }
}

fn bad_position(sequence: u32, found: usize, expected: String) -> Error {
    Error::BadRequest {
        name: format!("position in sequence {sequence}"),
        found: found.to_string(),
        expected,
    }
}
