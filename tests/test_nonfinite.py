"""Promise 7: a number that is not finite stops the run and is named."""

from __future__ import annotations

import struct
from pathlib import Path

import numamirror
import numpy as np
import pytest
import tiny_gguf
from gguf import GGMLQuantizationType, GGUFReader
from gguf.constants import GGML_QUANT_SIZES
from numamirror.errors import NonFiniteError

SCALE_OFFSETS = {
    "Q8_0": {"scale": 0},
    "Q4_0": {"scale": 0},
    "Q4_1": {"scale": 0, "minimum": 2},
    "F16": {"value": 0},
}
"""Bytes into a block at which a float16 stands."""

POISONS = {"nan": 0x7E00, "signalling nan": 0x7C01, "inf": 0x7C00, "-inf": 0xFC00}
"""Bits of float16 values."""


def poison(path: Path, tensor_name: str, block: int, offset: int, value: bytes) -> None:
    """Overwrite bytes of one block of a tensor in a file."""
    tensor = next(t for t in GGUFReader(path).tensors if t.name == tensor_name)
    block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(tensor.tensor_type)][1]
    assert block * block_bytes < tensor.n_bytes
    with path.open("r+b") as file:
        file.seek(int(tensor.data_offset) + block * block_bytes + offset)
        file.write(value)


@pytest.mark.parametrize("poison_name", sorted(POISONS))
@pytest.mark.parametrize(
    ("quant", "field"), [(q, f) for q, fields in SCALE_OFFSETS.items() for f in fields]
)
def test_a_poisoned_block_is_refused_at_load(
    tmp_path: Path, quant: str, field: str, poison_name: str
) -> None:
    path = tiny_gguf.write_llama(tmp_path / "m.gguf", quant=quant)
    name = "blk.1.ffn_down.weight"
    poison(path, name, 37, SCALE_OFFSETS[quant][field], struct.pack("<H", POISONS[poison_name]))
    with pytest.raises(NonFiniteError, match=name.replace(".", r"\.")):
        numamirror.load(path)


@pytest.mark.parametrize("block", [0, -1])
@pytest.mark.parametrize("name", ["token_embd.weight", "output.weight", "blk.0.attn_k.weight"])
def test_any_tensor_and_any_row_is_looked_at(tmp_path: Path, name: str, block: int) -> None:
    path = tiny_gguf.write_llama(tmp_path / "m.gguf", quant="Q8_0", tied=False, n_vocab=323)
    tensor = next(t for t in GGUFReader(path).tensors if t.name == name)
    n_blocks = int(tensor.n_elements) // 32
    poison(path, name, block % n_blocks, 0, struct.pack("<H", POISONS["nan"]))
    with pytest.raises(NonFiniteError, match=name.replace(".", r"\.")):
        numamirror.load(path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["blk.1.attn_norm.weight", "output_norm.weight"])
def test_a_poisoned_vector_is_refused_at_load(tmp_path: Path, name: str, value: float) -> None:
    path = tiny_gguf.write_llama(tmp_path / "m.gguf")
    poison(path, name, 5, 0, struct.pack("<f", value))
    with pytest.raises(NonFiniteError, match=name.replace(".", r"\.")):
        numamirror.load(path)


@pytest.mark.parametrize("quant", ["F32", "Q8_0"])
def test_overflow_in_a_pass_names_op_and_layer(tmp_path: Path, quant: str) -> None:
    path = tiny_gguf.write_llama(tmp_path / "m.gguf", quant=quant, n_layer=3)
    for element in range(64):
        poison(path, "blk.1.ffn_norm.weight", element, 0, struct.pack("<f", 3e38))
    with (
        numamirror.load(path) as model,
        pytest.raises(NonFiniteError, match=r"(norm|ffn).*\b1\b|\b1\b.*(norm|ffn)"),
    ):
        model.logits([1, 2, 3])


def test_a_model_without_poison_runs(tmp_path: Path) -> None:
    with numamirror.load(tiny_gguf.write_llama(tmp_path / "m.gguf")) as model:
        assert np.isfinite(model.logits([1, 2, 3])).all()
