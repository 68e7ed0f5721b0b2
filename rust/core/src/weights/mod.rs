//! Packed weights in memory: the only way in which ops reach them.
//!
//! Holds how weights are read and multiplied, on which node. Where they lie is decided in `layout`
//! before a byte is read. Knows neither files (`load.rs` fills the arenas) nor ops. A tensor is a
//! *matrix*, packed in panels of rows for the kernels, or a *vector*, one row of plain f32.
#![expect(
    unsafe_code,
    reason = "calls kernels, whose contract is met by a matrix's own layout"
)]

mod layout;

use std::ops::Range;

use crate::buffer::Home;
use crate::error::Result;
use crate::mapped::{MappedReads, PanelScratch};
use crate::memory::{FileRange, NodeArenas};
use crate::packed::{ActivationKind, Activations, MAX_PANEL_ROWS, OutTile};
use crate::workers::{NodeIndex, Team};

pub(crate) use layout::Part;
pub use layout::{Entry, Layout, Role, TensorId, TensorSpec};

/// All weights of a model, packed and in place.
#[derive(Debug)]
pub struct Weights {
    arenas: NodeArenas,
    layout: Layout,
    /// What workers find, when it is not empty, in place of a panel at home on another node.
    #[cfg(test)]
    remote: Vec<u8>,
    /// The file's bytes of each tensor that stays there.
    mapped: Vec<Option<FileRange>>,
}

impl Weights {
    /// Weights whose arenas were filled as `layout` says.
    ///
    /// # Args
    /// `mapped`: for each tensor that stays in its file, all its bytes there.
    pub(crate) fn new(arenas: NodeArenas, layout: Layout, mapped: Vec<Option<FileRange>>) -> Self {
        let with_range = layout.entries.iter().zip(&mapped);
        assert!(
            mapped.len() == layout.entries.len()
                && with_range
                    .filter(|(entry, _)| entry.is_mapped())
                    .all(|(entry, range)| {
                        let n_bytes = range.as_ref().map(|range| range.bytes().len());
                        n_bytes == Some(entry.file_bytes())
                    }),
            "tensors in no file"
        );
        let sizes = arenas.iter().map(|(_, arena)| arena.len_bytes());
        assert!(
            sizes
                .zip(&layout.node_bytes)
                .all(|(size, &bytes)| size >= bytes)
                && arenas.n_nodes() == layout.node_bytes.len(),
            "weights outside their arenas"
        );
        Self {
            arenas,
            layout,
            #[cfg(test)]
            remote: Vec::new(),
            mapped,
        }
    }

    /// Places of the tensors.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Whether these are the weights of `specs`, in this order: what makes a program's tensor
    /// ids and shapes hold here.
    #[must_use]
    pub fn are_of(&self, specs: &[TensorSpec]) -> bool {
        let entries = self.layout.entries.iter();
        entries.map(|entry| &entry.spec).eq(specs)
    }

    /// The memory that holds them.
    #[must_use]
    pub fn arenas(&self) -> &NodeArenas {
        &self.arenas
    }

    /// The weights as a worker of `node` reads them: its own copy of what is mirrored.
    ///
    /// # Panics
    /// If the node is not one of those in use.
    #[must_use]
    pub fn on(&self, node: NodeIndex) -> NodeWeights<'_> {
        assert!(node.0 < self.arenas.n_nodes(), "no such node");
        NodeWeights {
            weights: self,
            node,
        }
    }

    /// Rows of a tensor in its file, when it stays there.
    fn file_rows(&self, id: TensorId, rows: Range<usize>) -> Option<&[u8]> {
        let row_bytes = self.layout.entries[id.0 as usize].file_row_bytes();
        let range = self.mapped[id.0 as usize].as_ref()?;
        Some(&range.bytes()[rows.start * row_bytes..rows.end * row_bytes])
    }

    /// Bytes of an arena.
    fn bytes(&self, node: NodeIndex, range: Range<usize>) -> &[u8] {
        assert!(
            range.end <= self.arenas.arena(node).len_bytes(),
            "outside the arena"
        );
        // SAFETY: inside the arena (asserted), which lives as long as self; filled before `new`,
        // and nobody writes it after.
        unsafe {
            let start = self.arenas.at(node, range.start);
            std::slice::from_raw_parts(start.as_ptr(), range.len())
        }
    }
}

/// What tests of who reads what do to loaded weights.
#[cfg(test)]
impl Weights {
    /// Overwrites what `node` has of a tensor: its copy, or its rows.
    pub(crate) fn overwrite(&mut self, node: NodeIndex, id: TensorId, byte: u8) {
        let entry = &self.layout.entries[id.0 as usize];
        let mut arenas = self.arenas.as_mut_slices();
        let here = [Home::EveryNode, Home::Node(node.0)];
        for part in entry.parts.iter().filter(|part| here.contains(&part.home)) {
            let n_bytes = part.panels.len() * entry.panel_bytes;
            arenas[node.0][part.offset..part.offset + n_bytes].fill(byte);
        }
    }

    /// Makes every byte that a worker reads in another node's memory this one; `None` ends it.
    pub(crate) fn replace_remote(&mut self, byte: Option<u8>) {
        let largest = self.layout.entries.iter().map(|entry| entry.panel_bytes);
        let n_bytes = largest.max().unwrap_or(0);
        self.remote = byte.map_or_else(Vec::new, |byte| vec![byte; n_bytes]);
    }
}

/// The weights as one node's workers read them.
#[derive(Debug, Clone, Copy)]
pub struct NodeWeights<'a> {
    weights: &'a Weights,
    node: NodeIndex,
}

impl<'a> NodeWeights<'a> {
    fn entry(&self, id: TensorId, role: Role) -> &'a Entry {
        let entry = &self.weights.layout.entries[id.0 as usize];
        debug_assert_eq!(entry.spec.role, role, "{}", entry.spec.name);
        entry
    }

    /// A tensor of role vector, `f32[n_cols]`: the node's own copy, if it has one.
    #[must_use]
    pub fn vector(&self, id: TensorId) -> &'a [f32] {
        let entry = self.entry(id, Role::Vector);
        let part = &entry.parts[0];
        let range = part.offset..part.offset + entry.n_bytes();
        let bytes = self.weights.bytes(part.seen_from(self.node), range);
        // SAFETY: any four bytes are an f32; `Layout` aligned the part to a page.
        let (head, values, _) = unsafe { bytes.align_to::<f32>() };
        debug_assert!(head.is_empty(), "vector not aligned");
        values
    }

    /// A tensor of role matrix.
    #[must_use]
    pub fn matrix(&self, id: TensorId) -> MatrixRef<'a> {
        MatrixRef {
            id,
            entry: self.entry(id, Role::Matrix),
            weights: self.weights,
            node: self.node,
        }
    }
}

/// A packed matrix, `[n_rows, n_cols]`, as one node's workers read it.
#[derive(Debug, Clone, Copy)]
pub struct MatrixRef<'a> {
    id: TensorId,
    entry: &'a Entry,
    weights: &'a Weights,
    node: NodeIndex,
}

impl MatrixRef<'_> {
    /// Rows, the outputs of a product.
    #[must_use]
    pub fn n_rows(&self) -> usize {
        self.entry.spec.n_rows as usize
    }

    /// Values a row, the inputs of a product.
    #[must_use]
    pub fn n_cols(&self) -> usize {
        self.entry.spec.n_cols as usize
    }

    /// Rows of a panel.
    #[must_use]
    pub fn panel_rows(&self) -> usize {
        self.entry.panel_rows
    }

    /// Whether it stays in its file, so that a product packs it anew.
    pub(crate) fn is_mapped(&self) -> bool {
        self.entry.is_mapped()
    }

    /// What its kernels multiply with.
    #[must_use]
    pub fn activation(&self) -> ActivationKind {
        self.entry.form.activation
    }

    /// Consecutive rows that lie together: number of such parts, at least one.
    pub(crate) fn n_parts(&self) -> usize {
        self.entry.parts.len()
    }

    /// Panels of the `part`-th part that the workers of this node multiply in a run: all when the
    /// part is at home here, none when it is another's, a share when it is everybody's or nobody's.
    pub(crate) fn work(&self, part: usize, team: &Team<'_>) -> Range<usize> {
        let part = &self.entry.parts[part];
        match part.home {
            Home::Node(home) if home < team.n_nodes() => {
                if home == team.node().0 {
                    part.panels.clone()
                } else {
                    0..0
                }
            }
            _ => {
                let share = team.share(part.panels.len());
                part.panels.start + share.start..part.panels.start + share.end
            }
        }
    }

    /// The node whose workers fetch single rows: the row's home, if it takes part in the run.
    pub(crate) fn owner(&self, row: usize, team: &Team<'_>) -> NodeIndex {
        match self.part_of(row / self.panel_rows()).home {
            Home::Node(home) => NodeIndex(home % team.n_nodes()),
            _ => NodeIndex(row % team.n_nodes()),
        }
    }

    fn part_of(&self, panel: usize) -> &Part {
        let parts = &self.entry.parts;
        // Parts are few, in order, and hold every panel (`Buffer::place`).
        let index = parts.iter().position(|part| panel < part.panels.end);
        &parts[index.unwrap_or(parts.len() - 1)]
    }

    /// A packed panel: in its home, or packed into scratch when it stays in its file.
    fn panel<'s>(&'s self, panel: usize, scratch: &'s mut PanelScratch) -> Result<&'s [u8]> {
        let rows = self.entry.rows_of(panel);
        if let Some(file_rows) = self.weights.file_rows(self.id, rows) {
            let out = scratch.panel(self.entry.panel_bytes);
            self.entry.pack_panel(panel, file_rows, out)?;
            return Ok(out);
        }
        Ok(self.packed_panel(panel))
    }

    /// A panel that lies in an arena.
    fn packed_panel(&self, panel: usize) -> &[u8] {
        let part = self.part_of(panel);
        let node = part.seen_from(self.node);
        #[cfg(test)]
        if node != self.node && !self.weights.remote.is_empty() {
            return &self.weights.remote[..self.entry.panel_bytes];
        }
        let start = part.offset + (panel - part.panels.start) * self.entry.panel_bytes;
        let range = start..start + self.entry.panel_bytes;
        self.weights.bytes(node, range)
    }

    /// One row's exact values into `out`, `f32[n_cols]`.
    ///
    /// # Errors
    /// [`Error::NonFiniteWeight`] for a tensor that stays in its file, `out` then being zeros: the
    /// others were checked when they were loaded.
    pub fn unpack_row(&self, row: usize, out: &mut [f32]) -> Result<()> {
        if let Some(file_row) = self.weights.file_rows(self.id, row..row + 1) {
            self.entry.quant.dequantize(file_row, out);
            let Some(col) = out.iter().position(|value| !value.is_finite()) else {
                return Ok(());
            };
            out.fill(0.0);
            let in_block = col % self.entry.quant.block_elems;
            return Err(self.entry.bad(row, col - in_block));
        }
        let (panel, within) = (row / self.panel_rows(), row % self.panel_rows());
        let unpack = self.entry.form.unpack_row;
        unpack(
            self.packed_panel(panel),
            self.panel_rows(),
            self.n_cols(),
            within,
            out,
        );
        Ok(())
    }

    /// The product of `n_tokens` activations with the rows of one panel.
    ///
    /// Zeros, and a report to `reads`, when the panel can't be packed.
    ///
    /// # Safety
    /// `out` must be valid for `n_tokens` rows, exclusively; `activations` must hold `n_tokens`
    /// rows of `n_cols` values of the kind that [`MatrixRef::activation`] names.
    pub(crate) unsafe fn multiply(
        &self,
        panel: usize,
        activations: &Activations<'_>,
        n_tokens: usize,
        out: OutTile,
        reads: &MappedReads<'_>,
    ) {
        let (panel_rows, n_cols) = (self.panel_rows(), self.n_cols());
        reads.with_scratch(|scratch| match self.panel(panel, scratch) {
            // SAFETY: the kernel came from a detected ISA (`Layout::new`), the panel was laid out
            // and packed for it; `out` and `activations` as this function's contract says.
            Ok(panel) => unsafe {
                (self.entry.kernel)(panel, panel_rows, n_cols, activations, n_tokens, out);
            },
            Err(error) => {
                reads.report(error);
                for token in 0..n_tokens {
                    // SAFETY: one of the tokens that `out` is valid for.
                    unsafe { out.write(token, &[0.0; MAX_PANEL_ROWS]) };
                }
            }
        });
    }
}
