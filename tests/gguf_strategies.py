"""Hypothesis strategies for GGUF files: metadata of all types, and ways to damage a file.

Knows the format as `gguf_bytes` writes it and nothing of numamirror. Used by the reader's tests.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from gguf.constants import GGUFValueType
from gguf_bytes import ArrayValue
from hypothesis import strategies as st

T = GGUFValueType

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
