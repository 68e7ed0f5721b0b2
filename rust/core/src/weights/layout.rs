//! Where each tensor lies and how it is packed, known before a byte is read.
//!
//! Holds tensors' declarations, their parts by node, and the arithmetic that gives each part its
//! place in an arena. Knows no memory and no kernel but by its pointer. Called by the loader, the
//! memory plan and `weights`.

use std::ops::Range;

use serde::Deserialize;

use crate::buffer::{Buffer, Extent, Home};
use crate::error::{Error, Result};
use crate::isa::Isa;
use crate::memory::{HUGE_PAGE_BYTES, equal_part_bytes, round_up};
use crate::packed::{self, MatmulFn, PackedForm, form_for};
use crate::quant::{self, QuantType};
use crate::workers::NodeIndex;

/// Alignment of each tensor in memory, in bytes: a page, so that pages never hold two tensors.
const TENSOR_ALIGN: usize = 4096;

/// One tensor, by index in the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(transparent)]
pub struct TensorId(pub u32);

/// What a tensor is to the ops that use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Packed in panels; multiplied, or read a row at a time.
    Matrix,
    /// One row, held as f32.
    Vector,
}

/// One tensor as a program names it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorSpec {
    /// Name in the file.
    pub name: String,
    /// GGML's name of its type.
    #[serde(rename = "type")]
    pub type_name: String,
    /// Rows; 1 for a vector.
    pub n_rows: u32,
    /// Values a row.
    pub n_cols: u32,
    /// Its role.
    pub role: Role,
}

impl TensorSpec {
    /// The quantization type, when it exists here and divides the rows.
    pub fn quant_type(&self) -> Result<&'static QuantType> {
        let quant = quant::named(&self.type_name)?;
        if !(self.n_cols as usize).is_multiple_of(quant.block_elems) {
            return Err(Error::BadProgram {
                place: format!("tensor {}", self.name),
                problem: format!(
                    "rows of {} values are not whole blocks of {} ({})",
                    self.n_cols, quant.block_elems, quant.name
                ),
            });
        }
        Ok(quant)
    }
}

/// Some panels of a tensor in memory.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    /// Whose memory they are in.
    pub(crate) home: Home,
    /// Which panels.
    pub(crate) panels: Range<usize>,
    /// First byte, in the arena of their home; 0 for those that stay in their file.
    pub(crate) offset: usize,
}

impl Part {
    /// The node whose arena a worker of `node` reads.
    pub(super) fn seen_from(&self, node: NodeIndex) -> NodeIndex {
        match self.home {
            Home::Node(home) => NodeIndex(home),
            Home::EveryNode => node,
            Home::Interleaved | Home::File => NodeIndex(0),
        }
    }
}

/// Where one tensor lies in the nodes' arenas. Made by [`Layout`] alone: kernels trust it.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The tensor.
    pub(crate) spec: TensorSpec,
    /// Its type in the file.
    pub(crate) quant: &'static QuantType,
    /// How it is packed, when it is a matrix.
    pub(crate) form: &'static PackedForm,
    /// All panels, in order.
    pub(crate) parts: Vec<Part>,
    /// Bytes a panel; for a vector, of the whole.
    pub(crate) panel_bytes: usize,
    /// Rows a panel.
    pub(crate) panel_rows: usize,
    pub(super) kernel: MatmulFn,
}

impl Entry {
    fn new(spec: &TensorSpec, isa: &Isa) -> Result<Self> {
        let quant = spec.quant_type()?;
        let form = form_for(quant).ok_or_else(|| Error::Unsupported {
            kind: "packed form for type",
            name: quant.name.into(),
            known: packed::FORMS.map(|form| form.name).join(", "),
        })?;
        let n_cols = spec.n_cols as usize;
        let (panel_rows, panel_bytes) = match spec.role {
            Role::Matrix => (isa.panel_rows, (form.panel_bytes)(isa.panel_rows, n_cols)),
            Role::Vector => (1, n_cols * size_of::<f32>()),
        };
        Ok(Self {
            spec: spec.clone(),
            quant,
            form,
            parts: Vec::new(),
            panel_bytes,
            panel_rows,
            kernel: isa.matmul(form),
        })
    }

    /// Number of panels; 1 for a vector.
    #[must_use]
    pub fn n_panels(&self) -> usize {
        (self.spec.n_rows as usize).div_ceil(self.panel_rows)
    }

    /// Bytes of one copy; `usize::MAX` for more than memory has.
    #[must_use]
    pub fn n_bytes(&self) -> usize {
        self.n_panels().saturating_mul(self.panel_bytes)
    }

    /// Whether it stays in its file.
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        self.parts.iter().any(|part| part.home == Home::File)
    }

    /// Rows of a panel that exist; fewer than [`Entry::panel_rows`] in the last one.
    pub(crate) fn rows_of(&self, panel: usize) -> Range<usize> {
        let end = (panel + 1) * self.panel_rows;
        panel * self.panel_rows..end.min(self.spec.n_rows as usize)
    }

    /// Packs a panel from its rows in the file.
    ///
    /// # Errors
    /// [`Error::NonFiniteWeight`].
    pub(crate) fn pack_panel(&self, panel: usize, file_rows: &[u8], out: &mut [u8]) -> Result<()> {
        let (rows, n_cols) = (self.rows_of(panel), self.spec.n_cols as usize);
        let pack = self.form.pack_panel;
        pack(
            self.quant,
            file_rows,
            rows.len(),
            n_cols,
            self.panel_rows,
            out,
        )
        .map_err(|bad| self.bad(rows.start + bad.row, bad.col))
    }

    /// The error for a number that nothing can be multiplied with.
    pub(crate) fn bad(&self, row: usize, col: usize) -> Error {
        Error::NonFiniteWeight {
            tensor: self.spec.name.clone(),
            row,
            col,
        }
    }

    /// Bytes of it in the file.
    pub(crate) fn file_bytes(&self) -> usize {
        (self.spec.n_rows as usize).saturating_mul(self.file_row_bytes())
    }

    /// Bytes of one of its rows in the file.
    #[must_use]
    pub fn file_row_bytes(&self) -> usize {
        self.spec.n_cols as usize / self.quant.block_elems * self.quant.block_bytes
    }
}

/// Places of all tensors, known before a byte is read.
///
/// What every node has a copy of comes first in each arena, at the same offset in all; behind it
/// lies what is the node's own. The first arena ends with what is interleaved. What stays in its
/// file has no place.
#[derive(Debug, Clone)]
pub struct Layout {
    /// One entry a tensor, in order of id.
    pub(crate) entries: Vec<Entry>,
    /// Bytes of the copies, in every arena.
    pub(crate) mirrored_bytes: usize,
    /// Bytes of each node's arena.
    pub(crate) node_bytes: Vec<usize>,
    /// The end of the first arena that lies on all nodes: whole huge pages.
    pub(crate) interleaved: Range<usize>,
}

impl Layout {
    /// Lays `specs` out for `isa` on one node.
    pub fn new(specs: &[TensorSpec], isa: &Isa) -> Result<Self> {
        let buffers = specs.iter().map(|spec| match spec.role {
            Role::Matrix => Buffer::split(),
            Role::Vector => Buffer::mirror(),
        });
        Self::on_nodes(specs, &buffers.collect::<Vec<_>>(), &[1], isa)
    }

    /// Lays `specs` out for `isa` on several nodes.
    ///
    /// # Args
    /// `buffers`: one a tensor; `node_threads`: decode threads of each node in use.
    ///
    /// # Panics
    /// If there is not one buffer a tensor.
    pub fn on_nodes(
        specs: &[TensorSpec],
        buffers: &[Buffer],
        node_threads: &[usize],
        isa: &Isa,
    ) -> Result<Self> {
        assert_eq!(specs.len(), buffers.len(), "one buffer a tensor");
        let entries: Result<Vec<Entry>> = specs.iter().map(|spec| Entry::new(spec, isa)).collect();
        let mut layout = Self {
            entries: entries?,
            mirrored_bytes: 0,
            node_bytes: vec![0; node_threads.len()],
            interleaved: 0..0,
        };
        let placed = layout.entries.iter().zip(buffers).map(|(entry, buffer)| {
            let extents = buffer.place(entry.n_panels(), node_threads);
            let is_mapped = extents.iter().any(|extent| extent.home == Home::File);
            // A vector is decoded to be used: it can't stay in its file.
            match entry.spec.role {
                Role::Vector if is_mapped => Buffer::mirror().place(1, node_threads),
                _ => extents,
            }
        });
        let placed: Vec<Vec<Extent>> = placed.collect();
        layout.lay_out(&placed);
        Ok(layout)
    }

    /// Gives every extent its place, home by home.
    fn lay_out(&mut self, placed: &[Vec<Extent>]) {
        let (entries, nodes) = (&mut self.entries, &mut self.node_bytes);
        let mirrored = &mut self.mirrored_bytes;
        add_parts(entries, placed, |home, n_bytes| {
            (home == Home::EveryNode).then(|| take(mirrored, n_bytes))
        });
        nodes.fill(*mirrored);
        add_parts(entries, placed, |home, n_bytes| match home {
            Home::Node(node) => Some(take(&mut nodes[node], n_bytes)),
            _ => None,
        });
        let start = round_up(nodes[0], HUGE_PAGE_BYTES);
        let mut end = start;
        add_parts(entries, placed, |home, n_bytes| {
            (home == Home::Interleaved).then(|| take(&mut end, n_bytes))
        });
        if end > start {
            end = round_up(end, HUGE_PAGE_BYTES);
            self.interleaved = start..end;
            nodes[0] = end;
        }
        add_parts(entries, placed, |home, _| (home == Home::File).then_some(0));
    }

    /// One entry a tensor, in order of id.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Bytes of each node's arena; `usize::MAX` for more than memory has.
    #[must_use]
    pub fn node_bytes(&self) -> &[usize] {
        &self.node_bytes
    }

    /// Bytes that the first arena holds for all nodes: whole huge pages, dealt to them in turn.
    #[must_use]
    pub fn interleaved_bytes(&self) -> usize {
        self.interleaved.len()
    }

    /// Bytes to count against each node: its arena, but of what is interleaved an equal part, in
    /// whole huge pages (so the sum may be a page a node more than [`Layout::n_bytes`]).
    #[must_use]
    pub fn budget_bytes(&self) -> Vec<usize> {
        let mut bytes = self.node_bytes.clone();
        if !self.interleaved.is_empty() {
            bytes[0] = self.interleaved.start;
            let part = equal_part_bytes(self.interleaved.len(), bytes.len());
            for bytes in &mut bytes {
                *bytes = bytes.saturating_add(part);
            }
        }
        bytes
    }

    /// Bytes of the files that a load reads: all but those of tensors that stay in them.
    #[must_use]
    pub fn read_bytes(&self) -> u64 {
        let read = self.entries.iter().filter(|entry| !entry.is_mapped());
        read.fold(0, |sum, entry| {
            (entry.file_bytes() as u64).saturating_add(sum)
        })
    }

    /// Bytes of scratch that a worker needs to read the tensors that stay in their file.
    pub(crate) fn panel_scratch_bytes(&self) -> usize {
        let mapped = self.entries.iter().filter(|entry| entry.is_mapped());
        mapped.map(|entry| entry.panel_bytes).max().unwrap_or(0)
    }

    /// Bytes of memory that they need together; `usize::MAX` for more than that.
    #[must_use]
    pub fn n_bytes(&self) -> usize {
        self.node_bytes
            .iter()
            .fold(0, |sum, &bytes| bytes.saturating_add(sum))
    }
}

/// Makes parts of the extents that `offset_of` has a place for, by home and size in bytes.
fn add_parts(
    entries: &mut [Entry],
    placed: &[Vec<Extent>],
    mut offset_of: impl FnMut(Home, usize) -> Option<usize>,
) {
    for (entry, extents) in entries.iter_mut().zip(placed) {
        for extent in extents {
            let n_bytes = extent.panels.len().saturating_mul(entry.panel_bytes);
            if let Some(offset) = offset_of(extent.home, n_bytes) {
                entry.parts.push(Part {
                    home: extent.home,
                    panels: extent.panels.clone(),
                    offset,
                });
            }
        }
    }
}

/// The next `n_bytes` behind an end, in whole pages.
fn take(end: &mut usize, n_bytes: usize) -> usize {
    let start = *end;
    *end = round_up(n_bytes, TENSOR_ALIGN).saturating_add(start);
    start
}
