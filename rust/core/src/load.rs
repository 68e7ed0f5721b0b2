//! From file ranges to packed weights: every byte read once, by the workers, in parallel.
//!
//! Knows how to read and in which pieces; the layout of types and forms is theirs. Called by the
//! engine once, before the first pass.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockWriteGuard};

use crate::buffer::Home;
use crate::error::{Error, FirstError, Result};
use crate::memory::{FileRange, NodeArenas, PageKind, first_touch};
use crate::topology::NodeId;
use crate::weights::{Entry, Layout, Part, Role, Weights};
use crate::workers::{Control, Team, Workers};

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

/// What memory the weights get.
#[derive(Debug, Clone, Copy)]
pub struct Memory<'a> {
    /// The kernel's node of each node in use; `None` leaves it to the thread that touches first.
    pub kernel_nodes: &'a [Option<NodeId>],
    /// The best pages to try for.
    pub pages: PageKind,
    /// Where page pools are read.
    pub sysfs_root: &'a Path,
}

/// Some panels of one tensor, read at once.
struct Piece<'a> {
    entry: &'a Entry,
    source: &'a Source,
    panels: Range<usize>,
}

impl Piece<'_> {
    /// Its first row and how many.
    fn rows(&self) -> (usize, usize) {
        let first_row = self.panels.start * self.entry.panel_rows;
        let end_row = self.panels.end * self.entry.panel_rows;
        (
            first_row,
            end_row.min(self.entry.spec.n_rows as usize) - first_row,
        )
    }

    fn file_bytes(&self) -> u64 {
        (self.rows().1 * self.entry.file_row_bytes()) as u64
    }

    fn memory_bytes(&self) -> usize {
        self.panels.len() * self.entry.panel_bytes
    }
}

/// A piece that one node keeps.
struct Owned<'a> {
    piece: Piece<'a>,
    out: &'a mut [u8],
}

/// Pieces that workers take one by one.
struct Pieces<'a>(Mutex<std::vec::IntoIter<Owned<'a>>>);

impl<'a> Pieces<'a> {
    fn new(pieces: Vec<Owned<'a>>) -> Self {
        Self(Mutex::new(pieces.into_iter()))
    }

    /// The next one; the lock is held no longer than that.
    fn take(&self) -> Option<Owned<'a>> {
        let mut pieces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pieces.next()
    }
}

/// A piece that every node has a copy of: packed on one, copied by the others.
struct Mirrored<'a> {
    piece: Piece<'a>,
    copies: Vec<RwLock<&'a mut [u8]>>,
}

impl<'a> Mirrored<'a> {
    fn write(&self, node: usize) -> RwLockWriteGuard<'_, &'a mut [u8]> {
        self.copies[node]
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives `node` its copy of what `packed_on` packed.
    fn copy(&self, packed_on: usize, node: usize) {
        if node != packed_on {
            let from = self.copies[packed_on]
                .read()
                .unwrap_or_else(PoisonError::into_inner);
            self.write(node).copy_from_slice(&from);
        }
    }
}

/// Reads and packs all tensors of `layout`, each node's by its own workers.
///
/// A byte of the file is read once: what is mirrored is packed on one node and copied to the
/// others. `progress` gets the file bytes done so far, about twenty times a second, and may stop
/// the load.
///
/// # Errors
/// [`Error::OutOfMemory`] and what else arenas can meet with, before anything is read;
/// [`Error::ReadWeights`], [`Error::NonFiniteWeight`], [`Error::Interrupted`].
///
/// # Panics
/// If there is not one source a tensor, in one of the files.
pub fn load(
    layout: Layout,
    memory: &Memory<'_>,
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
    let mut arenas = NodeArenas::reserve("weights", &layout.node_bytes, memory.kernel_nodes)?;
    arenas.interleave(layout.interleaved.clone());
    let mapped = map_files(&layout, files, sources)?;
    arenas.commit(memory.pages, memory.sysfs_root)?;
    first_touch(&mut arenas, workers, &mut |_| progress(0))?;
    fill_arenas(&layout, &mut arenas, files, sources, workers, progress)?;
    Ok(Weights::new(arenas, layout, mapped))
}

/// Maps what stays in its file, after a look whether it is all there.
fn map_files(
    layout: &Layout,
    files: &[WeightFile],
    sources: &[Source],
) -> Result<Vec<Option<FileRange>>> {
    let map = |(entry, source): (&Entry, &Source)| {
        if !entry.is_mapped() {
            return Ok(None);
        }
        let file = &files[source.file];
        let range = FileRange::new(&file.file, source.offset, entry.file_bytes());
        range.map(Some).map_err(|source| Error::ReadWeights {
            tensor: entry.spec.name.clone(),
            path: file.path.clone(),
            source,
        })
    };
    layout.entries.iter().zip(sources).map(map).collect()
}

/// What the workers of a load share.
struct Loading<'a> {
    files: &'a [WeightFile],
    /// Pieces of each node's own, taken from the front.
    owned: Vec<Pieces<'a>>,
    /// Pieces that any node's workers take.
    shared: Pieces<'a>,
    mirrored: Vec<Mirrored<'a>>,
    failure: FirstError,
    done_bytes: AtomicU64,
}

impl Loading<'_> {
    /// One worker's part. Failures don't end it early: all workers meet at the barriers.
    ///
    /// A node has the arena of its number; those of nodes without workers are dealt round.
    fn work(&self, team: &Team<'_>) {
        let (node, n_nodes) = (team.node().0, team.n_nodes());
        let arenas: Vec<usize> = (node..self.owned.len()).step_by(n_nodes).collect();
        let mut buffer = Vec::new();
        let own = || arenas.iter().find_map(|&arena| self.owned[arena].take());
        let next = || own().or_else(|| self.shared.take());
        while let Some(Owned { piece, out }) = next() {
            self.fill(&piece, out, &mut buffer);
        }
        // Each node packs every n-th mirrored piece into its own copy.
        let n_own = self.mirrored.len().saturating_sub(node).div_ceil(n_nodes);
        if !team.barrier() {
            return;
        }
        while let Some(chunk) = team.next_chunk(n_own) {
            let mirrored = &self.mirrored[node + chunk * n_nodes];
            self.fill(&mirrored.piece, &mut mirrored.write(node), &mut buffer);
        }
        if !team.barrier() {
            return;
        }
        let n_mirrored = self.mirrored.len();
        while let Some(chunk) = team.next_chunk(n_mirrored * arenas.len()) {
            let nth = chunk % n_mirrored;
            self.mirrored[nth].copy(nth % n_nodes, arenas[chunk / n_mirrored]);
        }
    }

    /// Reads and packs a piece, unless the load has failed already.
    fn fill(&self, piece: &Piece<'_>, out: &mut [u8], buffer: &mut Vec<u8>) {
        if self.failure.is_set() {
            return;
        }
        match fill(piece, self.files, buffer, out) {
            Ok(()) => {
                self.done_bytes
                    .fetch_add(piece.file_bytes(), Ordering::Relaxed);
            }
            Err(error) => self.failure.report(error),
        }
    }
}

fn fill_arenas(
    layout: &Layout,
    arenas: &mut NodeArenas,
    files: &[WeightFile],
    sources: &[Source],
    workers: &Workers,
    progress: &mut dyn FnMut(u64) -> Control,
) -> Result<()> {
    let slices = arenas.as_mut_slices().into_iter();
    let (mirrored, owned): (Vec<_>, Vec<_>) = slices
        .map(|slice| slice.split_at_mut(layout.mirrored_bytes))
        .unzip();
    let mut owned = owned;
    let mut shared: &mut [u8] = &mut [];
    if !layout.interleaved.is_empty() {
        let own_bytes = layout.interleaved.start - layout.mirrored_bytes;
        (owned[0], shared) = std::mem::take(&mut owned[0]).split_at_mut(own_bytes);
    }
    let start = layout.mirrored_bytes;
    let owned = owned.into_iter().enumerate().map(|(node, memory)| {
        Pieces::new(cut_owned(layout, sources, Home::Node(node), start, memory))
    });
    let start = layout.interleaved.start;
    let shared = cut_owned(layout, sources, Home::Interleaved, start, shared);
    let loading = Loading {
        files,
        owned: owned.collect(),
        shared: Pieces::new(shared),
        mirrored: cut_mirrored(layout, sources, mirrored),
        failure: FirstError::default(),
        done_bytes: AtomicU64::new(0),
    };
    let done_bytes = || loading.done_bytes.load(Ordering::Relaxed);
    let mut poll = || {
        let failed = loading.failure.is_set();
        match progress(done_bytes()) {
            Control::Continue if !failed => Control::Continue,
            _ => Control::Cancel,
        }
    };
    let ran = workers.run(workers.n_threads(), &|team| loading.work(team), &mut poll);
    let done_bytes = done_bytes();
    loading.failure.into_result()?;
    ran?;
    progress(done_bytes);
    Ok(())
}

/// The pieces that a part is read in.
fn pieces<'a>(
    entry: &'a Entry,
    source: &'a Source,
    part: &'a Part,
) -> impl Iterator<Item = Piece<'a>> {
    let panel_file_bytes = entry.panel_rows * entry.file_row_bytes();
    let step = (PIECE_BYTES / panel_file_bytes.max(1)).max(1);
    let Range { start, end } = part.panels;
    (start..end).step_by(step).map(move |panel| Piece {
        entry,
        source,
        panels: panel..(panel + step).min(end),
    })
}

/// Cuts what has one home; `memory` begins at `start` of that home's arena.
fn cut_owned<'a>(
    layout: &'a Layout,
    sources: &'a [Source],
    home: Home,
    start: usize,
    mut memory: &'a mut [u8],
) -> Vec<Owned<'a>> {
    let mut cut = Vec::new();
    let mut at = start;
    for (entry, source) in layout.entries.iter().zip(sources) {
        for part in entry.parts.iter().filter(|part| part.home == home) {
            (_, memory) = memory.split_at_mut(part.offset - at);
            at = part.offset + part.panels.len() * entry.panel_bytes;
            for piece in pieces(entry, source, part) {
                let out;
                (out, memory) = memory.split_at_mut(piece.memory_bytes());
                cut.push(Owned { piece, out });
            }
        }
    }
    cut
}

/// Cuts what every node has; `memories` are the starts of the arenas.
fn cut_mirrored<'a>(
    layout: &'a Layout,
    sources: &'a [Source],
    mut memories: Vec<&'a mut [u8]>,
) -> Vec<Mirrored<'a>> {
    let mut take = |n_bytes: usize| -> Vec<&'a mut [u8]> {
        let taken = memories.iter_mut().map(|memory| {
            let (head, tail) = std::mem::take(memory).split_at_mut(n_bytes);
            *memory = tail;
            head
        });
        taken.collect()
    };
    let mut cut = Vec::new();
    let mut at = 0;
    for (entry, source) in layout.entries.iter().zip(sources) {
        for part in entry
            .parts
            .iter()
            .filter(|part| part.home == Home::EveryNode)
        {
            take(part.offset - at);
            at = part.offset + part.panels.len() * entry.panel_bytes;
            for piece in pieces(entry, source, part) {
                let copies = take(piece.memory_bytes())
                    .into_iter()
                    .map(RwLock::new)
                    .collect();
                cut.push(Mirrored { piece, copies });
            }
        }
    }
    cut
}

/// Reads one piece into `buffer` and packs it.
fn fill(
    piece: &Piece<'_>,
    files: &[WeightFile],
    buffer: &mut Vec<u8>,
    out: &mut [u8],
) -> Result<()> {
    let Piece { entry, source, .. } = *piece;
    let (first_row, n_rows) = piece.rows();
    let row_bytes = entry.file_row_bytes();
    buffer.resize(n_rows * row_bytes, 0);
    let file = &files[source.file];
    // An offset past all files is answered by the read.
    let offset = source.offset.saturating_add((first_row * row_bytes) as u64);
    let read = file.file.read_exact_at(buffer, offset);
    read.map_err(|source| Error::ReadWeights {
        tensor: entry.spec.name.clone(),
        path: file.path.clone(),
        source,
    })?;
    match entry.spec.role {
        Role::Matrix => {
            let sources = buffer.chunks(entry.panel_rows * row_bytes);
            let panels = out.chunks_mut(entry.panel_bytes).zip(sources);
            let mut numbered = piece.panels.clone().zip(panels);
            numbered.try_for_each(|(i, (panel, source))| entry.pack_panel(i, source, panel))
        }
        Role::Vector => decode_vector(entry, buffer, out),
    }
}

fn decode_vector(entry: &Entry, file_row: &[u8], out: &mut [u8]) -> Result<()> {
    let mut values = vec![0.0; out.len() / size_of::<f32>()];
    entry.quant.dequantize(file_row, &mut values);
    if let Some(col) = values.iter().position(|value| !value.is_finite()) {
        return Err(entry.bad(0, col));
    }
    for (bytes, value) in out.chunks_exact_mut(size_of::<f32>()).zip(values) {
        bytes.copy_from_slice(&value.to_ne_bytes());
    }
    Ok(())
}
