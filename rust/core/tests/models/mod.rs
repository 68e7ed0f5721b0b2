//! Small models for tests: programs as JSON, random weights for them, executors that run them.
#![allow(dead_code, reason = "each test file uses its part")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

pub(crate) mod reference;

use std::fs::{self, File};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use half::{bf16, f16};
use numamirror_core::batch::BatchItem;
use numamirror_core::buffer::Buffer;
use numamirror_core::error::{Error, Result};
use numamirror_core::exec::{ExecOptions, Executor};
use numamirror_core::isa::{self, Isa};
use numamirror_core::load::{Memory, Source, WeightFile, load};
use numamirror_core::memory::PageKind;
use numamirror_core::program::Program;
use numamirror_core::quant;
use numamirror_core::state::{CacheType, StateLimits};
use numamirror_core::sys;
use numamirror_core::topology::{CpuId, NodeId, spread_pins};
use numamirror_core::weights::{Layout, Role};
use numamirror_core::workers::{Control, Workers};
use serde_json::{Value, json};

/// A small generator (`xorshift64*`), the same on every machine.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn bits(&mut self) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) as u32
    }

    /// A value in [-1, 1).
    pub(crate) fn unit(&mut self) -> f32 {
        (self.bits() >> 8) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(crate) fn tokens(&mut self, n_tokens: usize, n_vocab: u32) -> Vec<u32> {
        (0..n_tokens).map(|_| self.bits() % n_vocab).collect()
    }
}

/// Sizes of a small llama.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dims {
    pub(crate) n_vocab: u32,
    pub(crate) n_embd: u32,
    pub(crate) n_head: u32,
    pub(crate) n_head_kv: u32,
    pub(crate) head_dim: u32,
    pub(crate) n_ff: u32,
    pub(crate) n_layers: usize,
    pub(crate) matrix_type: &'static str,
    pub(crate) rope_style: &'static str,
}

pub(crate) const TINY: Dims = Dims {
    n_vocab: 41,
    n_embd: 64,
    n_head: 4,
    n_head_kv: 2,
    head_dim: 16,
    n_ff: 96,
    n_layers: 1,
    matrix_type: "F32",
    rope_style: "interleaved",
};

/// Factor on cosines and sines.
pub(crate) const MAGNITUDE: f64 = 1.25;

/// Rotated pairs of a head, of 8 that there are.
pub(crate) const FREQUENCIES: [f64; 6] = [1.0, 0.5, 0.25, 0.1, 0.01, 0.001];

/// A program under construction.
#[derive(Default)]
pub(crate) struct Builder {
    tensors: Vec<Value>,
    slots: Vec<Value>,
    caches: Vec<Value>,
    steps: Vec<Value>,
}

impl Builder {
    pub(crate) fn tensor(&mut self, name: &str, kind: &str, n_rows: u32, n_cols: u32) -> usize {
        let mut vectors = ["norm", "bias", "rope_freqs"].into_iter();
        let role = if vectors.any(|end| name.ends_with(end)) {
            "vector"
        } else {
            "matrix"
        };
        self.tensors.push(
            json!({"name": name, "type": kind, "n_rows": n_rows, "n_cols": n_cols, "role": role}),
        );
        self.tensors.len() - 1
    }

    pub(crate) fn slot(&mut self, width: u32, rows: &str) -> usize {
        self.slots.push(json!({"width": width, "rows": rows}));
        self.slots.len() - 1
    }

    pub(crate) fn cache(&mut self, n_head_kv: u32, k_dim: u32, v_dim: u32) -> usize {
        let cache = json!({"n_head_kv": n_head_kv, "k_dim": k_dim, "v_dim": v_dim});
        self.caches.push(cache);
        self.caches.len() - 1
    }

    pub(crate) fn step(&mut self, label: &str, op: &Value) {
        self.steps.push(json!({"label": label, "op": op}));
    }

    /// `rms_norm` of `input` with a weight of its own.
    pub(crate) fn norm(&mut self, name: &str, input: usize, width: u32, rows: &str) -> usize {
        let (weight, out) = (self.tensor(name, "F32", 1, width), self.slot(width, rows));
        let op = json!({"input": input, "weight": weight, "out": out, "eps": 1e-5});
        self.step(name, &json!({ "rms_norm": op }));
        out
    }

    pub(crate) fn add(&mut self, label: &str, a: usize, b: usize, width: u32) -> usize {
        let out = self.slot(width, "tokens");
        self.step(label, &json!({"add": {"a": a, "b": b, "out": out}}));
        out
    }

    pub(crate) fn linear(&mut self, label: &str, input: usize, products: &[Value]) {
        let op = json!({"input": input, "products": products});
        self.step(label, &json!({ "linear": op }));
    }

    /// One product with a new weight and slot.
    pub(crate) fn product(
        &mut self,
        name: &str,
        dims: &Dims,
        n_out: u32,
        n_in: u32,
    ) -> (Value, usize) {
        let weight = self.tensor(name, dims.matrix_type, n_out, n_in);
        let out = self.slot(n_out, "tokens");
        (json!({"weight": weight, "out": out}), out)
    }

    pub(crate) fn finish(self, logits: usize) -> Value {
        json!({"tensors": self.tensors, "slots": self.slots, "caches": self.caches,
               "steps": self.steps, "logits": logits})
    }
}

/// A dense llama with a bias on its queries, factors on its rotary frequencies and the embedding
/// as output projection.
pub(crate) fn llama(dims: &Dims) -> Value {
    let mut b = Builder::default();
    let (n_embd, n_pairs) = (dims.n_embd, FREQUENCIES.len() as u32);
    let angles = b.slot(2 * n_pairs, "tokens");
    let op = json!({"frequencies": FREQUENCIES, "magnitude": MAGNITUDE, "out": angles});
    b.step("rope", &json!({ "rope_angles": op }));
    let table = b.tensor("token_embd", dims.matrix_type, dims.n_vocab, n_embd);
    let mut x = b.slot(n_embd, "tokens");
    b.step("token_embd", &json!({"embed": {"table": table, "out": x}}));
    for layer in 0..dims.n_layers {
        x = attention_block(&mut b, dims, layer, x, angles);
        x = feed_forward(&mut b, dims, layer, x);
    }
    let last = b.slot(n_embd, "outputs");
    b.step("select", &json!({"select": {"input": x, "out": last}}));
    let normed = b.norm("output_norm", last, n_embd, "outputs");
    let logits = b.slot(dims.n_vocab, "outputs");
    b.linear("output", normed, &[json!({"weight": table, "out": logits})]);
    let factors = b.tensor("rope_freqs", "F32", 1, n_pairs);
    b.steps[0]["op"]["rope_angles"]["factors"] = json!(factors);
    b.finish(logits)
}

fn attention_block(b: &mut Builder, dims: &Dims, layer: usize, x: usize, angles: usize) -> usize {
    let (n_embd, head_dim) = (dims.n_embd, dims.head_dim);
    let name = |part: &str| format!("blk.{layer}.{part}");
    let (q_width, kv_width) = (dims.n_head * head_dim, dims.n_head_kv * head_dim);
    let normed = b.norm(&name("attn_norm"), x, n_embd, "tokens");
    let (mut for_q, q) = b.product(&name("attn_q"), dims, q_width, n_embd);
    let (for_k, k) = b.product(&name("attn_k"), dims, kv_width, n_embd);
    let (for_v, v) = b.product(&name("attn_v"), dims, kv_width, n_embd);
    for_q["bias"] = json!(b.tensor(&name("attn_q.bias"), "F32", 1, q_width));
    b.linear(&name("attn_qkv"), normed, &[for_q, for_k, for_v]);
    for (label, data) in [("rope_q", q), ("rope_k", k)] {
        let op = json!({"data": data, "angles": angles, "head_dim": head_dim,
                        "style": dims.rope_style});
        b.step(&name(label), &json!({ "rope": op }));
    }
    let cache = b.cache(dims.n_head_kv, head_dim, head_dim);
    let out = b.slot(q_width, "tokens");
    let op = json!({"q": q, "k": k, "v": v, "out": out, "cache": cache, "n_head": dims.n_head,
                    "k_dim": head_dim, "v_dim": head_dim, "scale": 0.25});
    b.step(&name("attention"), &json!({ "attention": op }));
    let (product, o) = b.product(&name("attn_output"), dims, n_embd, q_width);
    b.linear(&name("attn_output"), out, &[product]);
    b.add(&name("attn_residual"), x, o, n_embd)
}

fn feed_forward(b: &mut Builder, dims: &Dims, layer: usize, x: usize) -> usize {
    let (n_embd, n_ff) = (dims.n_embd, dims.n_ff);
    let name = |part: &str| format!("blk.{layer}.{part}");
    let normed = b.norm(&name("ffn_norm"), x, n_embd, "tokens");
    let (for_gate, gate) = b.product(&name("ffn_gate"), dims, n_ff, n_embd);
    let (for_up, up) = b.product(&name("ffn_up"), dims, n_ff, n_embd);
    b.linear(&name("ffn_gate_up"), normed, &[for_gate, for_up]);
    let act = b.slot(n_ff, "tokens");
    let op = json!({"gate": gate, "up": up, "out": act});
    b.step(&name("ffn_act"), &json!({ "swiglu": op }));
    let (product, down) = b.product(&name("ffn_down"), dims, n_embd, n_ff);
    b.linear(&name("ffn_down"), act, &[product]);
    b.add(&name("ffn_residual"), x, down, n_embd)
}

/// Random rows of a type, as a file holds them, of size about 1 / sqrt(`n_cols`).
pub(crate) fn random_rows(
    kind: &str,
    n_rows: usize,
    n_cols: usize,
    random: &mut Random,
) -> Vec<u8> {
    let quant = quant::by_name(kind).unwrap();
    let size = 1.7 / (n_cols as f32).sqrt();
    let mut bytes = Vec::new();
    for _ in 0..n_rows * n_cols / quant.block_elems {
        let value = random.unit() * size;
        let scale = |most: f32| f16::from_f32(value / most).to_le_bytes();
        match kind {
            "F32" => bytes.extend(value.to_le_bytes()),
            "F16" => bytes.extend(f16::from_f32(value).to_le_bytes()),
            "BF16" => bytes.extend(bf16::from_f32(value).to_le_bytes()),
            "Q8_0" => bytes.extend(scale(127.0)),
            "Q4_0" => bytes.extend(scale(8.0)),
            "Q4_1" => bytes.extend([scale(8.0), scale(-1.0)].concat()),
            _ => panic!("no random rows of {kind}"),
        }
        let whole = bytes.len().next_multiple_of(quant.block_bytes);
        bytes.resize_with(whole, || random.bits() as u8);
    }
    bytes
}

/// Random data for each tensor of a program; vectors lie around 1.
pub(crate) fn random_data(program: &Program, seed: u64) -> Vec<Vec<u8>> {
    let random = &mut Random(seed);
    let mut data = Vec::new();
    for spec in program.tensors() {
        let (n_rows, n_cols) = (spec.n_rows as usize, spec.n_cols as usize);
        data.push(if spec.role == Role::Vector {
            let values = (0..n_cols).map(|_| 1.0 + 0.5 * random.unit());
            values.flat_map(f32::to_le_bytes).collect()
        } else {
            random_rows(&spec.type_name, n_rows, n_cols, random)
        });
    }
    data
}

/// A file with these bytes that nobody else sees.
pub(crate) fn file(bytes: &[u8]) -> WeightFile {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!(
        "numamirror-{}-{}",
        std::process::id(),
        NEXT.fetch_add(1, Relaxed)
    );
    let path = std::env::temp_dir().join(name);
    fs::write(&path, bytes).unwrap();
    let mut options = File::options();
    let file = options.read(true).write(true).open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    WeightFile {
        path: path.display().to_string(),
        file,
    }
}

/// Workers dealt to pretended nodes of the sizes given, round and round the CPUs there are.
pub(crate) fn workers(node_sizes: &[usize]) -> Workers {
    let cpus = sys::affinity().unwrap();
    let mut next = cpus.iter().copied().cycle().map(CpuId);
    let of_node = |&size: &usize| next.by_ref().take(size).collect();
    let cpus_of_node: Vec<Vec<CpuId>> = node_sizes.iter().map(of_node).collect();
    Workers::new(&spread_pins(&cpus_of_node)).unwrap()
}

/// How a program is run.
#[derive(Clone, Copy)]
pub(crate) struct How {
    pub(crate) isa: &'static Isa,
    /// Workers on each pretended node.
    pub(crate) nodes: &'static [usize],
    /// Workers of a pass of one token; all when there are no more.
    pub(crate) n_threads: usize,
    pub(crate) max_rows: usize,
    pub(crate) n_ctx: usize,
    pub(crate) n_parallel: usize,
    pub(crate) cache: CacheType,
    /// Buffers of the tensors, over and over.
    pub(crate) buffers: &'static [&'static str],
}

/// Memory that is bound to no node.
pub(crate) fn anywhere(n_nodes: usize) -> Memory<'static> {
    static NOWHERE: [Option<NodeId>; 8] = [None; 8];
    Memory {
        kernel_nodes: &NOWHERE[..n_nodes],
        pages: PageKind::Transparent,
        sysfs_root: Path::new("/sys"),
    }
}

/// As simple as can be.
pub(crate) fn plainly() -> How {
    How {
        isa: isa::choose(None).unwrap(),
        nodes: &[1],
        n_threads: usize::MAX,
        max_rows: 512,
        n_ctx: 512,
        n_parallel: 4,
        cache: CacheType::F16,
        buffers: &["SPLIT"],
    }
}

/// An executor of a program with this data for its tensors.
pub(crate) fn executor(program: &Program, data: &[Vec<u8>], how: &How) -> Result<Executor> {
    executor_with(program, program, data, how)
}

/// The same with the weights of `weights_of`.
pub(crate) fn executor_with(
    program: &Program,
    weights_of: &Program,
    data: &[Vec<u8>],
    how: &How,
) -> Result<Executor> {
    let workers = workers(how.nodes);
    let mut sources = Vec::new();
    let mut offset = 0;
    for tensor in data {
        sources.push(Source { file: 0, offset });
        offset += tensor.len() as u64;
    }
    let n_nodes = how.nodes.len();
    let name_of = |tensor: usize| how.buffers[tensor % how.buffers.len()];
    let buffers: Result<Vec<Buffer>> = (0..weights_of.tensors().len())
        .map(|i| Buffer::by_name(name_of(i), n_nodes))
        .collect();
    let layout = Layout::on_nodes(weights_of.tensors(), &buffers?, how.nodes, how.isa)?;
    let files = [file(&data.concat())];
    let weights = load(
        layout,
        &anywhere(n_nodes),
        &files,
        &sources,
        &workers,
        &mut |_| Control::Continue,
    )?;
    let options = ExecOptions {
        max_rows: how.max_rows,
        n_threads: how.n_threads.min(workers.n_threads()),
        n_threads_batch: workers.n_threads(),
        state: StateLimits {
            n_ctx: how.n_ctx,
            n_parallel: how.n_parallel,
            k_type: how.cache,
            v_type: how.cache,
        },
    };
    Executor::new(
        program.clone(),
        weights,
        workers,
        how.isa,
        options,
        &anywhere(n_nodes),
        &mut || Control::Continue,
    )
}

/// Items for consecutive tokens of a sequence that all want logits.
pub(crate) fn items(sequence: u32, first_position: usize, tokens: &[u32]) -> Vec<BatchItem> {
    let positions = first_position as u32..;
    let items = positions.zip(tokens).map(|(position, &token)| BatchItem {
        sequence,
        position,
        token,
        wants_logits: true,
    });
    items.collect()
}

/// One pass; the bits of its logits.
pub(crate) fn forward(executor: &mut Executor, items: &[BatchItem]) -> Result<Vec<u32>> {
    executor.forward(items, &mut || Control::Continue)?;
    Ok(executor.logits().iter().map(|x| x.to_bits()).collect())
}

/// The place and problem of a refused program.
pub(crate) fn refusal(program: &Value) -> (String, String) {
    match Program::from_json(&program.to_string()) {
        Err(Error::BadProgram { place, problem }) => (place, problem),
        other => panic!("expected a refused program, got {other:?}"),
    }
}
