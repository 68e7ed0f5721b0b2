//! A model's forward pass as plain data, checked once.
//!
//! Python compiles a [`Program`] and sends it as JSON; [`Program::from_json`] verifies it. After
//! that every id is in range, every slot is written before it is read, no op reads what it writes
//! and all shapes agree: ops and the executor trust it. Knows no model and runs nothing.

use serde::Deserialize;

use crate::arena::{Rows, SlotId, SlotSpec};
use crate::error::{Error, Result};
use crate::ops::operand::Use;
use crate::ops::{AnyOp, Shapes};
use crate::state::{CacheId, CacheSpec};
use crate::weights::{Role, TensorId, TensorSpec};

/// Most entries a list of a program may have: far above any model, far below trouble.
const MAX_ENTRIES: usize = 1 << 20;

/// Largest width, row count or head size: products of two still fit in 53 bits.
const MAX_DIM: u32 = 1 << 26;

/// One op of a program, with words for the place where it stands.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Where in the model the op is, such as `blk.3.attn_q`; used in messages.
    pub label: String,
    /// The op.
    pub op: AnyOp,
}

/// A verified forward pass.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// Tensors, in order of id.
    pub(crate) tensors: Vec<TensorSpec>,
    /// Activation slots, in order of id.
    pub(crate) slots: Vec<SlotSpec>,
    /// Caches of attention layers, in order of id.
    pub(crate) caches: Vec<CacheSpec>,
    /// Ops in order of execution.
    pub(crate) steps: Vec<Step>,
    /// The slot that holds the logits in the end, `f32[n_outputs, n_vocab]`.
    pub(crate) logits: SlotId,
}

impl Program {
    /// Parses and verifies a program.
    ///
    /// # Errors
    /// [`Error::BadProgram`] names the op, slot or tensor at fault.
    pub fn from_json(json: &str) -> Result<Self> {
        let program: Self = serde_json::from_str(json)
            .map_err(|error| bad("the program's json", error.to_string()))?;
        program.verify()?;
        Ok(program)
    }

    /// Tensors, in order of id.
    #[must_use]
    pub fn tensors(&self) -> &[TensorSpec] {
        &self.tensors
    }

    /// Slots, in order of id.
    #[must_use]
    pub fn slots(&self) -> &[SlotSpec] {
        &self.slots
    }

    /// Caches, in order of id.
    #[must_use]
    pub fn caches(&self) -> &[CacheSpec] {
        &self.caches
    }

    /// Width of the logits.
    #[must_use]
    pub fn n_vocab(&self) -> usize {
        self.slots[self.logits.0 as usize].width as usize
    }

    /// Token ids must be below this: the fewest rows of an embedding table.
    pub(crate) fn n_embeddings(&self) -> usize {
        let tables = self.steps.iter().filter_map(|step| match &step.op {
            AnyOp::Embed(embed) => Some(self.shapes().matrix(embed.table()).n_rows as usize),
            _ => None,
        });
        tables.min().unwrap_or(0)
    }

    /// Values of partial results that its ops leave at a time, in passes of up to `max_rows` tokens
    /// and sequences of up to `n_ctx` positions.
    #[must_use]
    pub fn partial_elems(&self, max_rows: usize, n_ctx: usize) -> usize {
        let ops = self.steps.iter().map(|step| step.op.as_op());
        let elems = ops.map(|op| op.partial_elems(max_rows, n_ctx));
        elems.max().unwrap_or(0)
    }

    pub(crate) fn shapes(&self) -> Shapes<'_> {
        Shapes {
            tensors: &self.tensors,
            slots: &self.slots,
            caches: &self.caches,
        }
    }

    fn verify(&self) -> Result<()> {
        self.verify_declarations()?;
        let mut written = vec![false; self.slots.len()];
        let mut stored = vec![false; self.caches.len()];
        for (index, step) in self.steps.iter().enumerate() {
            let place = || format!("op {index} ({}, {})", step.op.name(), step.label);
            self.verify_operands(&step.op, &mut written, &mut stored)
                .and_then(|()| step.op.as_op().check(&self.shapes()))
                .map_err(|problem| bad(place(), problem))?;
        }
        let logits = self.logits.0 as usize;
        match self.slots.get(logits) {
            None => Err(bad("logits", format!("there is no slot {logits}"))),
            Some(_) if !written[logits] => Err(bad("logits", "never written".into())),
            Some(slot) if slot.rows != Rows::Outputs => {
                Err(bad("logits", "must have a row an output".into()))
            }
            Some(_) => Ok(()),
        }
    }

    fn verify_declarations(&self) -> Result<()> {
        let lists = [
            self.tensors.len(),
            self.slots.len(),
            self.caches.len(),
            self.steps.len(),
        ];
        if let Some(len) = lists.into_iter().find(|&len| len > MAX_ENTRIES) {
            return Err(bad("the program", format!("a list of {len} entries")));
        }
        for tensor in &self.tensors {
            let place = || format!("tensor {}", tensor.name);
            in_range(tensor.n_rows)
                .and_then(|()| in_range(tensor.n_cols))
                .map_err(|p| bad(place(), p))?;
            tensor.quant_type()?;
            if tensor.role == Role::Vector && tensor.n_rows != 1 {
                return Err(bad(place(), format!("a vector of {} rows", tensor.n_rows)));
            }
        }
        for (id, slot) in self.slots.iter().enumerate() {
            in_range(slot.width).map_err(|p| bad(format!("slot {id}"), p))?;
        }
        for (id, cache) in self.caches.iter().enumerate() {
            for dim in [cache.n_head_kv, cache.k_dim, cache.v_dim] {
                in_range(dim).map_err(|p| bad(format!("cache {id}"), p))?;
            }
        }
        Ok(())
    }

    /// Checks the ids of one op's operands and the order of use of slots and caches.
    fn verify_operands(
        &self,
        op: &AnyOp,
        written: &mut [bool],
        stored: &mut [bool],
    ) -> std::result::Result<(), String> {
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        let mut problem = None;
        op.visit(&mut |field, operand| {
            let found = match operand {
                Use::Read(slot) => {
                    reads.push(slot);
                    readable(slot, written)
                }
                Use::Update(slot) => {
                    writes.push(slot);
                    readable(slot, written)
                }
                Use::Write(slot) => {
                    writes.push(slot);
                    exists("slot", slot.0, written.len())
                }
                Use::Vector(id) => self.has_role(id, Role::Vector),
                Use::Matrix(id) => self.has_role(id, Role::Matrix),
                Use::Cache(CacheId(id)) => take_cache(id, stored),
                Use::Bad(words) => Err(words),
                Use::Number => Ok(()),
            };
            if let Err(words) = found {
                problem.get_or_insert(format!("{field}: {words}"));
            }
        });
        if let Some(words) = problem {
            return Err(words);
        }
        for (i, slot) in writes.iter().enumerate() {
            if reads.contains(slot) || writes[..i].contains(slot) {
                return Err(format!("slot {} is used twice, once to write", slot.0));
            }
            written[slot.0 as usize] = true;
        }
        Ok(())
    }

    fn has_role(&self, id: TensorId, role: Role) -> std::result::Result<(), String> {
        exists("tensor", id.0, self.tensors.len())?;
        let tensor = &self.tensors[id.0 as usize];
        if tensor.role == role {
            Ok(())
        } else {
            Err(format!(
                "{} is a {:?}, expected a {role:?}",
                tensor.name, tensor.role
            ))
        }
    }
}

fn readable(slot: SlotId, written: &[bool]) -> std::result::Result<(), String> {
    exists("slot", slot.0, written.len())?;
    if written[slot.0 as usize] {
        Ok(())
    } else {
        Err(format!("slot {} is read before it is written", slot.0))
    }
}

fn take_cache(id: u32, stored: &mut [bool]) -> std::result::Result<(), String> {
    exists("cache", id, stored.len())?;
    if std::mem::replace(&mut stored[id as usize], true) {
        return Err(format!("cache {id} is used by another op"));
    }
    Ok(())
}

fn exists(kind: &str, id: u32, len: usize) -> std::result::Result<(), String> {
    if (id as usize) < len {
        Ok(())
    } else {
        Err(format!("there is no {kind} {id}, only {len}"))
    }
}

fn in_range(dim: u32) -> std::result::Result<(), String> {
    if (1..=MAX_DIM).contains(&dim) {
        Ok(())
    } else {
        Err(format!("a dimension of {dim}, expected 1 to {MAX_DIM}"))
    }
}

fn bad(place: impl Into<String>, problem: String) -> Error {
    Error::BadProgram {
        place: place.into(),
        problem,
    }
}
