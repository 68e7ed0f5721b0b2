"""Headers: right ones read as GGUFReader reads them, wrong ones are refused by the field's name."""

from __future__ import annotations

import re
import struct
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_gguf
from gguf import GGUFReader
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from gguf_bytes import ArrayValue, GgufBytes, TensorEntry, encode_string
from hypothesis import given, settings
from hypothesis import strategies as st
from numamirror import gguf_header, gguf_values
from numamirror.errors import ModelFileError, NumaMirrorError, UnsupportedError
from numamirror.gguf_file import open_model
from numamirror.gguf_header import Header, read_header

T = GGUFValueType
F32 = int(GGMLQuantizationType.F32)
Q8_0 = int(GGMLQuantizationType.Q8_0)

ENTRY = ("k", T.UINT32, 1)
TENSOR = TensorEntry("t", [32, 2], Q8_0, 0)
GOOD = GgufBytes(metadata=[ENTRY], tensors=[TENSOR], data=bytes(96))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf_header")


def read(folder: Path, file: GgufBytes) -> Header:
    return read_header(file.write(folder / "m.gguf"))


def refuse(folder: Path, file: GgufBytes | bytes, kind: type[NumaMirrorError]) -> NumaMirrorError:
    path = folder / "wrong.gguf"
    path.write_bytes(file if isinstance(file, bytes) else file.encode())
    with pytest.raises(kind) as info:
        open_model(path)
    assert type(info.value) is kind
    assert str(info.value).startswith(f"{path}: ")
    assert "\n" not in str(info.value)
    return info.value


def plain(value: object) -> object:
    """A value with lists in place of arrays."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [plain(item) for item in value] if isinstance(value, list) else value


INTEGERS = {
    T.UINT8: st.integers(0, 2**8 - 1),
    T.INT8: st.integers(-(2**7), 2**7 - 1),
    T.UINT16: st.integers(0, 2**16 - 1),
    T.INT16: st.integers(-(2**15), 2**15 - 1),
    T.UINT32: st.integers(0, 2**32 - 1),
    T.INT32: st.integers(-(2**31), 2**31 - 1),
    T.UINT64: st.integers(0, 2**64 - 1),
    T.INT64: st.integers(-(2**63), 2**63 - 1),
}
SCALARS: dict[GGUFValueType, st.SearchStrategy[object]] = {
    **INTEGERS,
    T.FLOAT32: st.floats(width=32, allow_nan=False),
    T.FLOAT64: st.floats(allow_nan=False),
    T.BOOL: st.booleans(),
    T.STRING: st.text(max_size=20),
}


FLAT_ARRAYS = st.sampled_from(list(SCALARS)).flatmap(
    lambda type_: st.lists(SCALARS[type_], max_size=5).map(lambda xs: ArrayValue(type_, xs))
)
NESTED_ARRAYS = st.recursive(
    FLAT_ARRAYS,
    lambda arrays: st.lists(arrays, max_size=3).map(lambda xs: ArrayValue(T.ARRAY, xs)),
    max_leaves=4,
)
FLAT_VALUES = st.sampled_from(list(SCALARS)).flatmap(
    lambda type_: st.tuples(st.just(int(type_)), SCALARS[type_])
) | st.tuples(st.just(int(T.ARRAY)), FLAT_ARRAYS)
NESTED_VALUES = st.tuples(st.just(int(T.ARRAY)), NESTED_ARRAYS)


def keyed(values: Sequence[tuple[int, object]]) -> list[tuple[str | bytes, int, object]]:
    return [(f"key.{index}", type_, value) for index, (type_, value) in enumerate(values)]


@settings(deadline=None)
@given(st.lists(FLAT_VALUES, max_size=5), st.sampled_from([2, 3]))
def test_metadata_of_all_types_as_gguf_reads_it(
    folder: Path, values: list[tuple[int, object]], version: int
) -> None:
    header = read(folder, replace(GOOD, metadata=keyed(values), version=version))
    assert header.version == version
    fields = GGUFReader(folder / "m.gguf").fields
    wanted = {key: field.contents() for key, field in fields.items() if key.startswith("key.")}
    assert {key: plain(value) for key, value in header.metadata.items()} == wanted
    assert list(header.metadata) == list(wanted)


def written(value: object) -> object:
    """What a written value must come back as; a float32 is rounded before it is written."""
    return [written(item) for item in value.items] if isinstance(value, ArrayValue) else value


@settings(deadline=None)
@given(NESTED_ARRAYS)
def test_arrays_of_arrays_as_they_were_written(folder: Path, array: ArrayValue) -> None:
    header = read(folder, GOOD.with_metadata(("a", T.ARRAY, array)))
    assert plain(header.metadata["a"]) == written(array)


@settings(deadline=None)
@given(st.lists(st.text(max_size=12), max_size=4, unique=True))
def test_any_text_is_a_key(folder: Path, keys: list[str]) -> None:
    keys = [key for key in keys if key != "general.alignment"]
    header = read(folder, replace(GOOD, metadata=[(key, T.UINT8, 1) for key in keys]))
    assert list(header.metadata) == keys


TENSORS = st.lists(
    st.tuples(
        st.sampled_from(list(GGMLQuantizationType)),
        st.lists(st.integers(1, 3), min_size=1, max_size=4),
    ),
    max_size=6,
)


@settings(deadline=None)
@given(TENSORS, st.sampled_from([8, 32, 64, 4096]))
def test_tensor_records_as_gguf_reads_them(
    folder: Path, shapes: list[tuple[GGMLQuantizationType, list[int]]], alignment: int
) -> None:
    entries = []
    offset = 0
    for index, (type_, dims) in enumerate(shapes):
        block_elems, block_bytes = GGML_QUANT_SIZES[type_]
        entries.append(
            TensorEntry(f"t{index}", [dims[0] * block_elems, *dims[1:]], int(type_), offset)
        )
        n_bytes = int(np.prod(dims)) * block_bytes
        offset += -(-n_bytes // alignment) * alignment
    file = GgufBytes(
        metadata=[("general.alignment", T.UINT32, alignment)],
        tensors=entries,
        data=bytes(offset),
        alignment=alignment,
    )
    records = open_model(file.write(folder / "m.gguf")).tensors
    wanted = GGUFReader(folder / "m.gguf").tensors
    assert list(records) == [tensor.name for tensor in wanted]
    for record, tensor in zip(records.values(), wanted, strict=True):
        assert record.type == tensor.tensor_type.name
        assert record.shape == tuple(reversed(tensor.shape.tolist()))
        assert (record.offset, record.n_bytes) == (tensor.data_offset, tensor.n_bytes)


def test_arrays_are_typed_and_read_only(folder: Path) -> None:
    for type_, dtype in ((T.INT16, np.int16), (T.FLOAT64, np.float64), (T.BOOL, np.bool_)):
        file = GOOD.with_metadata(("a", T.ARRAY, ArrayValue(type_, [1, 0])))
        value = read(folder, file).metadata["a"]
        assert isinstance(value, np.ndarray)
        assert value.dtype == dtype
        assert not value.flags.writeable


def nest(depth: int) -> ArrayValue:
    value = ArrayValue(T.UINT8, [1])
    for _ in range(depth - 1):
        value = ArrayValue(T.ARRAY, [value])
    return value


HUGE = (2**31, 2**32, 2**61, 2**63, 2**64 - 1)
LONG_ARRAYS = [
    (GOOD.with_metadata(("key", T.ARRAY, ArrayValue(type_, [], count))), "'key'.* takes (at|[0-9])")
    for type_ in (T.UINT8, T.FLOAT64, T.BOOL, T.STRING, T.ARRAY)
    for count in HUGE
]


def with_length(n_bytes: int) -> bytes:
    """A file with a string that claims another length."""
    raw = GOOD.with_metadata(("key", T.STRING, "text")).encode()
    return raw.replace(encode_string("text"), struct.pack("<Q", n_bytes) + b"text")


WRONG: list[tuple[GgufBytes | bytes, str]] = [
    *LONG_ARRAYS,
    (with_length(2**63), "'key' has 9223372036854775808 bytes, 134217728 at most were"),
    (with_length(1000), "'key' takes 1000 bytes from byte [0-9]+, [0-9]+ are left in the file"),
    (replace(GOOD, n_tensors=2**64 - 1), "tensor count of 18446744073709551615 takes at least"),
    (replace(GOOD, n_tensors=3).encode_header(), "tensor count of 3 takes at least 96 bytes"),
    (
        replace(GOOD, n_tensors=2),
        "length of name of tensor record 2 of 2 takes|overlap|there twice",
    ),
    (replace(GOOD, n_keys=2**62), "metadata key count of 4611686018427387904 takes at least"),
    (replace(GOOD, metadata=[ENTRY, ENTRY]), "metadata 'k' is there twice"),
    (replace(GOOD, metadata=[(b"\xff", T.UINT8, 1)]), "metadata key 1 of 1 is not utf-8"),
    (replace(GOOD, metadata=[("x" * 65536, T.UINT8, 1)]), "key 1 of 1 has 65536 bytes, 65535 at"),
    (GOOD.with_metadata(("key", 13, b"")), "'key' has value type 13, 0 to 12 were expected"),
    (GOOD.with_metadata(("key", T.BOOL, b"\2")), "'key' is the boolean 2, 0 or 1 was expected"),
    (GOOD.with_metadata(("key", T.STRING, b"\xff")), "'key' is not utf-8: invalid start byte"),
    (
        GOOD.with_metadata(("key", T.ARRAY, ArrayValue(T.BOOL, [b"\1", b"\3"]))),
        r"'key'\[1\] is the boolean 3",
    ),
    (
        GOOD.with_metadata(("key", T.ARRAY, ArrayValue(T.STRING, ["a", b"b\xc3"]))),
        r"'key'\[1\] is not utf-8: unexpected end of data at its byte 1",
    ),
    (GOOD.with_metadata(("key", T.ARRAY, ArrayValue(99, []))), "'key' has value type 99"),
    (GOOD.with_metadata(("key", T.ARRAY, nest(9))), "nests arrays more than 8 deep"),
    (GOOD.with_metadata(("general.alignment", T.UINT32, 0)), "'general.alignment' is 0, 1 to"),
    (GOOD.with_metadata(("general.alignment", T.UINT32, 48)), "alignment is 48, a power of two"),
    (GOOD.with_metadata(("general.alignment", T.STRING, "32")), "an integer was expected"),
    (replace(GOOD, tensors=[TENSOR, replace(TENSOR, offset=96)]), "tensor 't' is there twice"),
    (
        replace(GOOD, tensors=[TENSOR, replace(TENSOR, name="u", offset=64)]),
        "tensors 't' and 'u' overlap: the first ends at byte 68 of the data, the second .* at 64",
    ),
    (replace(GOOD, tensors=[replace(TENSOR, n_dims=0)]), "'t' has 0 dimensions, 1 to 4 were"),
    (replace(GOOD, tensors=[replace(TENSOR, n_dims=5)]), "'t' has 5 dimensions, 1 to 4 were"),
    (replace(GOOD, tensors=[replace(TENSOR, n_dims=2**32 - 1)]), "'t' has 4294967295 dimensions"),
    (replace(GOOD, tensors=[replace(TENSOR, dims=[32, 0])]), r"'t' has the shape \(32, 0\)"),
    (replace(GOOD, tensors=[replace(TENSOR, dims=[2**32, 2**32])]), "'t' has the shape"),
    (replace(GOOD, tensors=[replace(TENSOR, dims=[2**63, 1])]), "'t' has the shape"),
    (replace(GOOD, tensors=[replace(TENSOR, dims=[33, 1])]), "rows of 33 values, a multiple of 32"),
    (replace(GOOD, tensors=[replace(TENSOR, offset=16)]), "offset 16, a multiple of 32"),
    (replace(GOOD, tensors=[replace(TENSOR, offset=2**64 - 32)]), "offset 18446744073709551584"),
    (replace(GOOD, tensors=[replace(TENSOR, offset=2**40)]), "truncated: tensor 't' takes bytes"),
    (replace(GOOD, tensors=[replace(TENSOR, dims=[2**30, 2**30])]), "truncated: tensor 't'"),
    (replace(GOOD, tensors=[replace(TENSOR, name="n" * 65)]), "name of .* 1 of 1 has 65 bytes, 64"),
    (replace(GOOD, tensors=[replace(TENSOR, name=b"\xff")]), "name of tensor record 1 of 1 is not"),
]


@pytest.mark.parametrize(("file", "message"), WRONG)
def test_a_wrong_field_is_named(folder: Path, file: GgufBytes | bytes, message: str) -> None:
    assert re.search(message, str(refuse(folder, file, ModelFileError)))


def test_an_unknown_tensor_type_is_unsupported(folder: Path) -> None:
    error = refuse(folder, replace(GOOD, tensors=[replace(TENSOR, type_id=4242)]), UnsupportedError)
    assert "tensor 't' has the unknown GGML type 4242" in str(error)
    assert error.hint is not None


@pytest.mark.parametrize("version", [0, 1, 4, 2**32 - 1])
def test_other_versions_are_unsupported(folder: Path, version: int) -> None:
    error = refuse(folder, replace(GOOD, version=version), UnsupportedError)
    assert f"GGUF version {version}, 2 or 3 was expected" in str(error)


def test_big_endian_is_unsupported_by_name(folder: Path) -> None:
    error = refuse(folder, replace(GOOD, version=3 << 24), UnsupportedError)
    assert "big-endian" in str(error)
    assert error.hint is not None


@pytest.mark.parametrize(
    ("limit", "value", "file"),
    [
        ("MAX_STRINGS", 9, GOOD.with_metadata(("a", T.ARRAY, ArrayValue(T.STRING, ["x"] * 10)))),
        ("MAX_NESTED_ARRAYS", 3, GOOD.with_metadata(("a", T.ARRAY, nest(5)))),
        ("MAX_HEADER_BYTES", 64, GOOD.with_metadata(("a", T.STRING, "x" * 60))),
        ("MAX_KEYS", 1, GOOD.with_metadata(("a", T.UINT8, 1))),
        ("MAX_TENSORS", 0, GOOD),
    ],
)
def test_the_bounds_of_a_header_hold(
    folder: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, file: GgufBytes
) -> None:
    read(folder, file)
    for module in (gguf_values, gguf_header):
        if hasattr(module, limit):
            monkeypatch.setattr(module, limit, value)
    assert re.search(str(value), str(refuse(folder, file, ModelFileError)))


def test_names_from_a_file_can_not_break_the_line(folder: Path) -> None:
    file = GOOD.with_metadata(("a\nb\x1b[2J", 77, b""))
    assert r"'a\nb\x1b[2J'" in str(refuse(folder, file, ModelFileError))


@pytest.fixture(scope="module")
def tiny_bytes(folder: Path) -> bytes:
    path = folder / "tiny.gguf"
    tiny_gguf.write_llama(path, tokenizer="bpe", quant={"attn": "Q4_1", "ffn": "Q8_0"})
    return path.read_bytes()


INTERESTING = [0, 1, 2, 3, 8, 9, 12, 13, 31, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1]
INTERESTING_64 = [*INTERESTING, 2**32, 2**61, 2**63 - 1, 2**63, 2**64 - 1]
POSITIONS = st.one_of(st.integers(0, 600), st.integers(0, 10**6))
MUTATIONS = st.one_of(
    st.tuples(st.just("u32"), POSITIONS, st.sampled_from(INTERESTING)),
    st.tuples(st.just("u64"), POSITIONS, st.sampled_from(INTERESTING_64)),
    st.tuples(st.just("byte"), POSITIONS, st.integers(0, 255)),
    st.tuples(st.just("drop"), POSITIONS, st.integers(1, 40)),
    st.tuples(st.just("insert"), POSITIONS, st.integers(1, 40)),
    st.tuples(st.just("cut"), POSITIONS, st.just(0)),
)


def mutate(raw: bytes, kind: str, position: int, value: int) -> bytes:
    at = position % len(raw)
    match kind:
        case "u32":
            return raw[:at] + struct.pack("<I", value) + raw[at + 4 :]
        case "u64":
            return raw[:at] + struct.pack("<Q", value) + raw[at + 8 :]
        case "byte":
            return raw[:at] + bytes([value]) + raw[at + 1 :]
        case "drop":
            return raw[:at] + raw[at + value :]
        case "insert":
            return raw[:at] + bytes(value) + raw[at:]
        case _:
            return raw[:at]


def open_or_refuse(path: Path) -> None:
    """Opens a file that may be wrong: any error must be ours, and little memory be used."""
    message = f"{path}: opened"
    tracemalloc.start()
    try:
        model = open_model(path)
        model.describe()
        size = path.stat().st_size if model.complete else 2**63
        assert all(t.offset + t.n_bytes <= size for t in model.tensors.values())
    except NumaMirrorError as error:
        message = str(error)
    finally:
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert len(message) < 1000
    assert peak_bytes < 2_000_000


@settings(deadline=None, max_examples=300)
@given(st.lists(MUTATIONS, min_size=1, max_size=3))
def test_a_mutated_model_opens_or_is_refused(
    folder: Path, tiny_bytes: bytes, mutations: list[tuple[str, int, int]]
) -> None:
    raw = tiny_bytes
    for kind, position, value in mutations:
        raw = mutate(raw, kind, position, value) or b"G"
    path = folder / "mutated.gguf"
    path.write_bytes(raw)
    open_or_refuse(path)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(FLAT_VALUES | NESTED_VALUES, max_size=4), st.lists(MUTATIONS, min_size=1, max_size=2)
)
def test_mutated_metadata_of_all_types_opens_or_is_refused(
    folder: Path, values: list[tuple[int, object]], mutations: list[tuple[str, int, int]]
) -> None:
    raw = replace(GOOD, metadata=keyed(values)).encode()
    for kind, position, value in mutations:
        raw = mutate(raw, kind, position, value) or b"G"
    path = folder / "mutated.gguf"
    path.write_bytes(raw)
    open_or_refuse(path)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_noise_after_a_magic_and_a_version_is_refused(folder: Path, noise: bytes) -> None:
    path = folder / "noise.gguf"
    path.write_bytes(b"GGUF\3\0\0\0" + noise)
    open_or_refuse(path)


def test_every_cut_of_a_header_is_refused(folder: Path) -> None:
    raw = GOOD.with_metadata(
        ("s", T.STRING, "text"), ("a", T.ARRAY, ArrayValue(T.STRING, ["x", "yz"]))
    ).encode_header()
    path = folder / "cut.gguf"
    for n_bytes in range(1, len(raw)):
        path.write_bytes(raw[:n_bytes])
        with pytest.raises(ModelFileError) as info:
            read_header(path)
        assert n_bytes < 4 or info.value.hint is not None
    path.write_bytes(raw)
    assert not open_model(path).complete


def test_a_string_length_is_checked_before_anything_is_allocated(folder: Path) -> None:
    raw = GOOD.encode_header().replace(encode_string("k"), struct.pack("<Q", 2**40) + b"k")
    assert "has 1099511627776 bytes" in str(refuse(folder, raw, ModelFileError))
