//! Who reads what, proven by poison: NaN in one node's memory shows in what was computed from it.
//!
//! One op runs at a time, by the executor's own walk, so that nothing spreads and nobody looks at
//! logits. Three questions, each asked with bytes of ones, which are NaN in every type:
//!
//! - *whose memory* an output comes from: a node's copy or rows of the matrix are poisoned;
//! - *whose workers* computed it: a node's copy of the bias is poisoned (or of the norm's weight);
//! - *who reads afar*: what a worker reads of a matrix in another node's memory is poison.

mod model;

use self::model::{anywhere, load_healthy, program_of, workers};
use super::{ExecOptions, Executor};
use crate::arena::SlotId;
use crate::batch::BatchItem;
use crate::buffer::Buffer;
use crate::isa::{self, Isa};
use crate::program::Program;
use crate::quant::{self, QuantType};
use crate::state::{CacheType, StateLimits};
use crate::weights::{Role, TensorId};
use crate::workers::{Control, NodeIndex};

/// NaN in every type, as a scale or as a number.
const POISON: u8 = 0xff;

/// A finite number in every type.
const HEALTHY: u8 = 0x11;

/// Rows of each matrix: no whole number of panels, more than one tile.
const N_ROWS: usize = 75;

/// Rows of the embedding table.
const N_VOCAB: usize = 150;

/// Tokens of a prompt: more than one tile, no whole number of them.
const N_TOKENS: usize = 66;

/// The norm's tiles have this many rows.
const NORM_ROWS: usize = 4;

/// Threads of one run.
struct Setting {
    /// Of the pool, by node.
    pool: &'static [usize],
    /// Decode threads that rows were dealt by.
    shares: &'static [usize],
    /// Taking part in a pass of one token, by node.
    decode: &'static [usize],
    /// Taking part in a pass of more, by node.
    batch: &'static [usize],
}

const SETTINGS: [Setting; 5] = [
    Setting {
        pool: &[1, 1],
        shares: &[1, 1],
        decode: &[1, 1],
        batch: &[1, 1],
    },
    Setting {
        pool: &[3, 1],
        shares: &[3, 1],
        decode: &[3, 1],
        batch: &[2, 1],
    },
    Setting {
        pool: &[2, 1, 1],
        shares: &[1, 1, 1],
        decode: &[1, 1, 1],
        batch: &[2, 1, 1],
    },
    // Node 1 owns rows and has no worker in a decode pass.
    Setting {
        pool: &[2, 2],
        shares: &[1, 1],
        decode: &[1],
        batch: &[2, 2],
    },
    // Node 2 owns rows and has no worker in a prompt.
    Setting {
        pool: &[2, 2, 1],
        shares: &[2, 2, 1],
        decode: &[2, 2, 1],
        batch: &[1, 1],
    },
];

/// The node that each of `n_units` falls to, dealt in proportion to threads, in order.
fn dealt(n_units: usize, threads: &[usize]) -> Vec<usize> {
    let n_threads: usize = threads.iter().sum();
    let mut nodes = Vec::new();
    for (node, _) in threads.iter().enumerate() {
        let up_to: usize = threads[..=node].iter().sum();
        nodes.resize(n_units * up_to / n_threads, node);
    }
    nodes
}

/// A matrix of the model and its buffer, as the test understands it.
struct Matrix {
    buffer: String,
    id: TensorId,
    bias: TensorId,
    out: SlotId,
}

impl Matrix {
    /// The node in whose memory each panel lies; `None`: in everybody's.
    fn homes(&self, n_panels: usize, shares: &[usize]) -> Option<Vec<usize>> {
        match self.buffer.as_str() {
            "MIRROR" => None,
            "SPLIT" => Some(dealt(n_panels, shares)),
            node => Some(vec![
                node.trim_start_matches("NODE").parse().unwrap();
                n_panels
            ]),
        }
    }

    /// The node whose workers compute each panel in a run with these threads. The panels of each
    /// node that has none are dealt among those that have.
    fn workers(&self, n_panels: usize, shares: &[usize], threads: &[usize]) -> Vec<usize> {
        let Some(homes) = self.homes(n_panels, shares) else {
            return dealt(n_panels, threads);
        };
        let mut workers = homes.clone();
        for home in threads.len()..shares.len() {
            let of_home = workers.iter_mut().filter(|worker| **worker == home);
            let n_of_home = homes.iter().filter(|&&it| it == home).count();
            for (worker, node) in of_home.zip(dealt(n_of_home, threads)) {
                *worker = node;
            }
        }
        workers
    }
}

/// Sizes for the passes of these tests.
fn options(setting: &Setting) -> ExecOptions {
    ExecOptions {
        max_rows: N_TOKENS,
        n_threads: setting.decode.iter().sum(),
        n_threads_batch: setting.batch.iter().sum(),
        state: StateLimits {
            n_ctx: 2 * N_TOKENS,
            n_parallel: 1,
            k_type: CacheType::F16,
            v_type: CacheType::F16,
        },
    }
}

/// A model with one op of each kind that reads weights.
struct Model {
    executor: Executor,
    matrices: Vec<Matrix>,
    /// Embedding tables with their buffers and slots.
    tables: Vec<(String, TensorId, SlotId)>,
    norm: TensorId,
    normed: SlotId,
    setting: &'static Setting,
    panel_rows: usize,
}

impl Model {
    fn new(quant: &QuantType, isa: &'static Isa, setting: &'static Setting) -> Self {
        let n_nodes = setting.pool.len();
        let mut buffers = vec!["SPLIT".to_owned(), "MIRROR".to_owned()];
        buffers.extend((0..n_nodes).map(|node| format!("NODE{node}")));
        let (program, of_tensor) = program_of(quant, &buffers);
        let program = Program::from_json(&program.to_string()).unwrap();
        let chosen = program.tensors().iter().zip(&of_tensor);
        let chosen = chosen.map(|(spec, &i)| match spec.role {
            Role::Matrix => Buffer::by_name(&buffers[i], n_nodes).unwrap(),
            Role::Vector => Buffer::mirror(),
        });
        let chosen: Vec<_> = chosen.collect();
        let workers = workers(setting.pool);
        let weights = load_healthy(&program, &chosen, setting.shares, isa, &workers);
        let poll = &mut || Control::Continue;
        let options = options(setting);
        let memory = &anywhere(n_nodes);
        let executor = Executor::new(program, weights, workers, isa, options, memory, poll);
        let executor = executor.unwrap();
        let ids = (0..).zip(&buffers);
        Self {
            executor,
            matrices: ids
                .clone()
                .map(|(i, buffer)| Matrix {
                    buffer: buffer.clone(),
                    id: TensorId(3 * i + 2),
                    bias: TensorId(3 * i + 3),
                    out: SlotId(2 * i + 3),
                })
                .collect(),
            tables: ids
                .map(|(i, buffer)| (buffer.clone(), TensorId(3 * i + 1), SlotId(2 * i + 2)))
                .collect(),
            norm: TensorId(0),
            normed: SlotId(0),
            setting,
            panel_rows: isa.panel_rows,
        }
    }

    /// Makes the next pass one of these tokens, and computes the inputs of all ops.
    fn begin(&mut self, tokens: &[usize]) {
        let executor = &mut self.executor;
        executor.sequences.remove(0);
        let items = (0..).zip(tokens).map(|(position, &token)| BatchItem {
            sequence: 0,
            position,
            token: token as u32,
            wants_logits: true,
        });
        let items: Vec<_> = items.collect();
        executor
            .sequences
            .admit(&items, &mut executor.batch)
            .unwrap();
        executor.walk(&mut || Control::Continue, None).unwrap();
    }

    /// Runs the ops of one name and nothing else.
    fn run(&mut self, op: &str) {
        let executor = &mut self.executor;
        let all = executor.program.steps.clone();
        executor.program.steps.retain(|step| step.op.name() == op);
        assert!(!executor.program.steps.is_empty(), "no {op}");
        executor.walk(&mut || Control::Continue, None).unwrap();
        executor.program.steps = all;
    }

    /// Runs an op while `node`'s part of these tensors is poison.
    fn run_poisoned(&mut self, op: &str, node: usize, tensors: &[TensorId]) {
        for &id in tensors {
            self.executor.weights.overwrite(NodeIndex(node), id, POISON);
        }
        self.run(op);
        for &id in tensors {
            self.executor
                .weights
                .overwrite(NodeIndex(node), id, HEALTHY);
        }
    }

    /// Runs an op while whatever lies in another node's memory is poison.
    fn run_near_only(&mut self, op: &str) {
        self.executor.weights.replace_remote(Some(POISON));
        self.run(op);
        self.executor.weights.replace_remote(None);
    }

    /// Asserts that exactly the elements that `expected(row, column)` names are NaN.
    fn check(&self, slot: SlotId, what: &str, expected: impl Fn(usize, usize) -> bool) {
        let n_rows = self.executor.batch.rows.len();
        let width = self.executor.arena.width(slot);
        let values = self.executor.arena.rows(slot, 0..n_rows);
        for (i, value) in values.iter().enumerate() {
            let (row, col) = (i / width, i % width);
            assert_eq!(
                value.is_nan(),
                expected(row, col),
                "{what}: row {row} of {n_rows}, column {col}; pool {:?}, shares {:?}",
                self.setting.pool,
                self.setting.shares
            );
        }
    }

    /// Threads by node in the present pass.
    fn threads(&self) -> &'static [usize] {
        match self.executor.batch.rows.len() {
            1 => self.setting.decode,
            _ => self.setting.batch,
        }
    }

    fn check_linear(&mut self) {
        let (shares, threads) = (self.setting.shares, self.threads());
        let n_panels = N_ROWS.div_ceil(self.panel_rows);
        let panel_rows = self.panel_rows;
        let matrices: Vec<_> = self.matrices.iter().map(|it| it.id).collect();
        let biases: Vec<_> = self.matrices.iter().map(|it| it.bias).collect();
        for node in 0..shares.len() {
            self.run_poisoned("linear", node, &matrices);
            for it in &self.matrices {
                let read_from = it
                    .homes(n_panels, shares)
                    .unwrap_or_else(|| dealt(n_panels, threads));
                let what = format!("{} read from node {node}", it.buffer);
                self.check(it.out, &what, |_, col| read_from[col / panel_rows] == node);
            }
            self.run_poisoned("linear", node, &biases);
            for it in &self.matrices {
                let workers = it.workers(n_panels, shares, threads);
                let what = format!("{} computed on node {node}", it.buffer);
                self.check(it.out, &what, |_, col| workers[col / panel_rows] == node);
            }
        }
        self.run_near_only("linear");
        for it in &self.matrices {
            let homes = it.homes(n_panels, shares);
            let is_far = |panel: usize| homes.as_ref().is_some_and(|it| it[panel] >= threads.len());
            let what = format!("{} read from afar", it.buffer);
            self.check(it.out, &what, |_, col| is_far(col / panel_rows));
        }
    }

    fn check_embed(&mut self, tokens: &[usize]) {
        let (shares, threads) = (self.setting.shares, self.threads());
        let split = dealt(N_VOCAB.div_ceil(self.panel_rows), shares);
        let home = |buffer: &str, token: usize| match buffer {
            "MIRROR" => token % threads.len(),
            "SPLIT" => split[token / self.panel_rows],
            node => node.trim_start_matches("NODE").parse().unwrap(),
        };
        let ids: Vec<_> = self.tables.iter().map(|&(_, id, _)| id).collect();
        let expected: Vec<Vec<usize>> = self
            .tables
            .iter()
            .map(|(buffer, ..)| tokens.iter().map(|&token| home(buffer, token)).collect())
            .collect();
        for node in 0..shares.len() {
            self.run_poisoned("embed", node, &ids);
            for ((buffer, _, slot), homes) in self.tables.iter().zip(&expected) {
                let what = format!("rows of {buffer} on node {node}");
                self.check(*slot, &what, |row, _| homes[row] == node);
            }
        }
        self.run_near_only("embed");
        for ((buffer, _, slot), homes) in self.tables.iter().zip(&expected) {
            let what = format!("rows of {buffer} fetched from afar");
            self.check(*slot, &what, |row, _| homes[row] >= threads.len());
        }
    }

    fn check_norm(&mut self, n_rows: usize) {
        let workers = dealt(n_rows.div_ceil(NORM_ROWS), self.threads());
        for node in 0..self.setting.shares.len() {
            self.run_poisoned("rms_norm", node, &[self.norm]);
            let what = format!("norm on node {node}");
            self.check(self.normed, &what, |row, _| {
                workers[row / NORM_ROWS] == node
            });
        }
    }
}

/// A prompt from all over the vocabulary, and single tokens from its ends.
fn passes() -> [Vec<usize>; 3] {
    let prompt = (0..N_TOKENS).map(|i| i * 61 % N_VOCAB).collect();
    [prompt, vec![2], vec![N_VOCAB - 1]]
}

#[test]
fn each_output_of_a_product_is_computed_where_its_rows_lie() {
    for quant in quant::TYPES {
        for setting in &SETTINGS {
            for &isa in isa::available() {
                let mut model = Model::new(quant, isa, setting);
                for tokens in &passes()[..2] {
                    model.begin(tokens);
                    model.check_linear();
                }
            }
        }
    }
}

#[test]
fn each_embedding_is_fetched_by_the_node_that_has_it() {
    for quant in quant::TYPES {
        for setting in &SETTINGS {
            let mut model = Model::new(quant, isa::choose(None).unwrap(), setting);
            for tokens in &passes() {
                model.begin(tokens);
                model.check_embed(tokens);
            }
        }
    }
}

#[test]
fn each_node_normalises_with_its_own_copy() {
    for setting in &SETTINGS {
        let quant = quant::by_name("F32").unwrap();
        let mut model = Model::new(quant, isa::choose(None).unwrap(), setting);
        for tokens in &passes()[..2] {
            model.begin(tokens);
            model.check_norm(tokens.len());
        }
    }
}
