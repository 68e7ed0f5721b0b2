//! Programs: what the verifier accepts, what it refuses and where it says the fault is.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod models;

use models::{Dims, How, TINY, executor, forward, items, llama, plainly, refusal};
use numamirror_core::error::Error;
use numamirror_core::isa;
use numamirror_core::program::Program;
use numamirror_core::weights::Layout;
use numamirror_core::workers::Control;
use proptest::prelude::*;
use serde_json::{Value, json};

fn valid() -> Value {
    llama(&TINY)
}

/// Replaces what a JSON pointer leads to; a field that is not there is made.
fn set(program: &mut Value, pointer: &str, value: Value) {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    match program.pointer_mut(parent).unwrap() {
        Value::Object(fields) => drop(fields.insert(key.to_owned(), value)),
        Value::Array(list) => list[key.parse::<usize>().unwrap()] = value,
        other => panic!("{parent} is {other}"),
    }
}

/// Checks lines of `pointer = new value | part of the place | part of the problem`.
fn check(cases: &str) {
    let lines = cases.lines().map(str::trim).filter(|line| !line.is_empty());
    for line in lines {
        let [change, place, problem] = line.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("{line}");
        };
        let (pointer, value) = change.split_once(" = ").unwrap();
        let mut program = valid();
        set(&mut program, pointer, serde_json::from_str(value).unwrap());
        let (found_place, found_problem) = refusal(&program);
        let what = format!("{line}: {found_place}: {found_problem}");
        assert!(found_place.contains(place), "{what}");
        assert!(found_problem.contains(problem), "{what}");
    }
}

#[test]
fn the_valid_program_is_accepted() {
    let program = Program::from_json(&valid().to_string()).unwrap();
    assert_eq!(program.n_vocab(), 41);
    assert_eq!(program.caches().len(), 1);
}

#[test]
fn ids_that_nothing_has_are_refused() {
    check(
        r"
        /steps/0/op/rope_angles/out = 99 | op 0 (rope_angles, rope) | out: there is no slot 99
        /steps/0/op/rope_angles/factors = 99 | op 0 | factors: there is no tensor 99
        /steps/1/op/embed/table = 99 | op 1 (embed, token_embd) | table: there is no tensor
        /steps/1/op/embed/out = 18 | op 1 | out: there is no slot 18, only 18
        /steps/2/op/rms_norm/input = 99 | op 2 (rms_norm | input: there is no slot
        /steps/2/op/rms_norm/weight = 4294967295 | op 2 | there is no tensor 4294967295
        /steps/3/op/linear/input = 99 | op 3 (linear | input: there is no slot
        /steps/3/op/linear/products/1/weight = 99 | op 3 | weight: there is no tensor
        /steps/3/op/linear/products/0/bias = 99 | op 3 | bias: there is no tensor
        /steps/3/op/linear/products/2/out = 99 | op 3 | out: there is no slot
        /steps/4/op/rope/data = 99 | op 4 (rope, blk.0.rope_q) | data: there is no slot
        /steps/4/op/rope/angles = 99 | op 4 | angles: there is no slot
        /steps/6/op/attention/cache = 1 | op 6 (attention | cache: there is no cache 1
        /steps/6/op/attention/k = 99 | op 6 | k: there is no slot
        /steps/8/op/add/b = 99 | op 8 (add | b: there is no slot
        /steps/11/op/swiglu/up = 99 | op 11 (swiglu | up: there is no slot
        /steps/14/op/select/input = 99 | op 14 (select | input: there is no slot
        /logits = 99 | logits | there is no slot 99
        ",
    );
}

#[test]
fn wrong_orders_of_use_are_refused() {
    check(
        r"
        /steps/2/op/rms_norm/input = 5 | op 2 | input: slot 5 is read before
        /steps/4/op/rope/data = 6 | op 4 | data: slot 6 is read before
        /steps/2/op/rms_norm/out = 1 | op 2 | slot 1 is used twice
        /steps/8/op/add/out = 1 | op 8 | slot 1 is used twice
        /steps/4/op/rope/angles = 3 | op 4 | slot 3 is used twice
        /steps/3/op/linear/products/2/out = 4 | op 3 | slot 4 is used twice
        /steps/3/op/linear/products/1/out = 2 | op 3 | slot 2 is used twice
        /logits = 1 | logits | a row an output
        ",
    );
    let mut unwritten = valid();
    unwritten["slots"]
        .as_array_mut()
        .unwrap()
        .push(json!({"width": 41, "rows": "outputs"}));
    unwritten["logits"] = json!(18);
    assert_eq!(
        refusal(&unwritten),
        ("logits".into(), "never written".into())
    );
    let mut twice = valid();
    let attention = twice["steps"][6].clone();
    twice["steps"].as_array_mut().unwrap().insert(7, attention);
    let (place, problem) = refusal(&twice);
    assert!(place.contains("op 7") && problem.contains("cache 0 is used by another op"));
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    check(
        r#"
        /steps/1/op/embed/table = 1 | op 1 | is a Vector, expected a Matrix
        /steps/2/op/rms_norm/weight = 0 | op 2 | is a Matrix, expected a Vector
        /steps/3/op/linear/products/0/bias = 0 | op 3 | is a Matrix, expected a Vector
        /tensors/1/n_rows = 2 | tensor blk.0.attn_norm | a vector of 2 rows
        /slots/0/width = 14 | op 0 | width of out is 14, expected 12
        /slots/1/width = 65 | op 1 | width of out is 65, expected 64
        /slots/2/width = 63 | op 2 | width is 64, expected 63
        /tensors/1/n_cols = 32 | op 2 | length of weight is 32, expected 64
        /tensors/2/n_cols = 32 | op 3 | row length of blk.0.attn_q is 32, expected 64
        /tensors/2/n_rows = 63 | op 3 | rows of blk.0.attn_q is 63, expected 64
        /tensors/5/n_cols = 63 | op 3 | length of bias is 63, expected 64
        /steps/0/op/rope_angles/factors = 1 | op 0 | length of factors is 64, expected 6
        /steps/4/op/rope/head_dim = 24 | op 4 | 64 is not whole heads of 24
        /steps/4/op/rope/head_dim = 8 | op 4 | 12 rotated values in heads of 8
        /steps/6/op/attention/n_head = 3 | op 6 | 3 query heads do not share 2
        /steps/6/op/attention/n_head = 2 | op 6 | width of q is 64, expected 32
        /steps/6/op/attention/k_dim = 8 | op 6 | k_dim of the cache is 16, expected 8
        /steps/6/op/attention/v = 3 | op 6 | width of v is 64, expected 32
        /caches/0/v_dim = 15 | op 6 | v_dim of the cache is 15, expected 16
        /caches/0/n_head_kv = 4 | op 6 | width of k is 32, expected 64
        /steps/8/op/add/b = 4 | op 8 | width is 32, expected 64
        /slots/12/width = 95 | op 11 | width is 96, expected 95
        /slots/15/width = 32 | op 14 | width of out is 32, expected 64
        /slots/0/rows = "outputs" | op 0 | a row a token
        /slots/1/rows = "outputs" | op 1 | a row a token
        /slots/2/rows = "outputs" | op 2 | rows differ
        /slots/5/rows = "outputs" | op 3 | rows differ
        /slots/6/rows = "outputs" | op 6 | rows differ
        /slots/12/rows = "outputs" | op 11 | rows differ
        /slots/15/rows = "tokens" | op 14 | out a row an output
        /steps/14/op/select/input = 0 | op 14 | width of out is 64, expected 12
        "#,
    );
}

#[test]
fn numbers_out_of_range_are_refused() {
    check(
        r"
        /slots/3/width = 0 | slot 3 | a dimension of 0
        /slots/3/width = 4294967295 | slot 3 | a dimension of 4294967295
        /slots/3/width = 4294967296 | json | 4294967296
        /slots/3/width = -1 | json | -1
        /slots/3/width = 1.5 | json | 1.5
        /tensors/0/n_rows = 0 | tensor token_embd | a dimension of 0
        /tensors/0/n_cols = 67108865 | tensor token_embd | a dimension of
        /caches/0/k_dim = 0 | cache 0 | a dimension of 0
        /caches/0/n_head_kv = 4294967295 | cache 0 | a dimension of
        /steps/2/op/rms_norm/eps = 0.0 | op 2 | eps: 0 is not a finite number above
        /steps/2/op/rms_norm/eps = -1e-5 | op 2 | eps: -0.00001 is not
        /steps/2/op/rms_norm/eps = 1e300 | op 2 | eps: inf is not
        /steps/0/op/rope_angles/frequencies/2 = -0.5 | op 0 | frequencies
        /steps/0/op/rope_angles/magnitude = 0 | op 0 | magnitude: 0 is not
        /steps/4/op/rope/head_dim = 0 | op 4 | head_dim: 0 is not a count
        /steps/6/op/attention/n_head = 0 | op 6 | n_head: 0 is not a count
        /steps/6/op/attention/v_dim = 4294967295 | op 6 | v_dim: 4294967295 is not
        /steps/6/op/attention/scale = -0.25 | op 6 | scale: -0.25 is not
        /steps/3/op/linear/products = [] | op 3 | products: an empty list
        /steps/0/op/rope_angles/frequencies = [] | op 0 | frequencies: an empty list
        ",
    );
    for number in ["NaN", "Infinity", "1e400"] {
        let text = valid()
            .to_string()
            .replacen("0.25,", &format!("{number},"), 1);
        assert!(text.contains(number), "the number was put in");
        let error = Program::from_json(&text).unwrap_err();
        assert!(
            matches!(error, Error::BadProgram { .. }),
            "{number}: {error}"
        );
    }
}

#[test]
fn json_of_another_form_is_refused() {
    check(
        r#"
        /steps/2/op = {"layer_norm": {}} | json | unknown variant `layer_norm`
        /steps/2/op = "add" | json | expected newtype variant
        /steps/2/op/rms_norm/bias = 1 | json | unknown field `bias`
        /steps/3/op/linear/products/0/scale = 1 | json | unknown field `scale`
        /steps/2/comment = "" | json | unknown field `comment`
        /steps/2/op/rms_norm = {"input": 1} | json | missing field
        /steps/4/op/rope/style = "spiral" | json | unknown variant `spiral`
        /tensors/0/role = "scalar" | json | unknown variant `scalar`
        /slots/0/rows = "all" | json | unknown variant `all`
        /version = 1 | json | unknown field `version`
        /caches = null | json | invalid type: null
        /steps = [] | logits | never written
        "#,
    );
    for text in ["", "[]", "{", &"[".repeat(100_000), "{\"logits\": 0}"] {
        let error = Program::from_json(text).unwrap_err();
        assert!(matches!(error, Error::BadProgram { .. }), "{error}");
    }
}

#[test]
fn types_are_refused_by_name_and_by_row_length() {
    let mut unknown = valid();
    set(&mut unknown, "/tensors/0/type", json!("Q9_9"));
    let error = Program::from_json(&unknown.to_string()).unwrap_err();
    assert!(
        matches!(&error, Error::Unsupported { name, .. } if name == "Q9_9"),
        "{error}"
    );
    let mut ragged = valid();
    set(&mut ragged, "/tensors/2/n_cols", json!(48));
    set(&mut ragged, "/tensors/2/type", json!("Q8_0"));
    let (place, problem) = refusal(&ragged);
    assert!(
        place.contains("blk.0.attn_q") && problem.contains("whole blocks of 32"),
        "{problem}"
    );
}

/// Things of the largest size that a program may name: no sum of bytes may wrap round.
#[test]
fn huge_but_valid_programs_are_answered_with_out_of_memory() {
    let most = 1 << 26;
    let mut program = valid();
    for _ in 0..40 {
        let list = |name: &str| format!("/{name}");
        let mut push = |name: &str, value: Value| {
            let list = program.pointer_mut(&list(name)).unwrap();
            list.as_array_mut().unwrap().push(value);
        };
        push("slots", json!({"width": most, "rows": "tokens"}));
        push(
            "caches",
            json!({"n_head_kv": most, "k_dim": most, "v_dim": most}),
        );
        push(
            "tensors",
            json!({"name": "huge", "type": "F32", "n_rows": most, "n_cols": most,
                   "role": "matrix"}),
        );
    }
    let program = Program::from_json(&program.to_string()).unwrap();
    let layout = Layout::new(program.tensors(), isa::choose(None).unwrap()).unwrap();
    assert!(layout.n_bytes() > 40 << 50);
    let how = plainly();
    let limits = numamirror_core::state::StateLimits {
        n_ctx: how.n_ctx,
        n_parallel: how.n_parallel,
        k_type: how.cache,
        v_type: how.cache,
    };
    let cache = numamirror_core::state::BlockCache::new(
        program.caches(),
        &limits,
        &models::anywhere(1),
        &models::workers(&[1]),
        &mut || Control::Continue,
    );
    let cache = cache.unwrap_err();
    assert!(matches!(cache, Error::MemoryLimit { .. }), "{cache}");
    let size = numamirror_core::arena::ArenaSize {
        max_rows: usize::MAX,
        n_nodes: 1,
        partial_elems: usize::MAX,
    };
    let arena = numamirror_core::arena::Arena::new(program.slots(), size).unwrap_err();
    assert!(matches!(arena, Error::OutOfMemory { .. }), "{arena}");
}

/// What a node of the JSON may become.
fn replacement() -> impl Strategy<Value = Option<Value>> {
    let sizes = [
        24,
        32,
        41,
        48,
        64,
        96,
        1 << 20,
        1 << 26,
        67_108_865,
        1 << 32,
        u64::MAX,
    ];
    let numbers = [-1.0, 0.5, 1e-30, 1e30, 1e300];
    let words = "tokens outputs vector matrix F32 F16 Q8_0 Q4_1 neox".split(' ');
    let words: Vec<&str> = words.collect();
    let forms = [Value::Null, json!([]), json!({}), json!(true)];
    prop_oneof![
        8 => (0..20_u32).prop_map(|n| Some(json!(n))),
        4 => prop::sample::select(sizes.to_vec()).prop_map(|n| Some(json!(n))),
        2 => prop::sample::select(numbers.to_vec()).prop_map(|x| Some(json!(x))),
        4 => prop::sample::select(words).prop_map(|s| Some(json!(s))),
        1 => prop::sample::select(forms.to_vec()).prop_map(Some),
        2 => Just(None),
    ]
}

/// JSON pointers of all nodes below `value`.
fn pointers(value: &Value, at: &str, out: &mut Vec<String>) {
    let children: Vec<(String, &Value)> = match value {
        Value::Array(list) => list
            .iter()
            .enumerate()
            .map(|(i, v)| (i.to_string(), v))
            .collect(),
        Value::Object(fields) => fields.iter().map(|(k, v)| (k.clone(), v)).collect(),
        _ => Vec::new(),
    };
    for (key, child) in children {
        let pointer = format!("{at}/{key}");
        pointers(child, &pointer, out);
        out.push(pointer);
    }
}

/// Replaces a node, or takes it away.
fn mutate(program: &mut Value, pointer: &str, with: Option<Value>) {
    match (with, pointer.rsplit_once('/')) {
        (Some(value), _) => *program.pointer_mut(pointer).unwrap() = value,
        (None, Some((parent, key))) => match program.pointer_mut(parent).unwrap() {
            Value::Object(fields) => drop(fields.remove(key)),
            Value::Array(list) => drop(list.remove(key.parse().unwrap())),
            _ => {}
        },
        (None, None) => {}
    }
}

/// Runs a verified program on two sequences; nothing that it can do is a panic of a worker.
fn run_verified(program: &Program) {
    let how = How {
        max_rows: 8,
        n_ctx: 100,
        nodes: &[2],
        ..plainly()
    };
    let n_bytes = Layout::new(program.tensors(), how.isa).unwrap().n_bytes();
    if n_bytes > 64 << 20 {
        return;
    }
    // Small finite numbers, whatever the type.
    let data = program.tensors().iter().map(|spec| {
        let quant = spec.quant_type().unwrap();
        vec![0x3c; spec.n_rows as usize * quant.row_bytes(spec.n_cols as usize)]
    });
    let data: Vec<Vec<u8>> = data.collect();
    let outcome = executor(program, &data, &how).and_then(|mut executor| {
        let batch = [items(0, 0, &[0, 1, 0, 1]), items(9, 0, &[0])].concat();
        forward(&mut executor, &batch)?;
        forward(&mut executor, &items(9, 1, &[0]))
    });
    assert!(!matches!(outcome, Err(Error::Internal(_))), "{outcome:?}");
}

/// Small llamas of all proportions.
fn dims() -> impl Strategy<Value = Dims> {
    let types = prop::sample::select(vec!["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"]);
    let heads = (1..4_u32, 1..4_u32, 12..18_u32);
    (types, heads, 2..50_u32, 1..50_u32, 1..50_u32).prop_map(
        |(matrix_type, (n_head_kv, group, head_dim), n_vocab, n_embd, n_ff)| {
            let blocks = matrix_type.starts_with('Q');
            let whole = |n: u32| if blocks { n.next_multiple_of(32) } else { n };
            Dims {
                n_vocab,
                n_embd: whole(n_embd),
                n_head: n_head_kv * group,
                n_head_kv,
                head_dim: whole(head_dim),
                n_ff: whole(n_ff),
                n_layers: 1,
                matrix_type,
                rope_style: "neox",
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn mutated_programs_never_panic_and_run_when_accepted(
        dims in dims(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), replacement()), 0..4)
    ) {
        let mut program = llama(&dims);
        let unchanged = changes.is_empty();
        for (index, with) in changes {
            let mut nodes = Vec::new();
            pointers(&program, "", &mut nodes);
            if !nodes.is_empty() {
                mutate(&mut program, index.get::<String>(&nodes), with);
            }
        }
        let program = Program::from_json(&program.to_string());
        prop_assert!(program.is_ok() || !unchanged, "{program:?}");
        if let Ok(program) = program {
            run_verified(&program);
        }
    }
}
