"""Reads the values that a GGUF header is made of, never past its bounds.

Holds the cursor over the bytes and the decoding of numbers, strings and arrays. Knows nothing of
keys, tensors or files other than their path. Driven by `gguf_header`.

Source: github.com/ggml-org/ggml, docs/gguf.md.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

import numpy as np
from gguf.constants import GGUFValueType

from numamirror.errors import ModelFileError
from numamirror.gguf_metadata import MetadataArray, MetadataValue, NumericArray
from numamirror.gguf_strings import StringError, read_strings

FETCH_AGAIN = "the download may be incomplete: fetch the file again and compare its size"

# The header of the largest models is below 32 MiB. These bounds keep a hostile one from using up
# memory or time; each is several times what any published file has.
MAX_HEADER_BYTES = 128 << 20
MAX_STRINGS = 1 << 22  # in all arrays together
MAX_NESTED_ARRAYS = 1 << 16
MAX_DEPTH = 8  # of arrays in arrays

_MIN_STRING_BYTES = 8
_MIN_ARRAY_BYTES = 4 + 8

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
_SCALARS = {
    GGUFValueType.UINT8: struct.Struct("<B"),
    GGUFValueType.INT8: struct.Struct("<b"),
    GGUFValueType.UINT16: struct.Struct("<H"),
    GGUFValueType.INT16: struct.Struct("<h"),
    GGUFValueType.UINT32: U32,
    GGUFValueType.INT32: struct.Struct("<i"),
    GGUFValueType.FLOAT32: struct.Struct("<f"),
    GGUFValueType.BOOL: struct.Struct("<B"),
    GGUFValueType.UINT64: U64,
    GGUFValueType.INT64: struct.Struct("<q"),
    GGUFValueType.FLOAT64: struct.Struct("<d"),
}


class ValueReader:
    """A cursor over a header.

    `what` in its methods names the field for the error, e.g. "metadata 'general.name'".

    Attributes:
        path: The file, for messages.
        position: The byte that is read next.

    Args:
        path: The file, for messages.
        data: Its bytes. They are copied as they are read, so nothing outlives the map.
    """

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.position = 0
        self.path = path
        self._data = data
        self._limit = min(len(data), MAX_HEADER_BYTES)
        self._n_strings = 0
        self._n_nested_arrays = 0

    def error(self, message: str) -> ModelFileError:
        """The error that something in this file is wrong."""
        return ModelFileError(f"{self.path}: {message}")

    def unpack(self, form: struct.Struct, what: str) -> int | float:
        """Reads one number."""
        start = self._take(form.size, what)
        value: int | float = form.unpack_from(self._data, start)[0]
        return value

    def integer(self, form: struct.Struct, what: str) -> int:
        """Reads one number of an integer format."""
        return int(self.unpack(form, what))

    def text(self, what: str, max_bytes: int = MAX_HEADER_BYTES) -> str:
        """Reads a string of at most `max_bytes` bytes."""
        n_bytes = self.integer(U64, f"length of {what}")
        if n_bytes > max_bytes:
            raise self.error(f"{what} has {n_bytes} bytes, {max_bytes} at most were expected")
        start = self._take(n_bytes, what)
        try:
            return self._data[start : start + n_bytes].decode()
        except UnicodeDecodeError as error:
            raise self.error(
                f"{what} is not utf-8: {error.reason} at its byte {error.start}"
            ) from None

    def value(self, what: str) -> MetadataValue:
        """Reads a value type and a value of it."""
        type_id = self.integer(U32, f"type of {what}")
        if type_id == GGUFValueType.STRING:
            return self.text(what)
        if type_id == GGUFValueType.ARRAY:
            return self._array(what, 1)
        form = self._scalar_form(type_id, what)
        number = self.unpack(form, what)
        if type_id != GGUFValueType.BOOL:
            return number
        if number > 1:
            raise self.error(f"{what} is the boolean {number}, 0 or 1 was expected")
        return bool(number)

    def check_room(self, count: int, min_bytes: int, what: str) -> None:
        """Refuses a count of things that, each of `min_bytes` bytes or more, can't be there."""
        n_bytes = count * min_bytes
        if n_bytes > self._limit - self.position:
            raise self._cut_error(f"{what} of {count} takes at least {n_bytes} bytes")

    def _take(self, n_bytes: int, what: str) -> int:
        """Steps over `n_bytes` bytes; returns where they start."""
        start = self.position
        if n_bytes > self._limit - start:
            raise self._cut_error(f"{what} takes {n_bytes} bytes")
        self.position = start + n_bytes
        return start

    def _cut_error(self, claim: str) -> ModelFileError:
        """The error that what is claimed to start at `position` does not fit there."""
        found = f"{claim} from byte {self.position}, {self._limit - self.position} are left"
        if self._limit < len(self._data):
            return self.error(f"damaged: {found} of the {MAX_HEADER_BYTES} that a header may have")
        return ModelFileError(
            f"{self.path}: truncated or damaged: {found} in the file", hint=FETCH_AGAIN
        )

    def _scalar_form(self, type_id: int, what: str) -> struct.Struct:
        if type_id not in _SCALARS:
            raise self.error(f"{what} has value type {type_id}, 0 to 12 were expected")
        return _SCALARS[GGUFValueType(type_id)]

    def _array(self, what: str, depth: int) -> MetadataArray:
        """Reads an array: the type of its items, their count, the items."""
        item_type = self.integer(U32, f"item type of {what}")
        count = self.integer(U64, f"count of {what}")
        if item_type == GGUFValueType.STRING:
            return self._strings(count, what)
        if item_type != GGUFValueType.ARRAY:
            return self._numbers(item_type, count, what)
        if depth == MAX_DEPTH:
            raise self.error(f"{what} nests arrays more than {MAX_DEPTH} deep")
        self.check_room(count, _MIN_ARRAY_BYTES, f"count of {what}")
        self._n_nested_arrays += count
        if self._n_nested_arrays > MAX_NESTED_ARRAYS:
            raise self.error(f"{what} takes the file past {MAX_NESTED_ARRAYS} nested arrays")
        return [self._array(f"{what}[{index}]", depth + 1) for index in range(count)]

    def _strings(self, count: int, what: str) -> list[str]:
        self.check_room(count, _MIN_STRING_BYTES, f"count of {what}")
        self._n_strings += count
        if self._n_strings > MAX_STRINGS:
            raise self.error(f"{what} takes the file past {MAX_STRINGS} strings in arrays")
        try:
            strings, self.position = read_strings(self._data, self.position, self._limit, count)
        except StringError as error:
            self.position = error.position
            claim = f"{what}[{error.index}] {error.reason}"
            if error.is_cut:
                raise self._cut_error(claim) from None
            raise self.error(claim) from None
        return strings

    def _numbers(self, item_type: int, count: int, what: str) -> NumericArray:
        """Reads an array of numbers or booleans; read-only, as it lies over immutable bytes."""
        form = self._scalar_form(item_type, what)
        n_bytes = count * form.size
        start = self._take(n_bytes, what)
        values = np.frombuffer(self._data[start : start + n_bytes], np.dtype(form.format))
        if item_type != GGUFValueType.BOOL:
            return values
        if (values > 1).any():
            index = int((values > 1).argmax())
            raise self.error(f"{what}[{index}] is the boolean {values[index]}, 0 or 1 was expected")
        return values.view(np.bool_)
