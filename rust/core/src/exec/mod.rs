//! The executor: one forward pass is one walk over the program by all workers.
//!
//! Every worker goes through the same ops and phases; inside a phase it claims work from the
//! team's counter, between phases all meet at a barrier. Knows no model and no text. The binding
//! calls it, one call a pass.

#[cfg(test)]
mod poison;

use std::sync::{Mutex, PoisonError};

use crate::arena::{Arena, ArenaSize, Rows, SlotId};
use crate::batch::{Batch, BatchItem};
use crate::error::{Error, FirstError, Result};
use crate::isa::Isa;
use crate::load::Memory;
use crate::mapped::{MappedReads, PanelScratch};
use crate::ops::operand::Use;
use crate::ops::{AnyOp, Op, Pass, Phase};
use crate::program::{Program, Step};
use crate::state::{BlockCache, Sequences, StateLimits};
use crate::weights::Weights;
use crate::workers::{Control, Team, Workers};

/// Most tokens that a pass can be made for: far more than are of use.
const MAX_ROWS: usize = 1 << 20;

/// Sizes and thread counts of an [`Executor`].
#[derive(Debug, Clone, Copy)]
pub struct ExecOptions {
    /// Most tokens a pass.
    pub max_rows: usize,
    /// Workers in a pass of one token.
    pub n_threads: usize,
    /// Workers in a pass of more.
    pub n_threads_batch: usize,
    /// Size and types of the cache.
    pub state: StateLimits,
}

/// A model ready to run.
#[derive(Debug)]
pub struct Executor {
    program: Program,
    weights: Weights,
    sequences: Sequences,
    cache: BlockCache,
    arena: Arena,
    workers: Workers,
    isa: &'static Isa,
    batch: Batch,
    /// Rows kind of each slot.
    rows: Vec<Rows>,
    /// One buffer a worker, locked by its owner for a whole pass.
    scratch: Vec<Mutex<Vec<f32>>>,
    /// The same for weights that stay in their file.
    panels: Vec<Mutex<PanelScratch>>,
    options: ExecOptions,
}

impl Executor {
    /// Puts the parts together and gets memory for activations and cache.
    ///
    /// # Args
    /// `memory`: that of the weights; the cache gets the like. `poll` may stop its first touch.
    ///
    /// # Errors
    /// [`Error::BadRequest`] for options out of range, weights of another program or of other
    /// nodes; [`Error::Interrupted`]; [`Error::OutOfMemory`] and what else arenas can meet with.
    pub fn new(
        program: Program,
        weights: Weights,
        workers: Workers,
        isa: &'static Isa,
        options: ExecOptions,
        memory: &Memory<'_>,
        poll: &mut dyn FnMut() -> Control,
    ) -> Result<Self> {
        check_parts(&program, &weights, &workers, &options)?;
        check_nodes(&weights, memory, &workers)?;
        let size = ArenaSize {
            max_rows: options.max_rows,
            n_nodes: workers.n_nodes(),
            partial_elems: program.partial_elems(options.max_rows, options.state.n_ctx),
        };
        let shapes = program.shapes();
        let scratch_elems = program
            .steps
            .iter()
            .map(|step| step.op.as_op().scratch_elems(&shapes))
            .max();
        let scratch_elems = scratch_elems.unwrap_or(0);
        Ok(Self {
            sequences: Sequences::new(&options.state, workers.n_nodes())?,
            cache: BlockCache::new(&program.caches, &options.state, memory, &workers, poll)?,
            arena: Arena::new(&program.slots, size)?,
            rows: program.slots.iter().map(|slot| slot.rows).collect(),
            scratch: (0..workers.n_threads())
                .map(|_| Mutex::new(vec![0.0; scratch_elems]))
                .collect(),
            panels: (0..workers.n_threads())
                .map(|_| Mutex::new(PanelScratch::new(weights.layout().panel_scratch_bytes())))
                .collect(),
            batch: Batch::with_capacity(options.max_rows),
            program,
            weights,
            workers,
            isa,
            options,
        })
    }

    /// The sequences.
    #[must_use]
    pub fn sequences(&self) -> &Sequences {
        &self.sequences
    }

    /// The same, to remove one.
    pub fn sequences_mut(&mut self) -> &mut Sequences {
        &mut self.sequences
    }

    /// The weights.
    #[must_use]
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Keys and values.
    #[must_use]
    pub fn cache(&self) -> &BlockCache {
        &self.cache
    }

    /// The program.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Logits of the last pass, `f32[n_outputs, n_vocab]`, in the order in which its items asked.
    #[must_use]
    pub fn logits(&self) -> &[f32] {
        self.arena
            .rows(self.program.logits, 0..self.batch.outputs.len())
    }

    /// Computes one pass. `poll` is called every now and then while it runs and may stop it.
    ///
    /// # Errors
    /// [`Error::BadRequest`] or [`Error::ContextFull`] before anything is computed;
    /// [`Error::Interrupted`]; [`Error::NonFiniteWeight`] for a tensor that stays in its file, whose
    /// scales are checked whenever it is read; [`Error::NonFiniteActivation`] names the first op whose output is
    /// not finite. After an error every sequence ends where the pass began.
    pub fn forward(
        &mut self,
        items: &[BatchItem],
        poll: &mut dyn FnMut() -> Control,
    ) -> Result<()> {
        self.check(items)?;
        self.sequences.admit(items, &mut self.batch)?;
        let result = self.walk(poll, None).and_then(|()| self.check_finite(poll));
        if result.is_err() {
            self.sequences.retract(&self.batch);
            self.batch.clear();
        }
        result
    }

    fn check(&self, items: &[BatchItem]) -> Result<()> {
        in_range("tokens in a pass", items.len(), self.options.max_rows)?;
        let n_embeddings = self.program.n_embeddings();
        match items
            .iter()
            .find(|item| item.token as usize >= n_embeddings)
        {
            Some(item) => Err(bad(
                "token",
                item.token,
                format!("an id below {n_embeddings}"),
            )),
            None => Ok(()),
        }
    }

    /// All workers walk the program. With `trace`, the first op that wrote something not finite
    /// is named there.
    fn walk(
        &self,
        poll: &mut dyn FnMut() -> Control,
        trace: Option<&Mutex<Option<String>>>,
    ) -> Result<()> {
        let n_workers = match self.batch.rows.len() {
            1 => self.options.n_threads,
            _ => self.options.n_threads_batch,
        };
        let failure = FirstError::default();
        let job = |team: &Team<'_>| {
            let panel = &self.panels[team.worker().0];
            let mut panel = panel.lock().unwrap_or_else(PoisonError::into_inner);
            let reads = MappedReads::new(&mut panel, &failure);
            let pass = Pass {
                weights: self.weights.on(team.node()),
                vector: self.isa.vector,
                batch: &self.batch,
                sequences: &self.sequences,
                cache: &self.cache,
                team,
                arena: &self.arena,
                rows: &self.rows,
                reads: &reads,
            };
            let buffer = &self.scratch[team.worker().0];
            let mut scratch = buffer.lock().unwrap_or_else(PoisonError::into_inner);
            for step in &self.program.steps {
                if !run_op(step.op.as_op(), &pass, &mut scratch) {
                    return;
                }
                if let Some(found) = trace {
                    if team.worker().0 == 0 {
                        note_first_bad(step, &pass, found);
                    }
                    if !team.barrier() {
                        return;
                    }
                }
            }
        };
        let mut poll = || match poll() {
            Control::Continue if !failure.is_set() => Control::Continue,
            _ => Control::Cancel,
        };
        let ran = self.workers.run(n_workers, &job, &mut poll);
        failure.into_result()?;
        ran
    }

    /// Looks at the logits; when they are not finite, walks again and names where that began.
    fn check_finite(&self, poll: &mut dyn FnMut() -> Control) -> Result<()> {
        if self.isa.vector.all_finite(self.logits()) {
            return Ok(());
        }
        let first = Mutex::new(None);
        self.walk(poll, Some(&first))?;
        let place = first.into_inner().unwrap_or_else(PoisonError::into_inner);
        Err(Error::NonFiniteActivation {
            place: place.unwrap_or_else(|| "the logits".into()),
        })
    }
}

/// Checks what ops and workers will take for granted.
fn check_parts(
    program: &Program,
    weights: &Weights,
    workers: &Workers,
    options: &ExecOptions,
) -> Result<()> {
    in_range("most tokens a pass", options.max_rows, MAX_ROWS)?;
    in_range("threads", options.n_threads, workers.n_threads())?;
    in_range(
        "threads_batch",
        options.n_threads_batch,
        workers.n_threads(),
    )?;
    if !weights.are_of(&program.tensors) {
        let found = "those of other tensors";
        return Err(bad("weights", found, "those of the program".into()));
    }
    Ok(())
}

/// Checks that the workers' nodes have weights and memory; there may be nodes without workers.
fn check_nodes(weights: &Weights, memory: &Memory<'_>, workers: &Workers) -> Result<()> {
    let (n_nodes, found) = (weights.arenas().n_nodes(), memory.kernel_nodes.len());
    if found != n_nodes {
        return Err(bad("nodes of the memory", found, n_nodes.to_string()));
    }
    in_range("nodes of the workers", workers.n_nodes(), n_nodes)
}

fn in_range(name: &str, found: usize, most: usize) -> Result<()> {
    if (1..=most).contains(&found) {
        return Ok(());
    }
    Err(bad(name, found, format!("1 to {most}")))
}

fn bad(name: &str, found: impl std::fmt::Display, expected: String) -> Error {
    Error::BadRequest {
        name: name.into(),
        found: found.to_string(),
        expected,
    }
}

/// Runs one op's phases; false when the pass was stopped at a barrier.
fn run_op(op: &dyn Op, pass: &Pass<'_>, scratch: &mut [f32]) -> bool {
    let team = pass.team;
    let mut index = 0;
    while let Some(phase) = op.phase(index, pass) {
        match phase {
            Phase::Quantize(slot) => {
                let n_rows = pass.n_rows(slot.id());
                pass.arena.quantize(team, slot.id(), n_rows, pass.vector);
            }
            Phase::Store(cache) => {
                pass.cache
                    .for_each_store(cache, pass.batch, team, |run, head, k, v| {
                        op.store(run, head, k, v, pass);
                    });
            }
            Phase::Tiles(deal, grids) => pass.arena.for_each_tile(
                team,
                deal,
                grids,
                |i| op.grid(i, pass),
                |i, tile| op.fill(i, tile, pass, scratch),
            ),
            Phase::Rows(slot) => pass.arena.for_each_row(
                team,
                slot,
                pass.n_rows(slot),
                |row| op.owner(row, pass),
                |tile| op.fill(0, tile, pass, scratch),
            ),
        }
        if !team.barrier() {
            return false;
        }
        index += 1;
    }
    true
}

/// Notes the step if it is the first whose output has a value that is not finite.
fn note_first_bad(step: &Step, pass: &Pass<'_>, found: &Mutex<Option<String>>) {
    let finite = written_slots(&step.op).iter().all(|&slot| {
        pass.vector
            .all_finite(pass.arena.rows(slot, 0..pass.n_rows(slot)))
    });
    let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
    if !finite && found.is_none() {
        *found = Some(format!("{} ({})", step.label, step.op.name()));
    }
}

fn written_slots(op: &AnyOp) -> Vec<SlotId> {
    let mut slots = Vec::new();
    op.visit(&mut |_, operand| {
        if let Use::Write(slot) | Use::Update(slot) = operand {
            slots.push(slot);
        }
    });
    slots
}
