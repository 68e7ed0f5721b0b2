//! Loading: every type from files to memory and back, damaged files, progress, cancelling.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod models;

use std::fs;

use models::{Random, anywhere, file, random_rows, workers};
use numamirror_core::buffer::{self, Buffer};
use numamirror_core::error::{Error, Result};
use numamirror_core::isa::{self, Isa};
use numamirror_core::load::{Source, WeightFile, load, open};
use numamirror_core::memory::HUGE_PAGE_BYTES;
use numamirror_core::quant;
use numamirror_core::weights::{Layout, NodeWeights, Role, TensorId, TensorSpec, Weights};
use numamirror_core::workers::{Control, NodeIndex};

fn spec(name: &str, type_name: &str, n_rows: u32, n_cols: u32, role: Role) -> TensorSpec {
    TensorSpec {
        name: name.into(),
        type_name: type_name.into(),
        n_rows,
        n_cols,
        role,
    }
}

/// One tensor from the start of one file.
fn load_one(spec: TensorSpec, bytes: &[u8]) -> Result<Weights> {
    let sources = [Source { file: 0, offset: 0 }];
    load_from(&[spec], &[file(bytes)], &sources, isa::choose(None)?, 0)
}

fn load_from(
    specs: &[TensorSpec],
    files: &[WeightFile],
    sources: &[Source],
    isa: &Isa,
    first_buffer: usize,
) -> Result<Weights> {
    // The last two nodes have no workers: others fill their memory.
    let nodes = [2, 1, 0, 0];
    let names = buffer::names(nodes.len());
    let of_tensor = names.iter().cycle().skip(first_buffer).take(specs.len());
    let buffers: Vec<Buffer> = of_tensor
        .map(|name| Buffer::by_name(name, nodes.len()).unwrap())
        .collect();
    let layout = Layout::on_nodes(specs, &buffers, &nodes, isa)?;
    let workers = workers(&nodes[..2]);
    load(
        layout,
        &anywhere(nodes.len()),
        files,
        sources,
        &workers,
        &mut |_| Control::Continue,
    )
}

fn random(spec: &TensorSpec) -> Vec<u8> {
    let (n_rows, n_cols) = (spec.n_rows as usize, spec.n_cols as usize);
    random_rows(&spec.type_name, n_rows, n_cols, &mut Random(7))
}

fn decoded(spec: &TensorSpec, bytes: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; spec.n_rows as usize * spec.n_cols as usize];
    quant::by_name(&spec.type_name)
        .unwrap()
        .dequantize(bytes, &mut values);
    values
}

fn check_rows(weights: &NodeWeights<'_>, id: u32, spec: &TensorSpec, bytes: &[u8]) {
    let mut row = vec![f32::NAN; spec.n_cols as usize];
    let expected = decoded(spec, bytes);
    for (i, expected) in expected.chunks_exact(row.len()).enumerate() {
        weights
            .matrix(TensorId(id))
            .unpack_row(i, &mut row)
            .unwrap();
        assert_eq!(row, expected, "{} row {i}", spec.name);
    }
}

#[test]
fn every_type_comes_back_as_it_was_from_several_files() {
    let mut specs = Vec::new();
    for quant in quant::TYPES {
        let name = |what: &str| format!("{} {what}", quant.name);
        // Several pieces and a last panel that is not full; a row; a vector.
        specs.push(spec(&name("large"), quant.name, 601, 1024, Role::Matrix));
        specs.push(spec(&name("row"), quant.name, 1, 96, Role::Matrix));
        specs.push(spec(&name("vector"), quant.name, 1, 160, Role::Vector));
    }
    let data: Vec<_> = specs.iter().map(random).collect();
    // Dealt to three files, with bytes between them that belong to none.
    let mut contents = [vec![0xff; 1], vec![0xff; 13], Vec::new()];
    let mut sources = Vec::new();
    for (i, bytes) in data.iter().enumerate() {
        let file = i % contents.len();
        sources.push(Source {
            file,
            offset: contents[file].len() as u64,
        });
        contents[file].extend(bytes);
        contents[file].extend([0xff; 7]);
    }
    let files = contents.map(|bytes| file(&bytes));
    let isas = isa::available();
    for first_buffer in 0..buffer::names(4).len() {
        let isa = isas[first_buffer % isas.len()];
        let weights = load_from(&specs, &files, &sources, isa, first_buffer).unwrap();
        assert!(weights.are_of(&specs) && !weights.are_of(&specs[1..]));
        for weights in [0, 1, 2, 3].map(|node| weights.on(NodeIndex(node))) {
            for ((id, spec), bytes) in (0..).zip(&specs).zip(&data) {
                match spec.role {
                    Role::Matrix => check_rows(&weights, id, spec, bytes),
                    Role::Vector => assert_eq!(weights.vector(TensorId(id)), decoded(spec, bytes)),
                }
            }
        }
    }
}

#[test]
fn files_are_opened_once_and_missing_ones_are_named() {
    let path = std::env::temp_dir().join(format!("numamirror-open-{}", std::process::id()));
    fs::write(&path, [0; 8]).unwrap();
    let name = path.display().to_string();
    let (files, sources) = open(&[(name.clone(), 0), (name.clone(), 4)]).unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!((files.len(), sources[1].file, sources[1].offset), (1, 0, 4));
    let error = open(&[(name.clone(), 0)]).unwrap_err().to_string();
    assert!(error.contains(&name), "{error}");
}

#[test]
fn a_file_that_is_too_short_is_named_with_its_tensor() {
    for role in [Role::Matrix, Role::Vector] {
        let spec = spec("blk.0.attn_q", "F32", 1, 64, role);
        let short = file(&random(&spec)[..255]);
        let path = short.path.clone();
        let layout = |buffer| layout(&[buffer], std::slice::from_ref(&spec), &[1]);
        let files = [short];
        let offsets = [0, 1 << 40, u64::MAX - 100, u64::MAX];
        let both = offsets.map(|offset| ["SPLIT", "MMAP"].map(|buffer| (offset, buffer)));
        for (offset, buffer) in both.into_iter().flatten() {
            let sources = [Source { file: 0, offset }];
            let workers = workers(&[1]);
            let answer = load(
                layout(buffer),
                &anywhere(1),
                &files,
                &sources,
                &workers,
                &mut |_| Control::Continue,
            );
            match answer {
                Err(Error::ReadWeights {
                    tensor,
                    path: found,
                    ..
                }) => {
                    assert_eq!((tensor, found), ("blk.0.attn_q".to_owned(), path.clone()));
                }
                other => panic!("offset {offset}, {buffer}: {other:?}"),
            }
        }
    }
}

#[test]
fn numbers_that_are_not_finite_are_named_by_row_and_column() {
    const NAN: [u8; 2] = 0x7e00_u16.to_le_bytes();
    const INFINITY: [u8; 2] = 0xfc00_u16.to_le_bytes();
    // Type, byte of a row, bytes put there, first column of the block.
    let cases: [(&str, usize, &[u8], usize); 9] = [
        ("F32", 4 * 77, &f32::NAN.to_le_bytes(), 77),
        ("F32", 4 * 1023, &f32::INFINITY.to_le_bytes(), 1023),
        ("F16", 2 * 5, &INFINITY, 5),
        ("BF16", 2 * 31, &0x7f80_u16.to_le_bytes(), 31),
        ("Q8_0", 34 * 2, &NAN, 64),
        ("Q8_0", 0, &INFINITY, 0),
        ("Q4_0", 18 * 31, &NAN, 992),
        ("Q4_1", 20, &INFINITY, 32),
        ("Q4_1", 20 * 3 + 2, &NAN, 96),
    ];
    for (type_name, at, bytes, bad_col) in cases {
        let places = [
            (601, 600, Role::Matrix),
            (13, 9, Role::Matrix),
            (1, 0, Role::Vector),
        ];
        for (n_rows, bad_row, role) in places {
            let spec = spec("bad", type_name, n_rows, 1024, role);
            let mut data = random(&spec);
            let row_bytes = data.len() / n_rows as usize;
            data[bad_row * row_bytes + at..][..bytes.len()].copy_from_slice(bytes);
            match load_one(spec, &data) {
                Err(Error::NonFiniteWeight { tensor, row, col }) => {
                    let found = (tensor.as_str(), row, col);
                    assert_eq!(found, ("bad", bad_row, bad_col), "{type_name} {role:?}");
                }
                other => panic!("{type_name}: {other:?}"),
            }
        }
    }
}

/// Whether the process has a mapping of exactly this size.
fn is_mapped(n_bytes: usize) -> bool {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| {
        let range = line.split(' ').next().unwrap();
        let (start, end) = range.split_once('-').unwrap();
        let address = |text| usize::from_str_radix(text, 16).unwrap();
        address(end) - address(start) == n_bytes
    })
}

#[test]
fn a_load_can_be_cancelled_and_gives_its_memory_back() {
    // A file of holes: long enough to load that the first report comes meanwhile.
    let spec = spec("large", "Q8_0", 500_000, 1024, Role::Matrix);
    let n_bytes = 500_000 * 34 * 32;
    let files = [file(&[])];
    files[0].file.set_len(n_bytes).unwrap();
    let layout = Layout::new(&[spec], isa::choose(None).unwrap()).unwrap();
    let mapped_bytes = layout.n_bytes().next_multiple_of(HUGE_PAGE_BYTES);
    let mut was_mapped = false;
    let mut cancel = |done| {
        assert!(
            done < n_bytes,
            "the load was done before it could be cancelled"
        );
        was_mapped = is_mapped(mapped_bytes);
        Control::Cancel
    };
    let sources = [Source { file: 0, offset: 0 }];
    let answer = load(
        layout,
        &anywhere(1),
        &files,
        &sources,
        &workers(&[2]),
        &mut cancel,
    );
    assert!(matches!(answer, Err(Error::Interrupted)), "{answer:?}");
    assert!(was_mapped && !is_mapped(mapped_bytes));
}

#[test]
fn progress_rises_to_the_bytes_of_all_tensors() {
    let specs = [
        spec("a", "F32", 40_000, 256, Role::Matrix),
        spec("b", "Q4_1", 9, 64, Role::Matrix),
        spec("c", "F32", 1, 64, Role::Vector),
    ];
    let data: Vec<u8> = specs.iter().flat_map(random).collect();
    let ends = specs.iter().scan(0, |end, spec| {
        let start = *end;
        *end += random(spec).len() as u64;
        Some(Source {
            file: 0,
            offset: start,
        })
    });
    let sources: Vec<_> = ends.collect();
    let mut reports = Vec::new();
    let layout = Layout::new(&specs, isa::choose(None).unwrap()).unwrap();
    let mut note = |done| {
        reports.push(done);
        Control::Continue
    };
    load(
        layout,
        &anywhere(1),
        &[file(&data)],
        &sources,
        &workers(&[1]),
        &mut note,
    )
    .unwrap();
    assert!(reports.is_sorted(), "{reports:?}");
    assert_eq!(reports.last(), Some(&(data.len() as u64)));
}

#[test]
fn impossible_layouts_are_refused() {
    let isa = isa::choose(None).unwrap();
    let ragged = Layout::new(&[spec("x", "Q8_0", 1, 33, Role::Matrix)], isa).unwrap_err();
    assert!(matches!(&ragged, Error::BadProgram { place, .. } if place == "tensor x"));
    let unknown = Layout::new(&[spec("x", "Q9_9", 1, 32, Role::Matrix)], isa).unwrap_err();
    assert!(matches!(unknown, Error::Unsupported { .. }));
    let most = u32::MAX;
    let specs = vec![spec("x", "F32", most, most, Role::Matrix); 9];
    let layout = Layout::new(&specs, isa).unwrap();
    assert_eq!(layout.n_bytes(), usize::MAX, "more than any memory");
    let sources = vec![Source { file: 0, offset: 0 }; 9];
    let refused = load_from(&specs, &[file(&[])], &sources, isa, 0).unwrap_err();
    assert!(matches!(refused, Error::MemoryLimit { .. }), "{refused}");
}

fn layout(names: &[&str], specs: &[TensorSpec], nodes: &[usize]) -> Layout {
    let buffers: Vec<Buffer> = names
        .iter()
        .map(|name| Buffer::by_name(name, nodes.len()).unwrap())
        .collect();
    Layout::on_nodes(specs, &buffers, nodes, isa::choose(None).unwrap()).unwrap()
}

#[test]
fn interleaved_bytes_are_the_end_of_the_first_arena_and_count_against_each_node() {
    let page = 4096;
    // 64 rows of 16 values are a page.
    let pages = |n_pages: u32| spec("x", "F32", 64 * n_pages, 16, Role::Matrix);
    let specs = [pages(700), pages(3), pages(1), pages(2)];
    let buffers = ["INTERLEAVE", "MIRROR", "NODE0", "NODE2"];
    let found = layout(&buffers, &specs, &[1, 1, 1]);
    // 700 pages are two huge ones, of which a node has at most one.
    assert_eq!(found.interleaved_bytes(), 2 * HUGE_PAGE_BYTES);
    assert_eq!(
        found.node_bytes(),
        [3 * HUGE_PAGE_BYTES, 3 * page, 5 * page]
    );
    let own = [HUGE_PAGE_BYTES, 3 * page, 5 * page];
    let budget = own.map(|n_bytes| n_bytes + HUGE_PAGE_BYTES);
    assert_eq!(found.budget_bytes(), budget);
    let plain = layout(&["SPLIT"; 4], &specs, &[1, 1, 1]);
    assert_eq!(plain.interleaved_bytes(), 0);
    assert_eq!(plain.budget_bytes(), plain.node_bytes());
}

#[test]
fn what_stays_in_its_file_takes_no_arena_bytes_and_is_not_read() {
    let specs = [
        spec("a", "Q8_0", 100, 64, Role::Matrix),
        spec("b", "F32", 8, 512, Role::Matrix),
        spec("c", "F32", 1, 64, Role::Vector),
    ];
    let found = layout(&["MMAP", "MIRROR", "MMAP"], &specs, &[1, 1]);
    // The second matrix, and the vector, which is mirrored whatever is asked for.
    let n_bytes = 8 * 512 * 4 + 4096;
    assert_eq!(found.node_bytes(), [n_bytes; 2]);
    assert_eq!(found.read_bytes(), 8 * 512 * 4 + 64 * 4);
    assert_eq!(layout(&["MMAP"], &specs[..1], &[1]).n_bytes(), 0);
}

#[test]
fn rows_that_went_bad_in_their_file_are_named_when_read() {
    let spec = spec("mapped", "Q4_1", 9, 64, Role::Matrix);
    let mut data = random(&spec);
    let row_bytes = data.len() / 9;
    data[8 * row_bytes + 20 + 2..][..2].copy_from_slice(&0x7e00_u16.to_le_bytes());
    let layout = layout(&["MMAP"], &[spec], &[1]);
    let sources = [Source { file: 0, offset: 0 }];
    let (files, workers) = ([file(&data)], workers(&[1]));
    let weights = load(
        layout,
        &anywhere(1),
        &files,
        &sources,
        &workers,
        &mut |_| Control::Continue,
    );
    let weights = weights.unwrap();
    let table = weights.on(NodeIndex(0)).matrix(TensorId(0));
    let mut row = [f32::NAN; 64];
    table.unpack_row(7, &mut row).unwrap();
    match table.unpack_row(8, &mut row) {
        Err(Error::NonFiniteWeight { tensor, row, col }) => {
            assert_eq!((tensor.as_str(), row, col), ("mapped", 8, 32));
        }
        other => panic!("{other:?}"),
    }
    assert!(row.iter().all(|value| value.to_bits() == 0));
}
