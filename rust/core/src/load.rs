//! From file ranges to packed weights: every byte read once, by the workers, in parallel.
//!
//! Knows how to read and in which pieces; the layout of types and forms is theirs. Called by the
//! engine once, before the first pass.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};
use crate::memory::Mapping;
use crate::quant::QuantType;
use crate::weights::{Entry, Layout, Role, Weights};
use crate::workers::{Control, Workers};

/// File bytes a worker reads at a time, at least one panel.
const PIECE_BYTES: usize = 1 << 20;

/// Where a tensor's bytes are.
#[derive(Debug, Clone)]
pub struct Source {
    /// Index into the files given to [`load`].
    pub file: usize,
    /// First byte in that file.
    pub offset: u64,
}

/// A file that weights come from.
#[derive(Debug)]
pub struct WeightFile {
    /// Name for messages.
    pub path: String,
    /// Open for reading.
    pub file: File,
}

/// Opens each file once; gives the files and each tensor's source among them.
///
/// # Args
/// `tensors`: path and offset of each tensor.
pub fn open(tensors: &[(String, u64)]) -> Result<(Vec<WeightFile>, Vec<Source>)> {
    let mut files: Vec<WeightFile> = Vec::new();
    let mut sources = Vec::with_capacity(tensors.len());
    for (path, offset) in tensors {
        let known = files.iter().position(|file| &file.path == path);
        let file = known.unwrap_or(files.len());
        if known.is_none() {
            let file = File::open(path).map_err(|source| Error::System {
                call: format!("opening {path}"),
                source,
            })?;
            files.push(WeightFile {
                path: path.clone(),
                file,
            });
        }
        sources.push(Source {
            file,
            offset: *offset,
        });
    }
    Ok((files, sources))
}

/// Some panels of one tensor: a range of the file and the memory it is packed into.
struct Piece<'a> {
    entry: &'a Entry,
    source: &'a Source,
    first_row: usize,
    n_rows: usize,
    out: &'a mut [u8],
}

/// Reads and packs all tensors of `layout`.
///
/// `progress` gets the file bytes done so far, about twenty times a second, and may stop the load.
///
/// # Errors
/// [`Error::OutOfMemory`], [`Error::ReadWeights`], [`Error::NonFiniteWeight`],
/// [`Error::Interrupted`].
///
/// # Panics
/// If there is not one source a tensor, in one of the files.
pub fn load(
    layout: Layout,
    files: &[WeightFile],
    sources: &[Source],
    workers: &Workers,
    progress: &mut dyn FnMut(u64) -> Control,
) -> Result<Weights> {
    assert_eq!(layout.entries.len(), sources.len(), "one source a tensor");
    assert!(
        sources.iter().all(|source| source.file < files.len()),
        "a source in no file"
    );
    let mut memory = Mapping::new("weights", layout.n_bytes.max(1))?;
    let pieces = cut(&layout, sources, memory.as_mut_slice());
    let queue = Mutex::new(pieces.into_iter());
    let failure = Mutex::new(None);
    let done_bytes = AtomicU64::new(0);
    let job = |_: &crate::workers::Team<'_>| {
        let mut buffer = Vec::new();
        while let Some(piece) = next(&queue) {
            let n_bytes = piece.n_rows * piece.entry.file_row_bytes();
            if let Err(error) = fill(piece, files, &mut buffer) {
                lock(&failure).get_or_insert(error);
            }
            if lock(&failure).is_some() {
                return;
            }
            done_bytes.fetch_add(n_bytes as u64, Ordering::Relaxed);
        }
    };
    let mut poll = || {
        let control = progress(done_bytes.load(Ordering::Relaxed));
        if matches!(control, Control::Cancel) {
            lock(&failure).get_or_insert(Error::Interrupted);
        }
        control
    };
    let ran = workers.run(workers.n_threads(), &job, &mut poll);
    if let Some(error) = lock(&failure).take() {
        return Err(error);
    }
    ran?;
    drop(queue);
    progress(done_bytes.load(Ordering::Relaxed));
    Ok(Weights::new(memory, layout))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn next<'a>(queue: &Mutex<std::vec::IntoIter<Piece<'a>>>) -> Option<Piece<'a>> {
    lock(queue).next()
}

/// Cuts all tensors into pieces of whole panels, each with its own part of `memory`.
fn cut<'a>(layout: &'a Layout, sources: &'a [Source], memory: &'a mut [u8]) -> Vec<Piece<'a>> {
    let mut pieces = Vec::new();
    let mut rest = memory;
    let mut at = 0;
    for (entry, source) in layout.entries.iter().zip(sources) {
        (_, rest) = rest.split_at_mut(entry.offset - at);
        at = entry.offset + entry.n_bytes();
        let panel_file_bytes = entry.panel_rows * entry.file_row_bytes();
        let step = (PIECE_BYTES / panel_file_bytes.max(1)).max(1);
        let n_rows = entry.spec.n_rows as usize;
        for panel in (0..entry.n_panels()).step_by(step) {
            let n_panels = step.min(entry.n_panels() - panel);
            let out;
            (out, rest) = rest.split_at_mut(n_panels * entry.panel_bytes);
            let first_row = panel * entry.panel_rows;
            let n_rows = (n_panels * entry.panel_rows).min(n_rows - first_row);
            pieces.push(Piece {
                entry,
                source,
                first_row,
                n_rows,
                out,
            });
        }
    }
    pieces
}

/// Reads one piece into `buffer` and packs it.
fn fill(piece: Piece<'_>, files: &[WeightFile], buffer: &mut Vec<u8>) -> Result<()> {
    let Piece {
        entry,
        source,
        first_row,
        n_rows,
        out,
    } = piece;
    let row_bytes = entry.file_row_bytes();
    buffer.resize(n_rows * row_bytes, 0);
    let file = &files[source.file];
    // An offset past all files is answered by the read.
    let offset = source.offset.saturating_add((first_row * row_bytes) as u64);
    file.file
        .read_exact_at(buffer, offset)
        .map_err(|source| Error::ReadWeights {
            tensor: entry.spec.name.clone(),
            path: file.path.clone(),
            source,
        })?;
    match entry.spec.role {
        Role::Matrix => pack_matrix(entry, first_row, n_rows, buffer, out),
        Role::Vector => decode_vector(entry.quant, &entry.spec.name, buffer, out),
    }
}

fn pack_matrix(
    entry: &Entry,
    first_row: usize,
    n_rows: usize,
    file_rows: &[u8],
    out: &mut [u8],
) -> Result<()> {
    let n_cols = entry.spec.n_cols as usize;
    let panels = out.chunks_mut(entry.panel_bytes);
    let sources = file_rows.chunks(entry.panel_rows * entry.file_row_bytes());
    for (i, (panel, source)) in panels.zip(sources).enumerate() {
        let at = i * entry.panel_rows;
        let rows = entry.panel_rows.min(n_rows - at);
        (entry.form.pack_panel)(entry.quant, source, rows, n_cols, entry.panel_rows, panel)
            .map_err(|bad| Error::NonFiniteWeight {
                tensor: entry.spec.name.clone(),
                row: first_row + at + bad.row,
                col: bad.col,
            })?;
    }
    Ok(())
}

fn decode_vector(quant: &QuantType, name: &str, file_row: &[u8], out: &mut [u8]) -> Result<()> {
    let mut values = vec![0.0; out.len() / size_of::<f32>()];
    quant.dequantize(file_row, &mut values);
    if let Some(col) = values.iter().position(|value| !value.is_finite()) {
        return Err(Error::NonFiniteWeight {
            tensor: name.into(),
            row: 0,
            col,
        });
    }
    for (bytes, value) in out.chunks_exact_mut(size_of::<f32>()).zip(values) {
        bytes.copy_from_slice(&value.to_ne_bytes());
    }
    Ok(())
}
