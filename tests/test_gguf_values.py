"""Values: right ones come back as GGUFReader reads them, wrong ones are refused by their key."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.constants import GGUFValueType
from gguf_bytes import ArrayValue, GgufBytes, encode_string
from gguf_strategies import FLAT_VALUES, NESTED_ARRAYS, keyed
from hypothesis import given, settings
from hypothesis import strategies as st
from numamirror import gguf_values
from numamirror.errors import ModelFileError
from numamirror.gguf_header import Header, read_header

T = GGUFValueType
GOOD = GgufBytes(metadata=[("k", T.UINT32, 1)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf_values")


def read(folder: Path, file: GgufBytes) -> Header:
    return read_header(file.write(folder / "m.gguf"))


def plain(value: object) -> object:
    """A value with lists in place of arrays."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [plain(item) for item in value] if isinstance(value, list) else value


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
]


def refuse(folder: Path, file: GgufBytes | bytes) -> str:
    path = folder / "wrong.gguf"
    path.write_bytes(file if isinstance(file, bytes) else file.encode())
    with pytest.raises(ModelFileError) as info:
        read_header(path)
    assert str(info.value).startswith(f"{path}: ")
    return str(info.value)


@pytest.mark.parametrize(("file", "message"), WRONG)
def test_a_wrong_value_is_named(folder: Path, file: GgufBytes | bytes, message: str) -> None:
    assert re.search(message, refuse(folder, file))


@pytest.mark.parametrize(
    ("limit", "value", "file"),
    [
        ("MAX_STRINGS", 9, GOOD.with_metadata(("a", T.ARRAY, ArrayValue(T.STRING, ["x"] * 10)))),
        ("MAX_NESTED_ARRAYS", 3, GOOD.with_metadata(("a", T.ARRAY, nest(5)))),
        ("MAX_HEADER_BYTES", 64, GOOD.with_metadata(("a", T.STRING, "x" * 60))),
    ],
)
def test_the_bounds_of_values_hold(
    folder: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, file: GgufBytes
) -> None:
    read(folder, file)
    monkeypatch.setattr(gguf_values, limit, value)
    assert str(value) in refuse(folder, file)


def test_names_from_a_file_can_not_break_the_line(folder: Path) -> None:
    file = GOOD.with_metadata(("a\nb\x1b[2J", 77, b""))
    assert r"'a\nb\x1b[2J'" in refuse(folder, file)
