"""Dense `llama` against the float64 reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny_gguf
from checks import ArchitectureChecks, check_against_reference
from gguf import GGUFWriter
from numamirror import load
from numamirror.errors import UnsupportedError

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


def logits_with(path: Path, **keys: object) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Logits of a tiny model with these `llama.*` keys, two underscores for a dot."""

    def add(writer: GGUFWriter) -> None:
        for name, value in keys.items():
            key = f"llama.{name.replace('__', '.')}"
            if isinstance(value, str):
                writer.add_string(key, value)
            elif isinstance(value, bool):
                writer.add_bool(key, value)
            else:
                writer.add_float32(key, float(value))  # type: ignore[arg-type]

    TestLlama.write(path, quant="F32", edit=add)
    with load(path) as model:
        return model.logits([5, 80, 3, 200, 41])


def test_linear_scaling_is_the_default_and_has_two_keys(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    factor = "rope__scaling__factor"
    stated = logits_with(path, rope__scaling__type="linear", **{factor: 4})
    assert np.array_equal(logits_with(path, **{factor: 4}), stated)
    assert np.array_equal(logits_with(path, rope__scale_linear=4), stated)
    unscaled = logits_with(path)
    assert not np.array_equal(unscaled, stated)
    assert np.array_equal(logits_with(path, rope__scaling__type="none", **{factor: 4}), unscaled)
    assert np.array_equal(logits_with(path, **{factor: 0}), unscaled)


def test_attn_factor_scales_what_rope_gives(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    plain = logits_with(path)
    assert np.array_equal(logits_with(path, rope__scaling__attn_factor=1), plain)
    assert not np.allclose(logits_with(path, rope__scaling__attn_factor=1.5), plain, atol=1e-3)


def test_what_would_be_computed_wrongly_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    with pytest.raises(UnsupportedError, match=r"llama\.attention\.causal is false"):
        logits_with(path, attention__causal=False)
    with pytest.raises(UnsupportedError, match=r"rope\.scaling\.type 'yarn'"):
        logits_with(path, rope__scaling__type="yarn")
    norm = np.ones(N_EMBD, np.float32)
    TestLlama.write(path, edit=lambda w: w.add_tensor("blk.0.attn_q_norm.weight", norm))
    with pytest.raises(UnsupportedError, match=r"no use for blk\.0\.attn_q_norm\.weight"):
        load(path)
