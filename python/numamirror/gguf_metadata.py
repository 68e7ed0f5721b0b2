"""Metadata of a GGUF file as a mapping with typed getters.

Holds the values and says precisely what is wrong with one: missing, of another type, out of range.
Knows neither the bytes they came from nor what any key means. Made by `gguf_header`; read by the
architecture files, the tokenizer and the chat template.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from numamirror.errors import ModelFileError

NumericArray: TypeAlias = npt.NDArray[np.generic]
MetadataArray: TypeAlias = "list[str] | list[Any] | NumericArray"  # list[Any]: nested arrays
MetadataValue: TypeAlias = "bool | int | float | str | MetadataArray"

INT32_MAX = 2**31 - 1
_SHOWN_CHARACTERS = 60
_SHOWN_ITEMS = 4

_Scalar = TypeVar("_Scalar", bool, int, float, str)


class Metadata(Mapping[str, MetadataValue]):
    """The metadata of one file, in file order.

    A getter without a default, or with None, requires the key. A value of another type is an error
    and never converted: llama.cpp refuses it too.

    Args:
        values: Key to value; numeric arrays read-only.
        path: The file, for messages.
    """

    def __init__(self, values: Mapping[str, MetadataValue], path: Path) -> None:
        self._values = MappingProxyType(dict(values))
        self._path = path

    def __getitem__(self, key: str) -> MetadataValue:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Metadata({len(self)} keys of {self._path})"

    def get_int(
        self, key: str, default: int | None = None, *, minimum: int = 0, maximum: int = INT32_MAX
    ) -> int:
        """An integer of any width.

        Args:
            key: The metadata key.
            default: Returned as it is when the key is absent; None: the key is required.
            minimum: The least value allowed.
            maximum: The greatest value allowed.

        Returns:
            The value.

        Raises:
            ModelFileError: The key is required and absent, no integer, or out of range.
        """
        value = self._scalar(key, int, default)
        if key in self and not minimum <= value <= maximum:
            raise self._out_of_range(key, value, f"{minimum} to {maximum}")
        return value

    def get_float(
        self, key: str, default: float | None = None, *, above: float = -math.inf
    ) -> float:
        """A finite float of either width.

        Args:
            key: The metadata key.
            default: Returned as it is when the key is absent; None: the key is required.
            above: The value must be greater.

        Returns:
            The value.

        Raises:
            ModelFileError: The key is required and absent, no float, not finite, or out of range.
        """
        value = self._scalar(key, float, default)
        if key in self and not (math.isfinite(value) and value > above):
            wanted = "a finite number" if above == -math.inf else f"a finite number above {above:g}"
            raise self._out_of_range(key, value, wanted)
        return value

    def get_bool(self, key: str, default: bool | None = None) -> bool:
        """A boolean.

        Args:
            key: The metadata key.
            default: Returned when the key is absent; None: the key is required.

        Returns:
            The value.

        Raises:
            ModelFileError: The key is required and absent, or no boolean.
        """
        return self._scalar(key, bool, default)

    def get_str(self, key: str, default: str | None = None) -> str:
        """A string.

        Args:
            key: The metadata key.
            default: Returned when the key is absent; None: the key is required.

        Returns:
            The value.

        Raises:
            ModelFileError: The key is required and absent, or no string.
        """
        return self._scalar(key, str, default)

    def get_ints(
        self,
        key: str,
        count: int,
        default: int | None = None,
        *,
        minimum: int = 0,
        maximum: int = INT32_MAX,
    ) -> tuple[int, ...]:
        """One integer for each of `count` layers: an array of that length, or a scalar for all.

        Args:
            key: The metadata key.
            count: How many values are wanted.
            default: Stands for each value when the key is absent; None: the key is required.
            minimum: The least value allowed.
            maximum: The greatest value allowed.

        Returns:
            `count` values.

        Raises:
            ModelFileError: The key is required and absent, no integers, another number of them, or
                one is out of range.
        """
        found = self.get(key)
        if not isinstance(found, list | np.ndarray):
            return (self.get_int(key, default, minimum=minimum, maximum=maximum),) * count
        if not isinstance(found, np.ndarray) or found.dtype.kind not in "iu":
            raise self._wrong_type(key, found, "an integer or an array of them")
        if len(found) != count:
            raise ModelFileError(
                f"{self._path}: metadata {shown(key)} has {len(found)} values, "
                f"{count} were expected"
            )
        values: list[int] = found.tolist()
        for index, value in enumerate(values):
            if not minimum <= value <= maximum:
                raise self._out_of_range(key, value, f"{minimum} to {maximum}", f"[{index}]")
        return tuple(values)

    def get_strs(self, key: str) -> list[str]:
        """A required array of strings.

        Args:
            key: The metadata key.

        Returns:
            The strings, not copied.

        Raises:
            ModelFileError: The key is absent or no array of strings.
        """
        found = self._required(key)
        if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
            raise self._wrong_type(key, found, "an array of strings")
        return found

    def _required(self, key: str) -> MetadataValue:
        if key not in self:
            raise ModelFileError(f"{self._path}: metadata has no {shown(key)}, which is required")
        return self[key]

    def _scalar(self, key: str, kind: type[_Scalar], default: _Scalar | None) -> _Scalar:
        if default is not None and key not in self:
            return default
        found = self._required(key)
        # bool is a subclass of int, hence the exact comparison.
        if type(found) is not kind:
            raise self._wrong_type(key, found, _KIND_NAMES[kind])
        return found

    def _wrong_type(self, key: str, found: MetadataValue, wanted: str) -> ModelFileError:
        return ModelFileError(
            f"{self._path}: metadata {shown(key)} is {describe_value(found)}, {wanted} was expected"
        )

    def _out_of_range(self, key: str, found: float, wanted: str, index: str = "") -> ModelFileError:
        return ModelFileError(
            f"{self._path}: metadata {shown(key)}{index} is {found}, {wanted} was expected"
        )


_KIND_NAMES: dict[type, str] = {
    bool: "a boolean",
    int: "an integer",
    float: "a float",
    str: "a string",
}


def shown(text: str) -> str:
    """A string from a file as it may stand in a message: quoted, escaped, one short line."""
    if len(text) <= _SHOWN_CHARACTERS:
        return repr(text)
    return repr(text[:_SHOWN_CHARACTERS]) + "..."


def describe_value(value: MetadataValue) -> str:
    """What a metadata value is, in a few words: its kind and its value or first items."""
    if isinstance(value, str):
        return f"the string {shown(value)}"
    if isinstance(value, list):
        kind = "strings" if all(isinstance(item, str) for item in value) else "arrays"
        items = [shown(item) if isinstance(item, str) else "[...]" for item in value[:_SHOWN_ITEMS]]
    elif isinstance(value, np.ndarray):
        kind = value.dtype.name
        items = [str(item) for item in value[:_SHOWN_ITEMS].tolist()]
    else:
        return f"the {_KIND_NAMES[type(value)].split()[1]} {value}"
    more = ", ..." if len(value) > _SHOWN_ITEMS else ""
    return f"an array of {len(value)} {kind} [{', '.join(items)}{more}]"
