//! The model of the poison tests: its program, its healthy weights, its workers.

use std::fs::{self, File};
use std::path::Path;

use serde_json::{Value, json};

use super::{HEALTHY, N_ROWS, N_VOCAB};
use crate::buffer::Buffer;
use crate::isa::Isa;
use crate::load::{Memory, Source, WeightFile, load};
use crate::memory::PageKind;
use crate::program::Program;
use crate::quant::QuantType;
use crate::sys;
use crate::topology::{CpuId, NodeId, spread_pins};
use crate::weights::{Layout, Weights};
use crate::workers::{Control, Workers};

/// A program with a norm and, for each buffer, an embedding and a product; the buffer, by index,
/// of each tensor.
pub(super) fn program_of(quant: &QuantType, buffers: &[String]) -> (Value, Vec<usize>) {
    let (n_cols, n_buffers) = (quant.block_elems.max(64), buffers.len());
    let matrix = |name: &str, n_rows| {
        json!({"name": name, "type": quant.name, "n_rows": n_rows,
               "n_cols": n_cols, "role": "matrix"})
    };
    let vector = |name: &str, len| json!({"name": name, "type": "F32", "n_rows": 1, "n_cols": len, "role": "vector"});
    let slot = |width, rows: &str| json!({"width": width, "rows": rows});
    let mut tensors = vec![vector("norm", n_cols)];
    let mut slots = vec![slot(n_cols, "tokens"), slot(N_ROWS, "outputs")];
    let mut steps = Vec::new();
    let (mut products, mut of_tensor) = (Vec::new(), vec![0]);
    for (i, name) in buffers.iter().enumerate() {
        let id = tensors.len();
        tensors.extend([
            matrix(&format!("table {name}"), N_VOCAB),
            matrix(name, N_ROWS),
            vector("bias", N_ROWS),
        ]);
        of_tensor.extend([i; 3]);
        let out = slots.len();
        slots.extend([slot(n_cols, "tokens"), slot(N_ROWS, "tokens")]);
        steps.push(json!({"embed": {"table": id, "out": out}}));
        products.push(json!({"weight": id + 1, "bias": id + 2, "out": out + 1}));
    }
    steps.push(json!({"rms_norm": {"input": 2, "weight": 0, "out": 0, "eps": 1e-5}}));
    steps.push(json!({"linear": {"input": 0, "products": products}}));
    steps.push(json!({"select": {"input": 3, "out": 1}}));
    let steps: Vec<_> = steps
        .into_iter()
        .map(|op| json!({"label": "", "op": op}))
        .collect();
    assert_eq!(steps.len(), n_buffers + 3);
    let program = json!({"tensors": tensors, "slots": slots, "caches": [], "steps": steps,
                         "logits": 1});
    (program, of_tensor)
}

/// A file of healthy numbers: every tensor is read from its start.
fn healthy_file(n_bytes: usize) -> WeightFile {
    let name = format!(
        "numamirror-poison-{:?}-{}",
        std::thread::current().id(),
        std::process::id()
    );
    let path = std::env::temp_dir().join(name);
    fs::write(&path, vec![HEALTHY; n_bytes]).unwrap();
    let file = File::open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    WeightFile {
        path: path.display().to_string(),
        file,
    }
}

/// Workers dealt to pretended nodes of the sizes given.
pub(super) fn workers(pool: &[usize]) -> Workers {
    let cpus = sys::affinity().unwrap();
    let mut next = cpus.iter().copied().cycle().map(CpuId);
    let of_node = |&size: &usize| next.by_ref().take(size).collect();
    let cpus_of_node: Vec<Vec<CpuId>> = pool.iter().map(of_node).collect();
    Workers::new(&spread_pins(&cpus_of_node)).unwrap()
}

/// Memory that is bound to no node.
pub(super) fn anywhere(n_nodes: usize) -> Memory<'static> {
    static NOWHERE: [Option<NodeId>; 8] = [None; 8];
    Memory {
        kernel_nodes: &NOWHERE[..n_nodes],
        pages: PageKind::Transparent,
        sysfs_root: Path::new("/sys"),
    }
}

/// The weights of a program, all numbers healthy.
pub(super) fn load_healthy(
    program: &Program,
    buffers: &[Buffer],
    shares: &[usize],
    isa: &Isa,
    workers: &Workers,
) -> Weights {
    let layout = Layout::on_nodes(program.tensors(), buffers, shares, isa).unwrap();
    let entries = layout.entries().iter();
    let longest = entries
        .map(|it| it.file_row_bytes() * it.spec.n_rows as usize)
        .max();
    let files = [healthy_file(longest.unwrap())];
    let sources = vec![Source { file: 0, offset: 0 }; buffers.len()];
    let memory = anywhere(shares.len());
    let go_on = &mut |_| Control::Continue;
    load(layout, &memory, &files, &sources, workers, go_on).unwrap()
}
