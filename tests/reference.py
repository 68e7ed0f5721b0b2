"""NumPy float64 forward passes, the reference for architectures.

Holds one plain forward pass per architecture, read straight from the GGUF with the `gguf` package.
Knows nothing of numamirror: no reader, tokenizer or kernel is shared with it. Called by the
golden, architecture and invariance tests.

Two variants:

* `exact`: weights dequantized, then float64 everywhere.
* `rounded`: what the engine rounds on purpose is rounded here too (activations of block-quantized
  products to 8 bits, the cache to its type); sums and everything else stay float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, ReaderTensor
from gguf.quants import dequantize
from numpy.typing import NDArray

Float = NDArray[np.float64]
Variant = Literal["exact", "rounded"]
CacheType = Literal["f32", "f16"]

ACTIVATION_BLOCK = 32
"""Values that share one activation scale."""

FLOAT_TYPES = frozenset(
    (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16)
)
"""Weight types whose products take unrounded activations."""


@dataclass(frozen=True)
class Rounding:
    """What a pass rounds on purpose.

    Args:
        activations: Quantize the inputs of block-quantized products to 8 bits.
        cache: Type of the cached keys and values.
    """

    activations: bool
    cache: CacheType


EXACT = Rounding(activations=False, cache="f32")


class Reference:
    """One GGUF, its weights dequantized on first use and kept (float32, as they are in the file).

    Args:
        path: A complete single-file GGUF.
    """

    def __init__(self, path: str | Path) -> None:
        reader = GGUFReader(path)
        self._metadata: dict[str, Any] = {k: f.contents() for k, f in reader.fields.items()}
        self._records: dict[str, ReaderTensor] = {t.name: t for t in reader.tensors}
        self._weights: dict[str, NDArray[np.float32]] = {}
        self.arch = str(self._metadata["general.architecture"])

    def key(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - metadata is of any type
        """Value of `<architecture>.<name>`; a missing key without a default is an error."""
        value = self._metadata.get(f"{self.arch}.{name}", default)
        if value is None:
            raise KeyError(f"{self.arch}.{name}")
        return value

    def has(self, tensor: str) -> bool:
        """Whether the file holds this tensor."""
        return tensor in self._records

    def is_block_quantized(self, tensor: str) -> bool:
        """Whether products with this tensor take 8-bit activations."""
        return self._records[tensor].tensor_type not in FLOAT_TYPES

    def weight(self, tensor: str) -> Float:
        """The dequantized tensor in float64, rows first."""
        if tensor not in self._weights:
            record = self._records[tensor]
            values = dequantize(record.data, record.tensor_type)
            self._weights[tensor] = values.reshape(record.shape[::-1].tolist())
        return self._weights[tensor].astype(np.float64)

    def linear(self, x: Float, tensor: str, rounding: Rounding) -> Float:
        """`x @ W.T`, plus the bias of the same name when the file has one.

        Shapes:
            x: f64[n_tokens, n_cols]; result f64[n_tokens, n_rows].
        """
        if rounding.activations and self.is_block_quantized(f"{tensor}.weight"):
            x = round_activations(x)
        y: Float = x @ self.weight(f"{tensor}.weight").T
        return y + self.weight(f"{tensor}.bias") if self.has(f"{tensor}.bias") else y

    def logits(self, ids: Sequence[int], variant: Variant, cache_type: CacheType = "f16") -> Float:
        """Logits after every token of one sequence that starts at position 0.

        Args:
            ids: Token ids.
            variant: `exact`, or `rounded` as the engine rounds.
            cache_type: Type of the cache in the `rounded` variant; `exact` has no use for it.

        Returns:
            f64[n_tokens, n_vocab].
        """
        rounding = EXACT if variant == "exact" else Rounding(activations=True, cache=cache_type)
        return FORWARDS[self.arch](self, np.asarray(ids, np.int64), rounding)


def logits(
    path: str | Path, ids: Sequence[int], variant: Variant, cache_type: CacheType = "f16"
) -> Float:
    """`Reference(path).logits(...)` for a file that is used once."""
    return Reference(path).logits(ids, variant, cache_type)


def round_activations(x: Float) -> Float:
    """Quantize each 32 values to int8 in [-127, 127] with a float32 scale, and decode again.

    scale = amax / 127; q = round-half-even(x * (127 / amax)), both in float32.

    Shapes:
        x: f64[..., n_cols], n_cols a multiple of 32; result alike.
    """
    blocks = x.astype(np.float32).reshape(*x.shape[:-1], -1, ACTIVATION_BLOCK)
    amax = np.abs(blocks).max(axis=-1, keepdims=True)
    inverse = np.divide(np.float32(127), amax, out=np.zeros_like(amax), where=amax > 0)
    codes = np.rint(blocks * inverse).astype(np.float64)
    scale = (amax / np.float32(127)).astype(np.float64)
    decoded: Float = (codes * scale).reshape(x.shape)
    return decoded


def round_cache(x: Float, cache: CacheType) -> Float:
    """Round keys or values as a cache of this type stores them (from float32)."""
    kept = x if cache == "f32" else x.astype(np.float32).astype(np.float16)
    return kept.astype(np.float64)


def rms_norm(x: Float, weight: Float, eps: float) -> Float:
    """`x / sqrt(mean(x^2) + eps) * weight` over the last axis."""
    mean_square = np.mean(x * x, axis=-1, keepdims=True)
    normed: Float = x / np.sqrt(mean_square + eps) * weight
    return normed


def silu(x: Float) -> Float:
    """`x / (1 + exp(-x))`, without overflow for large negative x."""
    return x * (0.5 * (1.0 + np.tanh(0.5 * x)))


def rope_angles(
    n_tokens: int, n_rot: int, base: float, scale: float = 1.0, factors: Float | None = None
) -> Float:
    """Rotation angles `position * scale * base^(-2i/n_rot) / factors[i]`.

    Args:
        n_tokens: Positions 0 .. n_tokens - 1.
        n_rot: Rotated values of a head.
        base: Frequency base.
        scale: 1 / the factor of linear scaling.
        factors: f64[n_rot / 2] from `rope_freqs.weight`, or None for ones.

    Returns:
        f64[n_tokens, n_rot / 2].
    """
    frequencies = base ** (-np.arange(0, n_rot, 2, dtype=np.float64) / n_rot) * scale
    if factors is not None:
        frequencies = frequencies / factors
    return np.outer(np.arange(n_tokens, dtype=np.float64), frequencies)


def rope_interleaved(x: Float, angles: Float) -> Float:
    """Rotate the pairs (2i, 2i + 1) of every head; values past n_rot pass through.

    Shapes:
        x: f64[n_tokens, n_head, head_dim]; angles: f64[n_tokens, n_rot / 2].
    """
    n_rot = 2 * angles.shape[1]
    cos, sin = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]
    even, odd = x[..., 0:n_rot:2], x[..., 1:n_rot:2]
    out = x.copy()
    out[..., 0:n_rot:2] = even * cos - odd * sin
    out[..., 1:n_rot:2] = even * sin + odd * cos
    return out


def causal_attention(q: Float, k: Float, v: Float, scale: float) -> Float:
    """Grouped-query attention of a whole sequence on itself, softmax in float64.

    Shapes:
        q: f64[n_tokens, n_head, d]; k: f64[n_tokens, n_head_kv, d]; v: f64[n_tokens, n_head_kv, e];
        result f64[n_tokens, n_head * e].
    """
    n_tokens, n_head, _ = q.shape
    group = n_head // k.shape[1]
    future = np.triu(np.ones((n_tokens, n_tokens), np.bool_), 1)
    out = np.empty((n_tokens, n_head, v.shape[2]))
    for head in range(n_head):
        scores = q[:, head] @ k[:, head // group].T * scale
        scores[future] = -np.inf
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, head] = weights / weights.sum(axis=1, keepdims=True) @ v[:, head // group]
    return out.reshape(n_tokens, -1)


@dataclass(frozen=True)
class Attention:
    """Hyper-parameters of one attention block and the angles of a sequence."""

    n_head: int
    n_head_kv: int
    scale: float
    angles: Float


def llama_attention(model: Reference, n_tokens: int) -> Attention:
    """Read the attention of dense `llama` from metadata, llama.cpp's defaults included."""
    n_head = int(model.key("attention.head_count"))
    n_embd = int(model.key("embedding_length"))
    head_dim = int(model.key("attention.key_length", n_embd // n_head))
    scaling = model.key("rope.scaling.type", "none")
    if scaling not in ("none", "linear"):
        raise NotImplementedError(f"rope scaling {scaling}")
    factor = float(model.key("rope.scaling.factor", 1.0)) if scaling == "linear" else 1.0
    angles = rope_angles(
        n_tokens,
        int(model.key("rope.dimension_count", head_dim)),
        float(model.key("rope.freq_base", 10000.0)),
        1.0 / factor,
        model.weight("rope_freqs.weight") if model.has("rope_freqs.weight") else None,
    )
    n_head_kv = int(model.key("attention.head_count_kv", n_head))
    scale = float(model.key("attention.scale", head_dim**-0.5))
    return Attention(n_head, n_head_kv, scale, angles)


def llama_forward(model: Reference, ids: NDArray[np.int64], rounding: Rounding) -> Float:
    """Dense `llama`: pre-norm attention and SwiGLU, interleaved rotation.

    Source: llama.cpp `src/models/llama.cpp` (graph), Touvron et al. 2023 (architecture).
    """
    n_tokens = len(ids)
    attention = llama_attention(model, n_tokens)
    eps = float(model.key("attention.layer_norm_rms_epsilon"))
    x = model.weight("token_embd.weight")[ids]
    for layer in range(int(model.key("block_count"))):
        blk = f"blk.{layer}"
        h = rms_norm(x, model.weight(f"{blk}.attn_norm.weight"), eps)
        q, k, v = (model.linear(h, f"{blk}.attn_{part}", rounding) for part in "qkv")
        q = rope_interleaved(q.reshape(n_tokens, attention.n_head, -1), attention.angles)
        k = rope_interleaved(k.reshape(n_tokens, attention.n_head_kv, -1), attention.angles)
        v = v.reshape(n_tokens, attention.n_head_kv, -1)
        k, v = round_cache(k, rounding.cache), round_cache(v, rounding.cache)
        mixed = causal_attention(q, k, v, attention.scale)
        x = x + model.linear(mixed, f"{blk}.attn_output", rounding)
        h = rms_norm(x, model.weight(f"{blk}.ffn_norm.weight"), eps)
        gate = silu(model.linear(h, f"{blk}.ffn_gate", rounding))
        up = model.linear(h, f"{blk}.ffn_up", rounding)
        x = x + model.linear(gate * up, f"{blk}.ffn_down", rounding)
    x = rms_norm(x, model.weight("output_norm.weight"), eps)
    return model.linear(x, "output" if model.has("output.weight") else "token_embd", rounding)


FORWARDS: dict[str, Callable[[Reference, NDArray[np.int64], Rounding], Float]] = {
    "llama": llama_forward,
}
"""One forward pass by `general.architecture`."""
