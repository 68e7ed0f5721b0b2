//! A naive forward in float64: the reference for executors.

use numamirror_core::program::Program;
use numamirror_core::quant;
use numamirror_core::weights::TensorSpec;

use super::{Dims, FREQUENCIES, MAGNITUDE};

/// A table of numbers, row by row.
#[derive(Clone)]
pub(crate) struct Matrix {
    pub(crate) n_cols: usize,
    pub(crate) values: Vec<f64>,
}

impl Matrix {
    fn row(&self, row: usize) -> &[f64] {
        &self.values[row * self.n_cols..(row + 1) * self.n_cols]
    }
}

/// The decoded values of a tensor.
pub(crate) fn values(spec: &TensorSpec, bytes: &[u8]) -> Matrix {
    let mut values = vec![0.0; spec.n_rows as usize * spec.n_cols as usize];
    let quant = quant::by_name(&spec.type_name).expect("a known type");
    quant.dequantize(bytes, &mut values);
    Matrix {
        n_cols: spec.n_cols as usize,
        values: values.into_iter().map(f64::from).collect(),
    }
}

/// Σ(x − y)² / Σy².
pub(crate) fn error(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len(), "as many values");
    let pairs = found.iter().zip(expected);
    let squares: f64 = pairs.map(|(&x, y)| (f64::from(x) - y).powi(2)).sum();
    squares / expected.iter().map(|y| y * y).sum::<f64>()
}

fn rms_norm(x: &[f64], weight: &Matrix) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + 1e-5).sqrt();
    x.iter()
        .zip(&weight.values)
        .map(|(x, w)| x * scale * w)
        .collect()
}

/// The nearest of 255 multiples of the largest of each 32 / 127.
fn rounded(x: &[f64]) -> Vec<f64> {
    let round = |block: &[f64]| {
        let scale = block.iter().fold(0.0, |most: f64, x| most.max(x.abs())) / 127.0;
        let scale = if scale == 0.0 { 1.0 } else { scale };
        let codes = block.iter().map(|x| (x / scale).round_ties_even() * scale);
        codes.collect::<Vec<_>>()
    };
    x.chunks(32).flat_map(round).collect()
}

fn linear(x: &[f64], weight: &Matrix, dims: &Dims) -> Vec<f64> {
    let rounds = dims.matrix_type.starts_with('Q');
    let x = if rounds { rounded(x) } else { x.to_vec() };
    let rows = weight.values.chunks(weight.n_cols);
    rows.map(|row| row.iter().zip(&x).map(|(w, x)| w * x).sum())
        .collect()
}

/// Rotates the first values of each head, neighbours or those half of all rotated apart.
fn rope(x: &mut [f64], dims: &Dims, factors: &Matrix, position: usize) {
    let neox = dims.rope_style == "neox";
    for head in x.chunks_mut(dims.head_dim as usize) {
        for (i, frequency) in FREQUENCIES.iter().enumerate() {
            let (sin, cos) = (position as f64 * frequency / factors.values[i]).sin_cos();
            let (a, b) = if neox {
                (i, i + FREQUENCIES.len())
            } else {
                (2 * i, 2 * i + 1)
            };
            let (x, y) = (head[a] * MAGNITUDE, head[b] * MAGNITUDE);
            (head[a], head[b]) = (x * cos - y * sin, x * sin + y * cos);
        }
    }
}

/// Attention of the query at `position` over all keys up to there; `heads`: query heads, kv
/// heads, factor on scores.
pub(crate) fn attention(
    [q, k, v]: &[Matrix; 3],
    position: usize,
    (n_head, n_head_kv, scale): (usize, usize, f64),
) -> Vec<f64> {
    let (k_dim, v_dim) = (k.n_cols / n_head_kv, v.n_cols / n_head_kv);
    let mut out = Vec::new();
    for head in 0..n_head {
        let kv_head = head / (n_head / n_head_kv);
        let query = &q.row(position)[head * k_dim..][..k_dim];
        let score = |at: usize| {
            let key = &k.row(at)[kv_head * k_dim..][..k_dim];
            scale * query.iter().zip(key).map(|(q, k)| q * k).sum::<f64>()
        };
        let scores: Vec<f64> = (0..=position).map(score).collect();
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
        let total: f64 = weights.iter().sum();
        out.extend((0..v_dim).map(|i| {
            let values = weights.iter().enumerate();
            let sum: f64 = values
                .map(|(at, w)| w * v.row(at)[kv_head * v_dim + i])
                .sum();
            sum / total
        }));
    }
    out
}

/// Logits of every position of one sequence, for the program of `models::llama`.
pub(crate) fn logits(dims: &Dims, program: &Program, data: &[Vec<u8>], tokens: &[u32]) -> Vec<f64> {
    let tensor = |name: &str| {
        let id = program
            .tensors()
            .iter()
            .position(|t| t.name == name)
            .expect("a tensor");
        values(&program.tensors()[id], &data[id])
    };
    let table = tensor("token_embd");
    let embed = |&token: &u32| table.row(token as usize).to_vec();
    let mut rows: Vec<Vec<f64>> = tokens.iter().map(embed).collect();
    for layer in 0..dims.n_layers {
        let weight = |part: &str| tensor(&format!("blk.{layer}.{part}"));
        add_attention(dims, &weight, &tensor("rope_freqs"), &mut rows);
        add_feed_forward(dims, &weight, &mut rows);
    }
    let norm = tensor("output_norm");
    let logits = |x: &Vec<f64>| linear(&rms_norm(x, &norm), &table, dims);
    rows.iter().flat_map(logits).collect()
}

fn add_to(x: &mut [f64], y: &[f64]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

fn add_attention(
    dims: &Dims,
    weight: &dyn Fn(&str) -> Matrix,
    factors: &Matrix,
    rows: &mut [Vec<f64>],
) {
    let norm = weight("attn_norm");
    let normed: Vec<_> = rows.iter().map(|x| rms_norm(x, &norm)).collect();
    let bias = weight("attn_q.bias").values;
    let qkv = ["attn_q", "attn_k", "attn_v"].map(|name| {
        let matrix = weight(name);
        let mut out = Vec::new();
        for (position, x) in normed.iter().enumerate() {
            let mut y = linear(x, &matrix, dims);
            if name == "attn_q" {
                add_to(&mut y, &bias);
            }
            if name != "attn_v" {
                rope(&mut y, dims, factors, position);
            }
            out.extend(y);
        }
        let n_cols = out.len() / normed.len();
        Matrix {
            n_cols,
            values: out,
        }
    });
    let output = weight("attn_output");
    let heads = (dims.n_head as usize, dims.n_head_kv as usize, 0.25);
    for (position, x) in rows.iter_mut().enumerate() {
        add_to(x, &linear(&attention(&qkv, position, heads), &output, dims));
    }
}

fn add_feed_forward(dims: &Dims, weight: &dyn Fn(&str) -> Matrix, rows: &mut [Vec<f64>]) {
    let [norm, gate, up, down] = ["ffn_norm", "ffn_gate", "ffn_up", "ffn_down"].map(weight);
    for x in rows {
        let normed = rms_norm(x, &norm);
        let (gate, up) = (linear(&normed, &gate, dims), linear(&normed, &up, dims));
        let act = gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u);
        add_to(x, &linear(&act.collect::<Vec<_>>(), &down, dims));
    }
}
