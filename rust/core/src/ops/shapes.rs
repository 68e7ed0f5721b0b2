//! Shapes of everything a program names, and the comparisons that ops make of them.
//!
//! Every check gives its complaint as words; `program.rs` adds which op it was.

use super::operand::{Cache, Matrix, Read, Update, Vector, Write};
use crate::arena::{Rows, SlotId, SlotSpec};
use crate::state::{CacheId, CacheSpec};
use crate::weights::{TensorId, TensorSpec};

/// Declared shapes, looked up by operands whose ids were checked.
#[derive(Debug, Clone, Copy)]
pub struct Shapes<'a> {
    pub(crate) tensors: &'a [TensorSpec],
    pub(crate) slots: &'a [SlotSpec],
    pub(crate) caches: &'a [CacheSpec],
}

/// An operand that is a slot.
pub(crate) trait SlotOperand: Copy {
    fn slot(self) -> SlotId;
}
impl SlotOperand for Read {
    fn slot(self) -> SlotId {
        self.id()
    }
}
impl SlotOperand for Write {
    fn slot(self) -> SlotId {
        self.id()
    }
}
impl SlotOperand for Update {
    fn slot(self) -> SlotId {
        self.id()
    }
}

impl Shapes<'_> {
    /// Values a row of a slot.
    pub(crate) fn width(&self, slot: impl SlotOperand) -> usize {
        self.slots[slot.slot().0 as usize].width as usize
    }

    /// Which rows a slot has.
    pub(crate) fn rows(&self, slot: impl SlotOperand) -> Rows {
        self.slots[slot.slot().0 as usize].rows
    }

    /// The tensor behind a matrix.
    pub(crate) fn matrix(&self, matrix: Matrix) -> &TensorSpec {
        let TensorId(id) = matrix.id();
        &self.tensors[id as usize]
    }

    /// The cache's shape.
    pub(crate) fn cache(&self, cache: Cache) -> CacheSpec {
        let CacheId(id) = cache.id();
        self.caches[id as usize]
    }

    /// Two slots must have the same rows.
    pub(crate) fn same_rows(&self, a: impl SlotOperand, b: impl SlotOperand) -> Result<(), String> {
        let (a, b) = (self.rows(a), self.rows(b));
        if a == b {
            Ok(())
        } else {
            Err(format!("rows differ: {a:?} and {b:?}"))
        }
    }

    /// Two slots must have the same rows and width.
    pub(crate) fn same_shape(
        &self,
        a: impl SlotOperand,
        b: impl SlotOperand,
    ) -> Result<(), String> {
        self.same_rows(a, b)?;
        equal("width", self.width(a), self.width(b))
    }

    /// A vector must have `n_elems` values.
    pub(crate) fn length(&self, what: &str, vector: Vector, n_elems: usize) -> Result<(), String> {
        let TensorId(id) = vector.id();
        equal(what, self.tensors[id as usize].n_cols as usize, n_elems)
    }
}

/// `found` must be `expected`.
pub(crate) fn equal(what: &str, found: usize, expected: usize) -> Result<(), String> {
    if found == expected {
        Ok(())
    } else {
        Err(format!("{what} is {found}, expected {expected}"))
    }
}
