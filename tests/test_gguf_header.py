"""Headers: right ones read as GGUFReader reads them, wrong ones are refused by the field's name."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from gguf_bytes import ArrayValue, GgufBytes, TensorEntry, encode_string
from hypothesis import given, settings
from hypothesis import strategies as st
from numamirror import gguf_header
from numamirror.errors import ModelFileError, NumaMirrorError, UnsupportedError
from numamirror.gguf_file import open_model
from numamirror.gguf_header import Header, read_header

T = GGUFValueType
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


WRONG: list[tuple[GgufBytes | bytes, str]] = [
    (replace(GOOD, n_tensors=2**64 - 1), "tensor count of 18446744073709551615 takes at least"),
    (replace(GOOD, n_tensors=3).encode_header(), "tensor count of 3 takes at least 96 bytes"),
    (replace(GOOD, n_tensors=2).encode_header(), "name of tensor record 2 of 2 takes 8 bytes"),
    (replace(GOOD, n_keys=2**62), "metadata key count of 4611686018427387904 takes at least"),
    (replace(GOOD, metadata=[ENTRY, ENTRY]), "metadata 'k' is there twice"),
    (replace(GOOD, metadata=[(b"\xff", T.UINT8, 1)]), "metadata key 1 of 1 is not utf-8"),
    (replace(GOOD, metadata=[("x" * 65536, T.UINT8, 1)]), "key 1 of 1 has 65536 bytes, 65535 at"),
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
        ("MAX_KEYS", 1, GOOD.with_metadata(("a", T.UINT8, 1))),
        ("MAX_TENSORS", 0, GOOD),
    ],
)
def test_the_bounds_of_a_header_hold(
    folder: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, file: GgufBytes
) -> None:
    read(folder, file)
    monkeypatch.setattr(gguf_header, limit, value)
    assert re.search(str(value), str(refuse(folder, file, ModelFileError)))


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
