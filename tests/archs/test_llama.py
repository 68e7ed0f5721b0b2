"""Dense `llama` against the float64 reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tiny_gguf
from checks import ArchitectureChecks, check_against_reference
from gguf import GGUFWriter

N_LAYER, N_EMBD, N_HEAD, N_HEAD_KV = 2, 128, 4, 2


def add_attention_biases(writer: GGUFWriter) -> None:
    """Give q, k and v of every layer a bias, as some `llama` conversions have."""
    rng = np.random.default_rng(5)
    rows = {"q": N_EMBD, "k": N_EMBD * N_HEAD_KV // N_HEAD, "v": N_EMBD * N_HEAD_KV // N_HEAD}
    for layer in range(N_LAYER):
        for part, n_rows in rows.items():
            bias = 0.3 * rng.standard_normal(n_rows)
            writer.add_tensor(f"blk.{layer}.attn_{part}.bias", bias.astype(np.float32))


class TestLlama(ArchitectureChecks):
    """Every shape below in every weight type."""

    @staticmethod
    def write(path: Path, **shape: object) -> Path:
        """A tiny model, two layers and odd row counts unless the shape says otherwise."""
        base = {
            "n_layer": N_LAYER,
            "n_embd": N_EMBD,
            "n_ff": 96,
            "n_vocab": 323,
            "n_head": N_HEAD,
            "n_head_kv": N_HEAD_KV,
            "tied": False,
        }
        return tiny_gguf.write_llama(path, **(base | shape))  # type: ignore[arg-type]

    shapes = {  # noqa: RUF012
        "untied": {},
        "tied": {"tied": True},
        "biases": {"edit": add_attention_biases},
        "mha": {"n_head": 4, "n_head_kv": 4},
        "mqa": {"n_head": 4, "n_head_kv": 1},
        "gqa of 3": {"n_embd": 96, "n_head": 3, "n_head_kv": 1},
        "head of 64": {"n_head": 2, "n_head_kv": 1},
        "head of 128": {"n_embd": 256, "n_head": 2, "n_head_kv": 1},
        "head of 64, wider than n_embd": {
            "n_embd": 64,
            "n_head": 2,
            "n_head_kv": 1,
            "head_dim": 64,
        },
        "half rotated": {"rope_dim": 16},
        "linear scaling": {"rope_scaling": ("linear", 4.0, 128)},
        "frequency factors": {"rope_freqs": np.linspace(1, 8, 16, dtype=np.float32)},
        "one layer": {"n_layer": 1},
    }


def test_mixed_types_in_one_file(tmp_path: Path) -> None:
    mixed = {"token_embd": "Q8_0", "attn_v": "F16", "attn_": "Q4_1", "down": "BF16", "ffn": "Q4_0"}
    path = TestLlama.write(tmp_path / "mixed.gguf", quant=mixed, tied=True)
    check_against_reference(path, "block", "f16")


def test_float_rows_of_any_width(tmp_path: Path) -> None:
    shape = {"n_embd": 72, "n_head": 4, "n_head_kv": 2, "n_ff": 100}
    path = TestLlama.write(tmp_path / "odd.gguf", quant="F32", **shape)
    check_against_reference(path, "float", "f32")
