//! Packed weights in memory: the only way in which ops reach them.
//!
//! Holds where each tensor lies and how it is packed for the instruction set in use. Knows neither
//! files (`load.rs` fills it) nor ops. A tensor is a *matrix*, packed in panels of rows for the
//! kernels, or a *vector*, one row of plain f32.
#![expect(
    unsafe_code,
    reason = "calls kernels, whose contract is met by a matrix's own layout"
)]

use std::ops::Range;

use serde::Deserialize;

use crate::buffer::{Buffer, Extent, Home};
use crate::error::{Error, Result};
use crate::isa::Isa;
use crate::mapped::{MappedReads, PanelScratch};
use crate::memory::{FileRange, HUGE_PAGE_BYTES, NodeArenas, equal_part_bytes, round_up};
use crate::packed::{
    self, ActivationKind, Activations, MAX_PANEL_ROWS, MatmulFn, OutTile, PackedForm, form_for,
};
use crate::quant::{self, QuantType};
use crate::workers::{NodeIndex, Team};

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
    fn seen_from(&self, node: NodeIndex) -> NodeIndex {
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
    kernel: MatmulFn,
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
