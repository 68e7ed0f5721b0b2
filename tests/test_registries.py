"""The engine's registries: every entry, against the `gguf` package."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.constants import GGML_QUANT_SIZES
from numamirror import _core
from numamirror.errors import UnsupportedError
from numpy.typing import NDArray

QUANTS = {quant["name"]: quant for quant in _core.quant_types()}

FLOAT_DTYPES: dict[str, type[np.unsignedinteger]] = {
    "F32": np.uint32,
    "F16": np.uint16,
    "BF16": np.uint16,
}
"""Unsigned integers as wide as one value of a float type."""

EXTREME_SCALES = (0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF)
"""Bits of float16: both zeros, smallest and largest subnormal, smallest normal, +-1, +-largest."""


def decoded_by_gguf(name: str, data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """What the reference makes of the same bytes."""
    quant = GGMLQuantizationType[name]
    width = {"F32": np.float32, "F16": np.float16}.get(name, np.uint8)
    with np.errstate(all="ignore"):
        return np.asarray(gguf.quants.dequantize(data.view(width), quant), np.float32).ravel()


def decoded_by_us(name: str, data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """What the engine makes of them."""
    return np.frombuffer(bytes(_core.dequantize(name, data.tobytes())), np.float32)


def assert_same_values(found: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    """Equality of bits, except that any NaN is as good as another."""
    assert found.shape == expected.shape
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(found), nan)
    np.testing.assert_array_equal(found[~nan].view(np.uint32), expected[~nan].view(np.uint32))


@pytest.mark.parametrize("name", sorted(QUANTS))
def test_sizes_and_ids_are_those_of_gguf(name: str) -> None:
    quant = GGMLQuantizationType[name]
    found = QUANTS[name]
    assert found["ggml_id"] == quant.value
    assert (found["block_elems"], found["block_bytes"]) == GGML_QUANT_SIZES[quant]


@pytest.mark.parametrize("name", sorted(QUANTS))
def test_random_blocks_decode_as_in_gguf(name: str) -> None:
    rng = np.random.default_rng(QUANTS[name]["ggml_id"])
    data = rng.integers(0, 256, 4096 * QUANTS[name]["block_bytes"], np.uint8)
    assert_same_values(decoded_by_us(name, data), decoded_by_gguf(name, data))


@pytest.mark.parametrize("name", sorted(QUANTS.keys() - FLOAT_DTYPES.keys()))
def test_every_byte_at_every_place_of_a_block(name: str) -> None:
    block_bytes = QUANTS[name]["block_bytes"]
    rng = np.random.default_rng(1)
    blocks = np.tile(rng.integers(0, 256, block_bytes, np.uint8), (block_bytes, 256, 1))
    for place in range(block_bytes):
        blocks[place, :, place] = np.arange(256)
    data = blocks.ravel()
    assert_same_values(decoded_by_us(name, data), decoded_by_gguf(name, data))


@pytest.mark.parametrize("name", sorted(QUANTS.keys() - FLOAT_DTYPES.keys()))
def test_extreme_scales_decode_as_in_gguf(name: str) -> None:
    block_bytes = QUANTS[name]["block_bytes"]
    rng = np.random.default_rng(2)
    scales = np.array(EXTREME_SCALES, np.uint16).view(np.uint8).reshape(-1, 2)
    blocks = rng.integers(0, 256, (block_bytes // 2, len(scales), block_bytes), np.uint8)
    for place in range(block_bytes // 2):
        blocks[place, :, 2 * place : 2 * place + 2] = scales
    data = blocks.ravel()
    assert_same_values(decoded_by_us(name, data), decoded_by_gguf(name, data))


@pytest.mark.parametrize("name", sorted(QUANTS.keys() & FLOAT_DTYPES.keys()))
def test_floats_of_every_kind_decode_as_in_gguf(name: str) -> None:
    bits = np.arange(1 << 16, dtype=FLOAT_DTYPES[name])
    data = (bits << 16 | bits if bits.itemsize == 4 else bits).view(np.uint8)
    assert_same_values(decoded_by_us(name, data), decoded_by_gguf(name, data))


@pytest.mark.parametrize("name", sorted(QUANTS))
def test_names_and_forms_are_listed_once(name: str) -> None:
    forms = _core.packed_forms()
    assert len(forms) == len(set(forms))
    assert QUANTS[name]["form"] in forms


def test_quant_types_are_listed_once() -> None:
    listed = _core.quant_types()
    assert len(listed) == len(QUANTS)
    assert len({quant["ggml_id"] for quant in listed}) == len(listed)
    assert QUANTS.keys() >= {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"}


def test_instruction_sets_are_listed_once_and_scalar_first() -> None:
    names = [name for name, _ in _core.isas()]
    assert _core.isas()[0] == ("scalar", True)
    assert len(names) == len(set(names))


def test_fields_of_ops_are_listed_once() -> None:
    schema = _core.op_schema()
    assert {"embed", "rms_norm", "linear", "rope", "attention", "swiglu", "add"} <= schema.keys()
    for fields in schema.values():
        names = [field["name"] for field in fields]
        assert len(names) == len(set(names))


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="Q9_9"):
        _core.dequantize("Q9_9", b"")
