"""Writes GGUF byte by byte, for what GGUFWriter can't or won't write.

Empty and nested arrays, version 2, shards, and above all files that are wrong on purpose: every
field of the header is taken as it is given and nothing is checked. Knows no model. Used by
`tiny_gguf` (shards) and by the tests of the reader.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gguf.constants import GGUFValueType

_SCALAR_FORMATS = {
    GGUFValueType.UINT8: "<B",
    GGUFValueType.INT8: "<b",
    GGUFValueType.UINT16: "<H",
    GGUFValueType.INT16: "<h",
    GGUFValueType.UINT32: "<I",
    GGUFValueType.INT32: "<i",
    GGUFValueType.FLOAT32: "<f",
    GGUFValueType.BOOL: "<?",
    GGUFValueType.UINT64: "<Q",
    GGUFValueType.INT64: "<q",
    GGUFValueType.FLOAT64: "<d",
}


@dataclass(frozen=True)
class ArrayValue:
    """An array of metadata: the type of its items and the items (ArrayValues when nested)."""

    item_type: int
    items: Sequence[object]
    count: int | None = None  # the count that is written; None: the true one


@dataclass(frozen=True)
class TensorEntry:
    """A tensor record as it stands in the file: `dims` in GGUF's order, `offset` from the data."""

    name: str | bytes
    dims: Sequence[int]
    type_id: int
    offset: int
    n_dims: int | None = None  # the count that is written; None: the true one


@dataclass(frozen=True)
class GgufBytes:
    """A whole file in parts. `replace` one to make a wrong file; `encode` gives its bytes."""

    metadata: Sequence[tuple[str | bytes, int, object]] = ()  # key, type id, value
    tensors: Sequence[TensorEntry] = ()
    data: bytes = b""
    alignment: int = 32
    magic: bytes = b"GGUF"
    version: int = 3
    n_tensors: int | None = None
    n_keys: int | None = None
    prefix: bytes = b""  # encoded metadata entries that stand before the others
    n_prefix_keys: int = 0

    def encode_header(self) -> bytes:
        """Everything before the padding that precedes the tensor data."""
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_keys = len(self.metadata) + self.n_prefix_keys if self.n_keys is None else self.n_keys
        parts = [self.magic, struct.pack("<IQQ", self.version, n_tensors, n_keys), self.prefix]
        for key, type_id, value in self.metadata:
            parts += [encode_string(key), struct.pack("<I", type_id), encode_value(type_id, value)]
        for tensor in self.tensors:
            n_dims = len(tensor.dims) if tensor.n_dims is None else tensor.n_dims
            parts += [encode_string(tensor.name), struct.pack("<I", n_dims)]
            parts += [struct.pack("<Q", dim) for dim in tensor.dims]
            parts.append(struct.pack("<IQ", tensor.type_id, tensor.offset))
        return b"".join(parts)

    def encode(self) -> bytes:
        """The whole file: header, padding, data."""
        header = self.encode_header()
        return header + bytes(-len(header) % self.alignment) + self.data

    def write(self, path: Path) -> Path:
        """Writes `encode()` to `path`, which is returned."""
        path.write_bytes(self.encode())
        return path

    def with_metadata(self, *entries: tuple[str | bytes, int, object]) -> GgufBytes:
        """The same file with further metadata entries at the end."""
        return replace(self, metadata=[*self.metadata, *entries])


def encode_string(text: str | bytes) -> bytes:
    """A GGUF string: its length in bytes as u64, then the bytes."""
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def encode_value(type_id: int, value: object) -> bytes:
    """A metadata value without its type; bytes for a scalar stand for themselves."""
    if type_id == GGUFValueType.STRING:
        assert isinstance(value, str | bytes)
        return encode_string(value)
    if type_id == GGUFValueType.ARRAY:
        assert isinstance(value, ArrayValue)
        count = len(value.items) if value.count is None else value.count
        items = b"".join(encode_value(value.item_type, item) for item in value.items)
        return struct.pack("<IQ", value.item_type, count) + items
    if isinstance(value, bytes):
        return value
    return struct.pack(_SCALAR_FORMATS[GGUFValueType(type_id)], value)
