"""Reads the header of one GGUF file: metadata and tensor records, each field checked.

Holds every check that needs no more than the header and the file's size. Knows nothing of shards,
architectures or what a key means, and reads no tensor data. Called by `gguf_file`, once a shard.

Source: github.com/ggml-org/ggml, docs/gguf.md; limits that it leaves open are named below.
"""

from __future__ import annotations

import mmap
import stat
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path

from gguf.constants import (
    GGML_QUANT_SIZES,
    GGUF_DEFAULT_ALIGNMENT,
    GGMLQuantizationType,
    Keys,
)

from numamirror.errors import ModelFileError, UnsupportedError
from numamirror.file_kind import N_FIRST_BYTES, recognize
from numamirror.gguf_metadata import Metadata, MetadataValue, shown
from numamirror.gguf_values import FETCH_AGAIN, U32, U64, ValueReader

MAGIC = b"GGUF"
VERSIONS = (2, 3)

# As in gguf_values: several times what any published file has.
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 18

# docs/gguf.md: keys of at most 65535 bytes, tensor names of at most 64, at most 4 dimensions.
_MAX_KEY_BYTES = 65535
_MAX_NAME_BYTES = 64
_MAX_DIMS = 4
_INT64_MAX = 2**63 - 1

_MIN_KEY_BYTES = 8 + 4 + 1  # an empty key with a value of one byte
_MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8  # an empty name and one dimension


@dataclass(frozen=True)
class TensorInfo:
    """A tensor record as the header has it.

    Attributes:
        name: Its name.
        dims: 1 to 4 dimensions in GGUF's order: the contiguous one first.
        type: The name of its GGML type.
        offset: Its first byte, from the start of the tensor data.
        n_bytes: Its size.
    """

    name: str
    dims: tuple[int, ...]
    type: str
    offset: int
    n_bytes: int


@dataclass(frozen=True, eq=False)
class Header:
    """All that stands before the tensor data of one file.

    Attributes:
        path: The file.
        file_bytes: Its size.
        version: GGUF version, 2 or 3.
        metadata: Its metadata.
        tensors: Its tensor records, in file order.
        end: The byte after the last tensor record.
        data_start: The byte at which tensor data starts: `end`, aligned.
    """

    path: Path
    file_bytes: int
    version: int
    metadata: Metadata
    tensors: tuple[TensorInfo, ...]
    end: int
    data_start: int


def read_header(path: Path) -> Header:
    """Reads and checks the header of one file, over a memory map.

    Args:
        path: A GGUF file, whole or one shard.

    Returns:
        The header. Whether the tensor data is all there is not checked.

    Raises:
        ModelFileError: The file can't be read, is no GGUF, or a field of it is wrong.
        UnsupportedError: A version, byte order or tensor type that is not read here.
    """
    try:
        _check_is_regular(path)
        with path.open("rb") as file:
            _check_magic(path, file.read(N_FIRST_BYTES))
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(path, data)
    except FileNotFoundError as error:
        hint = _hint_from_folder(path.parent)
        raise ModelFileError(f"{path}: no such file", hint=hint) from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ModelFileError(f"{path}: can't be read: {reason}") from error


def _check_is_regular(path: Path) -> None:
    """Refuses what can't be mapped, before it is opened: opening a pipe would wait for ever."""
    if "\0" in str(path):
        raise ModelFileError(f"{str(path)!r}: not a path: it holds a NUL")
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        hint = _hint_from_folder(path)
        raise ModelFileError(f"{path}: is a directory, a .gguf file was expected", hint=hint)
    if not stat.S_ISREG(mode):
        raise ModelFileError(f"{path}: not a regular file, a .gguf file was expected")


def _hint_from_folder(folder: Path) -> str | None:
    """Names the first GGUF file in a folder, as the one that may be meant."""
    found = min(folder.glob("*.gguf"), default=None)
    return f"perhaps {found} is meant" if found else None


def _check_magic(path: Path, first_bytes: bytes) -> None:
    """Refuses what is no GGUF, saying what it is instead if that can be seen."""
    if not first_bytes:
        raise ModelFileError(f"{path}: the file is empty", hint=FETCH_AGAIN)
    if first_bytes.startswith(MAGIC):
        return
    kind = recognize(first_bytes)
    if kind is not None:
        raise ModelFileError(f"{path}: not a GGUF file: it looks like {kind.name}", hint=kind.hint)
    found = f"it starts with {first_bytes[: len(MAGIC)]!r}, {MAGIC!r} was expected"
    raise ModelFileError(f"{path}: not a GGUF file: {found}")


def _parse(path: Path, data: mmap.mmap) -> Header:
    """Walks over the header once."""
    reader = ValueReader(path, data)
    reader.position = len(MAGIC)
    version = reader.integer(U32, "version")
    _check_version(path, version)
    n_tensors = _count(reader, "tensor count", MAX_TENSORS, _MIN_TENSOR_BYTES)
    n_keys = _count(reader, "metadata key count", MAX_KEYS, _MIN_KEY_BYTES)
    metadata = Metadata(_read_metadata(reader, n_keys), path)
    alignment = metadata.get_int(Keys.General.ALIGNMENT, GGUF_DEFAULT_ALIGNMENT, minimum=1)
    if alignment & (alignment - 1):
        raise reader.error(f"{Keys.General.ALIGNMENT} is {alignment}, a power of two was expected")
    tensors = tuple(
        _read_tensor_info(reader, f"tensor record {number} of {n_tensors}", alignment)
        for number in range(1, n_tensors + 1)
    )
    _check_apart(reader, tensors)
    return Header(
        path=path,
        file_bytes=len(data),
        version=version,
        metadata=metadata,
        tensors=tensors,
        end=reader.position,
        data_start=-(-reader.position // alignment) * alignment,
    )


def _check_version(path: Path, version: int) -> None:
    if version in VERSIONS:
        return
    if version & 0xFFFF == 0 and version:
        raise UnsupportedError(
            f"{path}: a big-endian GGUF file, little-endian was expected",
            hint="turn a copy of it round with gguf-convert-endian of the gguf package",
        )
    raise UnsupportedError(
        f"{path}: GGUF version {version}, 2 or 3 was expected",
        hint="convert the original model again with a current llama.cpp" if version == 1 else None,
    )


def _count(reader: ValueReader, what: str, maximum: int, min_bytes: int) -> int:
    """Reads a count that the rest of the header can hold."""
    count = reader.integer(U64, what)
    reader.check_room(count, min_bytes, what)
    if count > maximum:
        raise reader.error(f"{what} is {count}, {maximum} at most were expected")
    return count


def _read_metadata(reader: ValueReader, n_keys: int) -> dict[str, MetadataValue]:
    values: dict[str, MetadataValue] = {}
    for number in range(1, n_keys + 1):
        key = reader.text(f"metadata key {number} of {n_keys}", _MAX_KEY_BYTES)
        if key in values:
            raise reader.error(f"metadata {shown(key)} is there twice")
        values[key] = reader.value(f"metadata {shown(key)}")
    return values


def _read_tensor_info(reader: ValueReader, record: str, alignment: int) -> TensorInfo:
    name = reader.text(f"name of {record}", _MAX_NAME_BYTES)
    what = f"tensor {shown(name)}"
    n_dims = reader.integer(U32, f"dimension count of {what}")
    if not 1 <= n_dims <= _MAX_DIMS:
        raise reader.error(f"{what} has {n_dims} dimensions, 1 to {_MAX_DIMS} were expected")
    dims = tuple(reader.integer(U64, f"dimension {axis} of {what}") for axis in range(n_dims))
    if min(dims) < 1 or prod(dims) > _INT64_MAX:
        raise reader.error(f"{what} has the shape {dims}, 1 to {_INT64_MAX} values were expected")
    type_id = reader.integer(U32, f"type of {what}")
    offset = reader.integer(U64, f"offset of {what}")
    if type_id not in GGML_QUANT_SIZES:
        raise UnsupportedError(
            f"{reader.path}: {what} has the unknown GGML type {type_id}",
            hint="types of newer files come with a newer gguf package",
        )
    type_ = GGMLQuantizationType(type_id)
    block_elems, block_bytes = GGML_QUANT_SIZES[type_]
    if dims[0] % block_elems:
        raise reader.error(
            f"{what} has rows of {dims[0]} values, a multiple of {block_elems} was expected "
            f"for {type_.name}"
        )
    n_bytes = prod(dims) // block_elems * block_bytes
    if offset % alignment or offset + n_bytes > _INT64_MAX:
        raise reader.error(
            f"{what} of {n_bytes} bytes has the offset {offset}, a multiple of {alignment} "
            f"below 2**63 was expected"
        )
    return TensorInfo(name, dims, type_.name, offset, n_bytes)


def _check_apart(reader: ValueReader, tensors: tuple[TensorInfo, ...]) -> None:
    """Refuses two tensors of one name or with common bytes."""
    names: set[str] = set()
    for tensor in tensors:
        if tensor.name in names:
            raise reader.error(f"tensor {shown(tensor.name)} is there twice")
        names.add(tensor.name)
    in_order = sorted(tensors, key=lambda tensor: tensor.offset)
    for before, after in pairwise(in_order):
        if before.offset + before.n_bytes > after.offset:
            raise reader.error(
                f"tensors {shown(before.name)} and {shown(after.name)} overlap: the first ends "
                f"at byte {before.offset + before.n_bytes} of the data, the second starts at "
                f"{after.offset}"
            )
