//! Forward passes of small random models: against float64, and the same bits in every way.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod models;

use models::reference::{self, error};
use models::{
    Builder, Dims, How, Random, TINY, executor, forward, items, llama, plainly, random_data,
};
use numamirror_core::batch::BatchItem;
use numamirror_core::error::Error;
use numamirror_core::exec::Executor;
use numamirror_core::isa;
use numamirror_core::program::Program;
use numamirror_core::state::CacheType;
use numamirror_core::workers::Control;
use serde_json::{Value, json};

/// Largest normalised error against float64, by how activations enter products: f32, or 8-bit
/// (a code may fall the other way when its value lies near a half).
const TOLERANCES: [(&str, f64); 2] = [("F32", 1e-11), ("Q8_0", 1e-5)];

fn parse(program: &Value) -> Program {
    Program::from_json(&program.to_string()).unwrap()
}

fn two_layers(matrix_type: &'static str) -> Dims {
    Dims {
        n_layers: 2,
        matrix_type,
        ..TINY
    }
}

/// A model, the data of its weights and a prompt.
fn model(dims: &Dims, n_tokens: usize) -> (Program, Vec<Vec<u8>>, Vec<u32>) {
    let program = parse(&llama(dims));
    let data = random_data(&program, 5);
    let tokens = Random(11).tokens(n_tokens, dims.n_vocab);
    (program, data, tokens)
}

/// Feeds the tokens in chunks; the bits of all logits.
fn in_chunks(executor: &mut Executor, sequence: u32, tokens: &[u32], chunk: usize) -> Vec<u32> {
    let mut bits = Vec::new();
    for (i, tokens) in tokens.chunks(chunk).enumerate() {
        bits.extend(forward(executor, &items(sequence, i * chunk, tokens)).unwrap());
    }
    bits
}

#[test]
fn logits_are_those_of_a_naive_float64_forward() {
    let styles = ["interleaved", "neox"];
    for ((matrix_type, tolerance), rope_style) in TOLERANCES.into_iter().zip(styles) {
        let dims = Dims {
            rope_style,
            ..two_layers(matrix_type)
        };
        let (program, data, tokens) = model(&dims, 100);
        let expected = reference::logits(&dims, &program, &data, &tokens);
        for &isa in isa::available() {
            let how = How {
                isa,
                cache: CacheType::F32,
                ..plainly()
            };
            let mut executor = executor(&program, &data, &how).unwrap();
            forward(&mut executor, &items(0, 0, &tokens)).unwrap();
            let found = error(executor.logits(), &expected);
            assert!(
                found <= tolerance,
                "{matrix_type} on {}: {found:e}",
                isa.name
            );
        }
    }
}

#[test]
fn bits_do_not_depend_on_chunks_or_instruction_set() {
    for matrix_type in ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"] {
        let (program, data, tokens) = model(&two_layers(matrix_type), 80);
        let mut plain = executor(&program, &data, &plainly()).unwrap();
        let expected = in_chunks(&mut plain, 0, &tokens, 80);
        for chunk in [1, 7, 64] {
            let found = in_chunks(&mut plain, chunk as u32, &tokens, chunk);
            assert!(found == expected, "{matrix_type} in chunks of {chunk}");
        }
        for &isa in isa::available() {
            let mut other = executor(&program, &data, &How { isa, ..plainly() }).unwrap();
            let found = in_chunks(&mut other, 0, &tokens, 80);
            assert!(found == expected, "{matrix_type} on {}", isa.name);
        }
    }
}

/// Buffers of all tensors: each type alone, and mixed.
const BUFFERS: [&[&str]; 6] = [
    &["SPLIT"],
    &["MIRROR"],
    &["INTERLEAVE"],
    &["NODE0"],
    &["MMAP"],
    &["MIRROR", "MMAP", "SPLIT", "NODE0", "INTERLEAVE"],
];

#[test]
fn bits_do_not_depend_on_workers_nodes_or_buffers() {
    let names = numamirror_core::buffer::names(1);
    assert!(names.iter().all(|name| BUFFERS.contains(&&[&**name][..])));
    for matrix_type in ["F32", "Q8_0"] {
        let (program, data, tokens) = model(&two_layers(matrix_type), 80);
        let run = |nodes, buffers| {
            let how = How {
                nodes,
                buffers,
                ..plainly()
            };
            let mut executor = executor(&program, &data, &how).unwrap();
            let mut bits = in_chunks(&mut executor, 0, &tokens[..79], 79);
            bits.extend(forward(&mut executor, &items(0, 79, &tokens[79..])).unwrap());
            bits
        };
        let expected = run(&[1], &["SPLIT"]);
        for nodes in [&[2][..], &[4], &[1, 1], &[2, 1, 1], &[1; 8]] {
            for buffers in BUFFERS {
                let found = run(nodes, buffers);
                assert!(
                    found == expected,
                    "{matrix_type}, workers {nodes:?}, {buffers:?}"
                );
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_the_company() {
    let (program, data, _) = model(&two_layers("Q8_0"), 0);
    let mut executor = executor(&program, &data, &plainly()).unwrap();
    let mut random = Random(3);
    let prompts = [70, 3, 65].map(|n_tokens| random.tokens(n_tokens, TINY.n_vocab));
    let n_vocab = program.n_vocab();
    let alone = [0, 1, 2].map(|i| in_chunks(&mut executor, i as u32, &prompts[i], 70));
    // All in one pass, their tokens dealt like cards.
    let mut batch = Vec::new();
    for position in 0..70 {
        for (i, prompt) in prompts.iter().enumerate() {
            if let Some(&token) = prompt.get(position) {
                batch.extend(items(i as u32, position, &[token]));
            }
        }
    }
    let together = forward(&mut executor, &batch).unwrap();
    let mut rows = together.chunks_exact(n_vocab).zip(&batch);
    assert!(rows.all(|(row, item)| {
        let at = item.position as usize * n_vocab;
        row == &alone[item.sequence as usize][at..at + n_vocab]
    }));
}

#[test]
fn only_the_logits_asked_for_are_there_in_the_order_asked() {
    let (program, data, tokens) = model(&TINY, 20);
    let mut executor = executor(&program, &data, &plainly()).unwrap();
    let n_vocab = program.n_vocab();
    let all = forward(&mut executor, &items(0, 0, &tokens)).unwrap();
    let row = |position: usize| &all[position * n_vocab..(position + 1) * n_vocab];
    let mut batch = items(1, 0, &tokens);
    batch.reverse();
    for item in &mut batch {
        item.wants_logits = [4, 9].contains(&item.position);
    }
    let found = forward(&mut executor, &batch).unwrap();
    assert!(found == [row(9), row(4)].concat());
    let silent = |item: BatchItem| BatchItem {
        wants_logits: false,
        ..item
    };
    let silent: Vec<_> = items(2, 0, &tokens[..19]).into_iter().map(silent).collect();
    assert!(forward(&mut executor, &silent).unwrap().is_empty());
    assert!(forward(&mut executor, &items(2, 19, &tokens[19..])).unwrap() == row(19));
}

#[test]
fn impossible_passes_are_refused_and_change_nothing() {
    let (program, data, tokens) = model(&TINY, 40);
    let how = How {
        max_rows: 16,
        n_ctx: 20,
        n_parallel: 1,
        ..plainly()
    };
    let mut executor = executor(&program, &data, &how).unwrap();
    let before = forward(&mut executor, &items(0, 0, &tokens[..16])).unwrap();
    let stray = items(0, 16, &[1, TINY.n_vocab]);
    for (batch, name) in [
        (vec![], "tokens in a pass"),
        (items(0, 16, &tokens[..17]), "tokens in a pass"),
        (stray, "token"),
        (items(0, 17, &[1]), "position in sequence 0"),
    ] {
        match forward(&mut executor, &batch) {
            Err(Error::BadRequest { name: found, .. }) => assert_eq!(found, name),
            other => panic!("{name}: {other:?}"),
        }
    }
    for full in [items(0, 16, &tokens[..5]), items(1, 0, &[1])] {
        let answer = forward(&mut executor, &full);
        assert!(
            matches!(answer, Err(Error::ContextFull { .. })),
            "{answer:?}"
        );
    }
    assert_eq!(
        (
            executor.sequences().n_past(0),
            executor.sequences().n_past(1)
        ),
        (16, 0)
    );
    let logits: Vec<u32> = executor.logits().iter().map(|x| x.to_bits()).collect();
    assert!(logits == before, "the last pass's logits are still there");
    forward(&mut executor, &items(0, 16, &tokens[16..20])).unwrap();
}

#[test]
fn parts_that_do_not_belong_together_are_refused() {
    let (program, data, _) = model(&TINY, 0);
    let other = parse(&llama(&Dims {
        n_vocab: 42,
        ..TINY
    }));
    let sizes = [
        (0, 512, 1),
        (usize::MAX, 512, 1),
        (8, 0, 1),
        (8, 512, usize::MAX),
    ];
    for (max_rows, n_ctx, n_parallel) in sizes {
        let how = How {
            max_rows,
            n_ctx,
            n_parallel,
            ..plainly()
        };
        let error = executor(&program, &data, &how).unwrap_err();
        assert!(matches!(error, Error::BadRequest { .. }), "{error}");
    }
    let error = models::executor_with(&program, &other, &random_data(&other, 1), &plainly());
    let error = error.unwrap_err().to_string();
    assert!(error.contains("weights"), "{error}");
}

/// The model with a long tail of norms, for a pass that is sure to be going on when polled.
fn endless(n_steps: usize) -> Program {
    let mut program = llama(&TINY);
    let select = program["steps"].as_array().unwrap().len() - 3;
    let last = program["steps"][select]["op"]["select"]["input"].clone();
    let (mut from, mut to) = (last.clone(), json!(9));
    for _ in 0..n_steps {
        let op = json!({"input": from, "weight": 1, "out": to, "eps": 1e-5});
        let step = json!({"label": "tail", "op": {"rms_norm": op}});
        program["steps"]
            .as_array_mut()
            .unwrap()
            .insert(select, step);
        (from, to) = (to, from);
    }
    parse(&program)
}

#[test]
fn an_interrupted_pass_leaves_no_trace() {
    let program = endless(40_000);
    let mut data = random_data(&program, 5);
    data[1] = [1.0_f32.to_le_bytes(); 64].concat();
    let tokens = Random(8).tokens(300, TINY.n_vocab);
    let how = How {
        nodes: &[2],
        ..plainly()
    };
    let run = |interrupted: bool| {
        let mut executor = executor(&program, &data, &how).unwrap();
        forward(&mut executor, &items(3, 0, &tokens[..2])).unwrap();
        if interrupted {
            let batch = [items(3, 2, &tokens[..300]), items(4, 0, &tokens[..200])].concat();
            let answer = executor.forward(&batch, &mut || Control::Cancel);
            assert!(matches!(answer, Err(Error::Interrupted)), "{answer:?}");
            assert_eq!(
                (
                    executor.sequences().n_past(3),
                    executor.sequences().n_past(4)
                ),
                (2, 0)
            );
            assert!(executor.logits().is_empty());
        }
        forward(&mut executor, &items(3, 2, &tokens[2..4])).unwrap()
    };
    assert!(run(true) == run(false));
}

#[test]
fn the_first_op_with_a_non_finite_output_is_named() {
    let (program, mut data, tokens) = model(&two_layers("F32"), 5);
    let norm = program
        .tensors()
        .iter()
        .position(|t| t.name == "blk.1.ffn_norm")
        .unwrap();
    data[norm] = [f32::MAX.to_le_bytes(); 64].concat();
    let mut executor = executor(
        &program,
        &data,
        &How {
            nodes: &[2],
            ..plainly()
        },
    )
    .unwrap();
    match forward(&mut executor, &items(0, 0, &tokens)) {
        Err(Error::NonFiniteActivation { place }) => assert_eq!(place, "blk.1.ffn_norm (rms_norm)"),
        other => panic!("{other:?}"),
    }
    assert_eq!(executor.sequences().n_past(0), 0);
}

#[test]
fn a_bad_scale_of_a_mapped_tensor_ends_the_pass_that_meets_it() {
    let (program, mut data, tokens) = model(&two_layers("Q8_0"), 5);
    // Tensor, row, byte of the row: the second block's scale.
    for (name, bad_row) in [("blk.1.ffn_up", 90), ("token_embd", 17)] {
        let mut names = program.tensors().iter();
        let tensor = names.position(|t| t.name == name).unwrap();
        let was = data[tensor].clone();
        data[tensor][bad_row * 68 + 34..][..2].copy_from_slice(&0x7e00_u16.to_le_bytes());
        for nodes in [&[1][..], &[2, 1]] {
            let how = How {
                nodes,
                buffers: &["MMAP"],
                ..plainly()
            };
            let mut executor = executor(&program, &data, &how).unwrap();
            for _ in 0..2 {
                match forward(&mut executor, &items(0, 0, &tokens)) {
                    Err(Error::NonFiniteWeight { tensor, row, col }) => {
                        assert_eq!((tensor.as_str(), row, col), (name, bad_row, 32));
                    }
                    other => panic!("{name}: {other:?}"),
                }
                assert_eq!(executor.sequences().n_past(0), 0);
                assert!(executor.logits().is_empty());
            }
        }
        data[tensor] = was;
    }
}

/// Queries, keys and values looked up by token: attention and nothing else.
fn attention_only(n_head: u32, n_head_kv: u32, k_dim: u32, v_dim: u32, n_tokens: u32) -> Value {
    let mut b = Builder::default();
    let widths = [n_head * k_dim, n_head_kv * k_dim, n_head_kv * v_dim];
    let [q, k, v] = widths.map(|width| {
        let table = b.tensor("table", "F32", n_tokens, width);
        let out = b.slot(width, "tokens");
        b.step("table", &json!({"embed": {"table": table, "out": out}}));
        out
    });
    let cache = b.cache(n_head_kv, k_dim, v_dim);
    let out = b.slot(n_head * v_dim, "tokens");
    let op = json!({"q": q, "k": k, "v": v, "out": out, "cache": cache, "n_head": n_head,
                    "k_dim": k_dim, "v_dim": v_dim, "scale": 1.5});
    b.step("attention", &json!({ "attention": op }));
    let selected = b.slot(n_head * v_dim, "outputs");
    b.step(
        "select",
        &json!({"select": {"input": out, "out": selected}}),
    );
    b.finish(selected)
}

#[test]
fn attention_is_a_softmax_for_every_group_and_across_blocks_and_chunks() {
    // Query heads, kv heads, lengths of a key and a value, positions.
    let shapes = [
        (1, 1, 8, 8, 1100),
        (3, 3, 8, 5, 130),
        (6, 2, 16, 8, 1100),
        (8, 2, 8, 16, 130),
        (71, 1, 8, 3, 130),
        (142, 2, 4, 4, 70),
    ];
    for (n_head, n_head_kv, k_dim, v_dim, n_positions) in shapes {
        let program = attention_only(n_head, n_head_kv, k_dim, v_dim, n_positions);
        let program = parse(&program);
        let data = random_data(&program, u64::from(n_head));
        let how = How {
            n_ctx: 1100,
            cache: CacheType::F32,
            ..plainly()
        };
        let mut executor = executor(&program, &data, &how).unwrap();
        let tokens: Vec<u32> = (0..n_positions).collect();
        let mut found = Vec::new();
        for (i, chunk) in tokens.chunks(300).enumerate() {
            forward(&mut executor, &items(0, 300 * i, chunk)).unwrap();
            found.extend_from_slice(executor.logits());
        }
        let tables = [0, 1, 2].map(|i| reference::values(&program.tensors()[i], &data[i]));
        let rows = found.chunks_exact((n_head * v_dim) as usize).enumerate();
        let checked = [0, 1, 63, 64, 129, 299, 300, 1022, 1023, 1024, 1025, 1099];
        for (position, row) in rows.filter(|(position, _)| checked.contains(position)) {
            let heads = (n_head as usize, n_head_kv as usize, 1.5);
            let found = error(row, &reference::attention(&tables, position, heads));
            assert!(
                found <= 1e-11,
                "{n_head}/{n_head_kv} at {position}: {found:e}"
            );
        }
    }
}
