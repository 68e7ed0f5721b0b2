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

use crate::error::{Error, Result};
use crate::isa::Isa;
use crate::memory::{Mapping, round_up};
use crate::packed::{self, ActivationKind, Activations, MatmulFn, OutTile, PackedForm, form_for};
use crate::quant::{self, QuantType};

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

/// Where one tensor lies in the weights' memory. Made by [`Layout::new`] alone: kernels trust it.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The tensor.
    pub(crate) spec: TensorSpec,
    /// Its type in the file.
    pub(crate) quant: &'static QuantType,
    /// How it is packed, when it is a matrix.
    pub(crate) form: &'static PackedForm,
    /// First byte in the mapping.
    pub(crate) offset: usize,
    /// Bytes a panel; for a vector, of the whole.
    pub(crate) panel_bytes: usize,
    /// Rows a panel.
    pub(crate) panel_rows: usize,
    kernel: MatmulFn,
}

impl Entry {
    /// Number of panels; 1 for a vector.
    #[must_use]
    pub fn n_panels(&self) -> usize {
        (self.spec.n_rows as usize).div_ceil(self.panel_rows)
    }

    /// Bytes it takes in memory; `usize::MAX` for more than that.
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
#[derive(Debug, Clone)]
pub struct Layout {
    /// One entry a tensor, in order of id.
    pub(crate) entries: Vec<Entry>,
    /// Bytes of memory that they need together.
    pub(crate) n_bytes: usize,
}

impl Layout {
    /// Lays `specs` out one after another for `isa`.
    pub fn new(specs: &[TensorSpec], isa: &Isa) -> Result<Self> {
        let mut n_bytes = 0;
        let mut entries = Vec::with_capacity(specs.len());
        for spec in specs {
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
            let entry = Entry {
                spec: spec.clone(),
                quant,
                form,
                offset: n_bytes,
                panel_bytes,
                panel_rows,
                kernel: isa.matmul(form),
            };
            n_bytes = round_up(entry.n_bytes(), TENSOR_ALIGN).saturating_add(n_bytes);
            entries.push(entry);
        }
        Ok(Self { entries, n_bytes })
    }

    /// One entry a tensor, in order of id.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Bytes of memory that they need together; `usize::MAX` for more than that.
    #[must_use]
    pub fn n_bytes(&self) -> usize {
        self.n_bytes
    }
}

/// All weights of a model, packed and in place.
#[derive(Debug)]
pub struct Weights {
    memory: Mapping,
    layout: Layout,
}

impl Weights {
    /// Weights whose memory was filled as `layout` says.
    pub(crate) fn new(memory: Mapping, layout: Layout) -> Self {
        assert!(
            memory.len_bytes() >= layout.n_bytes,
            "weights outside their mapping"
        );
        Self { memory, layout }
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
    pub fn memory(&self) -> &Mapping {
        &self.memory
    }

    fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.memory.as_slice()[range]
    }

    /// A tensor of role vector, `f32[n_cols]`.
    #[must_use]
    pub fn vector(&self, id: TensorId) -> &[f32] {
        let entry = &self.layout.entries[id.0 as usize];
        debug_assert_eq!(
            entry.spec.role,
            Role::Vector,
            "{} is no vector",
            entry.spec.name
        );
        let bytes = self.bytes(entry.offset..entry.offset + entry.n_bytes());
        // SAFETY: any four bytes are an f32; `Layout` aligned the entry to a page.
        let (head, values, _) = unsafe { bytes.align_to::<f32>() };
        debug_assert!(head.is_empty(), "vector not aligned");
        values
    }

    /// A tensor of role matrix.
    #[must_use]
    pub fn matrix(&self, id: TensorId) -> MatrixRef<'_> {
        let entry = &self.layout.entries[id.0 as usize];
        debug_assert_eq!(
            entry.spec.role,
            Role::Matrix,
            "{} is no matrix",
            entry.spec.name
        );
        let data = self.bytes(entry.offset..entry.offset + entry.n_bytes());
        MatrixRef { entry, data }
    }
}

/// A packed matrix, `[n_rows, n_cols]`.
#[derive(Debug, Clone, Copy)]
pub struct MatrixRef<'a> {
    entry: &'a Entry,
    data: &'a [u8],
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

    fn panel(&self, panel: usize) -> &[u8] {
        let bytes = self.entry.panel_bytes;
        &self.data[panel * bytes..(panel + 1) * bytes]
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
