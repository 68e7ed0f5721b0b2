"""`llama`: Llama 1 to 3, SmolLM, Mistral and their kin, dense.

Holds the hyper-parameters, the tensors and the wiring of one forward pass. Knows neither files'
bytes nor placement. Found by name through `numamirror.archs`.

Source: Touvron et al., "LLaMA" (2023); names and defaults as llama.cpp's `LLM_ARCH_LLAMA`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from numamirror import archs
from numamirror.archs import TensorNeed
from numamirror.errors import ModelFileError, UnsupportedError

if TYPE_CHECKING:
    from numamirror.gguf_file import ModelFile
    from numamirror.gguf_metadata import Metadata
    from numamirror.program import Builder, Value


@dataclass(frozen=True)
class Config:
    """Hyper-parameters; field names are GGUF's keys without the architecture's prefix."""

    block_count: int
    context_length: int
    embedding_length: int
    feed_forward_length: int
    head_count: int
    head_count_kv: int
    key_length: int
    value_length: int
    layer_norm_rms_epsilon: float
    rope_dimension_count: int
    rope_freq_base: float
    rope_scaling_factor: float
    rope_scaling_attn_factor: float
    vocab_size: int

    @property
    def rope_frequencies(self) -> list[float]:
        """Radians a position of each rotated pair: base^(-2i / n_rot), over the linear scaling."""
        n_rot = self.rope_dimension_count
        return [
            self.rope_freq_base ** (-2 * i / n_rot) / self.rope_scaling_factor
            for i in range(n_rot // 2)
        ]


def read_config(file: ModelFile) -> Config:
    """Reads the hyper-parameters; defaults are llama.cpp's where a key may be absent."""
    meta = file.metadata
    if meta.get_int("llama.expert_count", 0):
        raise UnsupportedError("llama with experts (llama.expert_count > 0) is not supported yet")
    if not meta.get_bool("llama.attention.causal", True):
        raise UnsupportedError("llama.attention.causal is false: only causal models are supported")
    n_embd = meta.get_int("llama.embedding_length", minimum=1)
    n_head = meta.get_int("llama.attention.head_count", minimum=1)
    n_head_kv = meta.get_int("llama.attention.head_count_kv", n_head, minimum=1)
    if n_head % n_head_kv:
        raise ModelFileError(
            f"llama.attention.head_count: {n_head} heads do not share {n_head_kv} kv heads evenly"
        )
    key_length = meta.get_int("llama.attention.key_length", n_embd // n_head, minimum=1)
    n_rot = meta.get_int("llama.rope.dimension_count", key_length, minimum=2, maximum=key_length)
    if n_rot % 2:
        raise ModelFileError(f"llama.rope.dimension_count is {n_rot}, an even number was expected")
    return Config(
        block_count=meta.get_int("llama.block_count", minimum=1),
        context_length=meta.get_int("llama.context_length", minimum=1),
        embedding_length=n_embd,
        feed_forward_length=meta.get_int("llama.feed_forward_length", minimum=1),
        head_count=n_head,
        head_count_kv=n_head_kv,
        key_length=key_length,
        value_length=meta.get_int("llama.attention.value_length", n_embd // n_head, minimum=1),
        layer_norm_rms_epsilon=meta.get_float("llama.attention.layer_norm_rms_epsilon", above=0),
        rope_dimension_count=n_rot,
        rope_freq_base=meta.get_float("llama.rope.freq_base", 10000.0, above=0),
        rope_scaling_factor=_scaling_factor(meta),
        rope_scaling_attn_factor=meta.get_float("llama.rope.scaling.attn_factor", 1.0, above=0),
        vocab_size=archs.vocab_size(file),
    )


def _scaling_factor(meta: Metadata) -> float:
    """The factor by which positions are stretched: linear scaling unless the type says none."""
    kind = meta.get_str("llama.rope.scaling.type", "linear")
    if kind not in ("none", "linear"):
        raise UnsupportedError(
            f"llama.rope.scaling.type {kind!r} is not supported yet; known: none, linear"
        )
    factor = meta.get_float("llama.rope.scale_linear", 0.0)  # the key's older name
    factor = meta.get_float("llama.rope.scaling.factor", factor)
    if factor < 0:
        raise ModelFileError(
            f"llama.rope.scaling.factor is {factor}, a number above 0 was expected"
        )
    return factor if kind == "linear" and factor else 1.0


def tensors(c: Config) -> Iterator[TensorNeed]:
    """Every tensor of the model; biases and an own output matrix are optional."""
    n_embd, n_ff = c.embedding_length, c.feed_forward_length
    n_q, n_k = c.head_count * c.key_length, c.head_count_kv * c.key_length
    n_v, n_out = c.head_count_kv * c.value_length, c.head_count * c.value_length
    yield TensorNeed("token_embd.weight", (c.vocab_size, n_embd))
    yield TensorNeed("output_norm.weight", (n_embd,))
    yield TensorNeed("output.weight", (c.vocab_size, n_embd), required=False)
    yield TensorNeed("rope_freqs.weight", (c.rope_dimension_count // 2,), required=False)
    for i in range(c.block_count):
        yield TensorNeed(f"blk.{i}.attn_norm.weight", (n_embd,))
        yield TensorNeed(f"blk.{i}.ffn_norm.weight", (n_embd,))
        for name, shape in (
            ("attn_q", (n_q, n_embd)),
            ("attn_k", (n_k, n_embd)),
            ("attn_v", (n_v, n_embd)),
            ("attn_output", (n_embd, n_out)),
            ("ffn_gate", (n_ff, n_embd)),
            ("ffn_up", (n_ff, n_embd)),
            ("ffn_down", (n_embd, n_ff)),
        ):
            yield TensorNeed(f"blk.{i}.{name}.weight", shape)
            yield TensorNeed(f"blk.{i}.{name}.bias", shape[:1], required=False)


def wire(c: Config, b: Builder) -> Value:
    """One forward pass. `x` is the residual stream, f32[n, embedding_length]."""
    eps = c.layer_norm_rms_epsilon
    x = b.embed("token_embd")
    angles = b.rope_angles(c.rope_frequencies, "rope_freqs", c.rope_scaling_attn_factor)
    for i in range(c.block_count):
        blk = f"blk.{i}"
        h = b.rms_norm(x, f"{blk}.attn_norm", eps)
        q, k, v = b.linear(h, f"{blk}.attn_q", f"{blk}.attn_k", f"{blk}.attn_v")
        b.rope(q, angles, c.key_length, "interleaved", label=f"{blk}.attn_q")
        b.rope(k, angles, c.key_length, "interleaved", label=f"{blk}.attn_k")
        heads = b.attention(
            q, k, v, n_head=c.head_count, n_head_kv=c.head_count_kv, k_dim=c.key_length,
            v_dim=c.value_length, scale=c.key_length**-0.5, label=f"{blk}.attn",
        )  # fmt: skip
        if i == c.block_count - 1:  # from here on only rows whose logits are wanted count
            heads, x = b.select(heads), b.select(x)
        (attended,) = b.linear(heads, f"{blk}.attn_output")
        x = b.add(x, attended, label=f"{blk}.attn_residual")
        h = b.rms_norm(x, f"{blk}.ffn_norm", eps)
        gate, up = b.linear(h, f"{blk}.ffn_gate", f"{blk}.ffn_up")
        (down,) = b.linear(b.swiglu(gate, up, label=f"{blk}.ffn_act"), f"{blk}.ffn_down")
        x = b.add(x, down, label=f"{blk}.ffn_residual")
    h = b.rms_norm(x, "output_norm", eps)
    (logits,) = b.linear(h, "output" if b.has("output.weight") else "token_embd")
    return logits
