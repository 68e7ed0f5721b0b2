"""Turns the frozen values of the stages into what `json` can write.

Knows dataclasses, mappings, sequences and numbers; knows none of the values. Used by the commands
that have `--json`.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

import numpy as np

_MOST_ELEMENTS = 64  # of an array in metadata: a vocabulary of 100,000 entries hides all else


def plain(value: object) -> object:
    """`value` in the types of JSON; long arrays of numbers or strings give way to their length."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case enum.Enum():
            return plain(value.value)
        case Path():
            return str(value)
        case bytes():
            return value.hex()
        case np.generic():
            return plain(value.item())
        case np.ndarray():
            return plain(value.tolist())
        case Mapping():
            return {str(plain(key)): plain(element) for key, element in value.items()}
        case Set():
            return sorted((plain(element) for element in value), key=str)
        case Sequence():
            return _plain_sequence(value)
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: plain(getattr(value, name)) for name in names}
    return str(value)


def _plain_sequence(values: Sequence[object]) -> object:
    is_long = len(values) > _MOST_ELEMENTS
    if is_long and isinstance(values[0], bool | int | float | str):
        return {"n_values": len(values)}
    return [plain(value) for value in values]
