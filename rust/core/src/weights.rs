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
use crate::memory::{NodeArenas, round_up};
use crate::packed::{self, ActivationKind, Activations, MatmulFn, OutTile, PackedForm, form_for};
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
    /// First byte, in the arena of their home.
    pub(crate) offset: usize,
}

impl Part {
    /// The node whose arena a worker of `node` reads.
    fn seen_from(&self, node: NodeIndex) -> NodeIndex {
        match self.home {
            Home::Node(home) => NodeIndex(home),
            Home::EveryNode => node,
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

    /// Bytes of one of its rows in the file.
    #[must_use]
    pub fn file_row_bytes(&self) -> usize {
        self.spec.n_cols as usize / self.quant.block_elems * self.quant.block_bytes
    }
}

/// Places of all tensors, known before a byte is read.
///
/// What every node has a copy of comes first in each arena, at the same offset in all; behind it
/// lies what is the node's own.
#[derive(Debug, Clone)]
pub struct Layout {
    /// One entry a tensor, in order of id.
    pub(crate) entries: Vec<Entry>,
    /// Bytes of the copies, in every arena.
    pub(crate) mirrored_bytes: usize,
    /// Bytes of each node's arena.
    pub(crate) node_bytes: Vec<usize>,
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
        };
        let placed = layout
            .entries
            .iter()
            .zip(buffers)
            .map(|(entry, buffer)| buffer.place(entry.n_panels(), node_threads));
        let placed: Vec<Vec<Extent>> = placed.collect();
        for everywhere in [true, false] {
            for (entry, extents) in layout.entries.iter_mut().zip(&placed) {
                for extent in extents {
                    if (extent.home == Home::EveryNode) == everywhere {
                        add_part(
                            entry,
                            extent,
                            &mut layout.mirrored_bytes,
                            &mut layout.node_bytes,
                        );
                    }
                }
            }
            if everywhere {
                layout.node_bytes.fill(layout.mirrored_bytes);
            }
        }
        Ok(layout)
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

    /// Bytes of memory that they need together; `usize::MAX` for more than that.
    #[must_use]
    pub fn n_bytes(&self) -> usize {
        self.node_bytes
            .iter()
            .fold(0, |sum, &bytes| bytes.saturating_add(sum))
    }
}

/// Gives an extent the next bytes of its home.
fn add_part(entry: &mut Entry, extent: &Extent, mirrored: &mut usize, nodes: &mut [usize]) {
    let end = match extent.home {
        Home::EveryNode => mirrored,
        Home::Node(node) => &mut nodes[node],
    };
    entry.parts.push(Part {
        home: extent.home,
        panels: extent.panels.clone(),
        offset: *end,
    });
    let n_bytes = extent.panels.len().saturating_mul(entry.panel_bytes);
    *end = round_up(n_bytes, TENSOR_ALIGN).saturating_add(*end);
}

/// All weights of a model, packed and in place.
#[derive(Debug)]
pub struct Weights {
    arenas: NodeArenas,
    layout: Layout,
    /// What workers find, when it is not empty, in place of a panel at home on another node.
    #[cfg(test)]
    remote: Vec<u8>,
}

impl Weights {
    /// Weights whose arenas were filled as `layout` says.
    pub(crate) fn new(arenas: NodeArenas, layout: Layout) -> Self {
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
            entry: self.entry(id, Role::Matrix),
            weights: self.weights,
            node: self.node,
        }
    }
}

/// A packed matrix, `[n_rows, n_cols]`, as one node's workers read it.
#[derive(Debug, Clone, Copy)]
pub struct MatrixRef<'a> {
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
            Home::EveryNode => NodeIndex(row % team.n_nodes()),
        }
    }

    fn part_of(&self, panel: usize) -> &Part {
        let parts = &self.entry.parts;
        // Parts are few, in order, and hold every panel (`Buffer::place`).
        let index = parts.iter().position(|part| panel < part.panels.end);
        &parts[index.unwrap_or(parts.len() - 1)]
    }

    fn panel(&self, panel: usize) -> &[u8] {
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
    pub fn unpack_row(&self, row: usize, out: &mut [f32]) {
        let (panel, within) = (row / self.panel_rows(), row % self.panel_rows());
        let unpack = self.entry.form.unpack_row;
        unpack(
            self.panel(panel),
            self.panel_rows(),
            self.n_cols(),
            within,
            out,
        );
    }

    /// The product of `n_tokens` activations with the rows of one panel.
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
    ) {
        let panel = self.panel(panel);
        // SAFETY: the kernel came from a detected ISA (`Layout::new`), the panel was laid out and
        // packed for it; `out` and `activations` as this function's contract says.
        unsafe {
            (self.entry.kernel)(
                panel,
                self.panel_rows(),
                self.n_cols(),
                activations,
                n_tokens,
                out,
            );
        }
    }
}
