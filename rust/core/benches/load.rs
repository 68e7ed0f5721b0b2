//! Speed of loading, packing included, next to a plain copy of the same file by the same workers.
//!
//! A file of 1 GiB of one type, in the page cache, is loaded as matrices; the copy is `memcpy` from
//! a mapping of the file into fresh memory with the same kind of pages, first touch included. GB/s
//! are bytes of the file; the best of a few repeats, copy and load in turn.
//!
//! `cargo bench -p numamirror-core --bench load [-- [TYPE] [N_REPEATS]]`; asserts nothing.
#![expect(unsafe_code, reason = "maps the file and copies into arenas")]
#![expect(clippy::print_stdout, reason = "a benchmark's table is its output")]
#![expect(clippy::unwrap_used, reason = "a benchmark may end on any error")]

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use numamirror_core::buffer::Buffer;
use numamirror_core::isa;
use numamirror_core::load::{Memory, Source, WeightFile, load};
use numamirror_core::memory::{NodeArenas, PageKind};
use numamirror_core::quant;
use numamirror_core::sys;
use numamirror_core::topology::{CpuId, spread_pins};
use numamirror_core::weights::{Layout, Role, TensorSpec};
use numamirror_core::workers::{Control, Team, Workers};

const FILE_BYTES: usize = 1 << 30;
const N_COLS: usize = 2048;
const N_TENSORS: usize = 16;
/// Bytes that are a finite number in every type.
const PATTERN: [u8; 4] = [0x11, 0x22, 0x13, 0x24];
/// Bytes that a worker copies at a time.
const COPY_BYTES: usize = 2 << 20;
const TYPES: [&str; 3] = ["Q8_0", "Q4_1", "F16"];

fn main() {
    let args: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with("--"))
        .collect();
    let only = args.iter().find(|a| a.parse::<usize>().is_err());
    let n_repeats = args.iter().find_map(|a| a.parse().ok()).unwrap_or(3);
    println!("type  workers  nodes  buffer   load GB/s  copy GB/s  load / copy");
    for name in TYPES {
        if only.is_some_and(|only| only != name) {
            continue;
        }
        let model = Model::new(name);
        for (nodes, buffer) in [
            (&[1][..], "SPLIT"),
            (&[2], "SPLIT"),
            (&[1, 1], "SPLIT"),
            (&[1, 1], "MIRROR"),
        ] {
            row(&model, nodes, buffer, n_repeats);
        }
    }
}

/// Measures one line of the table and prints it.
fn row(model: &Model, nodes: &[usize], buffer: &str, n_repeats: usize) {
    let workers = workers(nodes);
    let (mut loaded, mut copied) = (0.0_f64, 0.0_f64);
    for _ in 0..n_repeats {
        copied = copied.max(model.copy(&workers));
        loaded = loaded.max(model.load(nodes, buffer, &workers));
    }
    println!(
        "{:4} {:8} {:6}  {buffer:6} {loaded:11.2} {copied:10.2} {:12.2}",
        model.specs[0].type_name,
        workers.n_threads(),
        nodes.len(),
        loaded / copied
    );
}

/// A file and what lies in it.
struct Model {
    specs: Vec<TensorSpec>,
    sources: Vec<Source>,
    files: [WeightFile; 1],
    n_bytes: usize,
}

impl Model {
    fn new(type_name: &str) -> Self {
        let row_bytes = quant::by_name(type_name).unwrap().row_bytes(N_COLS);
        let n_rows = FILE_BYTES / N_TENSORS / row_bytes;
        let spec = |i| TensorSpec {
            name: format!("tensor {i}"),
            type_name: type_name.into(),
            n_rows: n_rows as u32,
            n_cols: N_COLS as u32,
            role: Role::Matrix,
        };
        let source = |i| Source {
            file: 0,
            offset: (i * n_rows * row_bytes) as u64,
        };
        let n_bytes = N_TENSORS * n_rows * row_bytes;
        Self {
            specs: (0..N_TENSORS).map(spec).collect(),
            sources: (0..N_TENSORS).map(source).collect(),
            files: [made_up_file(n_bytes)],
            n_bytes,
        }
    }

    /// GB/s of a load; freeing is not part of it.
    fn load(&self, nodes: &[usize], buffer: &str, workers: &Workers) -> f64 {
        let isa = isa::choose(None).unwrap();
        let buffers = vec![Buffer::by_name(buffer, nodes.len()).unwrap(); self.specs.len()];
        let layout = Layout::on_nodes(&self.specs, &buffers, nodes, isa).unwrap();
        let memory = Memory {
            kernel_nodes: &vec![None; nodes.len()],
            pages: PageKind::Transparent,
            sysfs_root: Path::new("/sys"),
        };
        let (files, sources) = (&self.files, &self.sources);
        let go_on = &mut |_| Control::Continue;
        let start = Instant::now();
        let weights = load(layout, &memory, files, sources, workers, go_on).unwrap();
        let seconds = start.elapsed().as_secs_f64();
        drop(weights);
        self.n_bytes as f64 / seconds / 1e9
    }

    /// GB/s of a copy into one fresh arena.
    fn copy(&self, workers: &Workers) -> f64 {
        let start = Instant::now();
        let mapped = Mapped::new(&self.files[0].file, self.n_bytes);
        let mut arenas = NodeArenas::reserve("copy", &[self.n_bytes], &[None]).unwrap();
        arenas
            .commit(PageKind::Transparent, Path::new("/sys"))
            .unwrap();
        let to = arenas.as_mut_slices().remove(0).chunks_mut(COPY_BYTES);
        let pieces = Mutex::new(to.zip(mapped.bytes().chunks(COPY_BYTES)));
        let job = |_: &Team<'_>| {
            let next = || pieces.lock().unwrap().next();
            while let Some((to, from)) = next() {
                to.copy_from_slice(from);
            }
        };
        let go_on = &mut || Control::Continue;
        workers.run(workers.n_threads(), &job, go_on).unwrap();
        let seconds = start.elapsed().as_secs_f64();
        self.n_bytes as f64 / seconds / 1e9
    }
}

/// A file mapped for reading.
struct Mapped {
    start: *mut libc::c_void,
    n_bytes: usize,
}

impl Mapped {
    fn new(file: &File, n_bytes: usize) -> Self {
        let (read, private) = (libc::PROT_READ, libc::MAP_PRIVATE);
        let nowhere = std::ptr::null_mut();
        // SAFETY: a new mapping; the file is ours and keeps its length.
        let start = unsafe { libc::mmap(nowhere, n_bytes, read, private, file.as_raw_fd(), 0) };
        assert_ne!(start, libc::MAP_FAILED);
        Self { start, n_bytes }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: mapped until self is dropped.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.n_bytes) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `new`; borrows of it have ended.
        unsafe { libc::munmap(self.start, self.n_bytes) };
    }
}

/// A file of finite numbers that nobody else sees, just written and so in the page cache.
fn made_up_file(n_bytes: usize) -> WeightFile {
    let path = std::env::temp_dir().join(format!("numamirror-load-{}", std::process::id()));
    let mut options = File::options();
    let mut file = options
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    fs::remove_file(&path).unwrap();
    let piece = PATTERN.repeat(1 << 18);
    let mut left = n_bytes;
    while left > 0 {
        let n_piece = left.min(piece.len());
        file.write_all(&piece[..n_piece]).unwrap();
        left -= n_piece;
    }
    WeightFile {
        path: path.display().to_string(),
        file,
    }
}

/// Workers dealt to pretended nodes of the sizes given, round and round the CPUs there are.
fn workers(node_sizes: &[usize]) -> Workers {
    let cpus = sys::affinity().unwrap();
    let mut next = cpus.iter().copied().cycle().map(CpuId);
    let of_node = |&size: &usize| next.by_ref().take(size).collect();
    let cpus_of_node: Vec<Vec<CpuId>> = node_sizes.iter().map(of_node).collect();
    Workers::new(&spread_pins(&cpus_of_node)).unwrap()
}
