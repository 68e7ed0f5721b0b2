"""Writes small random GGUF models for tests, with the `gguf` package.

    write_llama(path, n_layer=2, quant="Q8_0")           a dense llama, random sane weights
    write_llama(path, quant={"attn_": "Q4_1"})            the first pattern that fits, else F32
    write_llama(path, tokenizer="bpe")                    with a byte-level BPE and a chat template
    write_header_only(source, target)                     the same model without its tensor data
    split(source, n_shards)                               shards NAME-00001-of-00003.gguf beside it
    read_weights(path)                                    what the file holds, decoded to float32

The same arguments give the same bytes. Nothing here reads or imports numamirror, so that tests
compare two independent things.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, GGUFWriter
from gguf.constants import GGMLQuantizationType, GGUFValueType, RopeScalingType, TokenType
from gguf.gguf_reader import ReaderTensor
from gguf.quants import dequantize, quantize
from gguf_bytes import GgufBytes, TensorEntry

FloatArray = npt.NDArray[np.float32]

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
BOS_ID, EOS_ID = 1, 2
CHAT_TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content']"
    " + '<|im_end|>\\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_MERGED_WORDS = (
    " the",
    " and",
    " of",
    " to",
    " a",
    " in",
    " is",
    "ing",
    "er",
    " France",
    "é",
    "你",
)


@dataclass(frozen=True)
class TinyLlama:
    """What `write_llama` writes.

    Attributes:
        n_layer: Blocks (`llama.block_count`).
        n_embd: Width (`llama.embedding_length`); a multiple of 32 for the block types.
        n_ff: Width of the feed-forward layer; a multiple of 32 for the block types.
        n_head: Query heads.
        n_head_kv: Key and value heads.
        n_vocab: Rows of the embedding; None: as many as the tokenizer has, or 320.
        n_ctx: `llama.context_length`.
        head_dim: Size of a head; None: n_embd / n_head, and no key for it is written.
        quant: GGML type of all matrices, or a map from a pattern (`re.search` in the tensor's
            name) to one, tried in order; what fits none is F32. Vectors are always F32.
        tied: Leaves `output.weight` out.
        seed: Of the weights.
        tokenizer: None: model `no_vocab`; "bpe": a byte-level BPE of a few hundred tokens (see
            `bpe_vocabulary`), padded with unused tokens up to n_vocab, and a chat template.
        pre: `tokenizer.ggml.pre` of the BPE.
        rms_eps: Epsilon of the norms.
        rope_freq_base: Base of the rotary frequencies.
        rope_dim: Rotated values of a head; None: all.
        rope_scaling: Type ("none", "linear", "yarn"), factor and original context.
        rope_freqs: Divisors of the rotary frequencies, f32[rope_dim / 2], as `rope_freqs.weight`.
        edit: Called with the writer before anything is written, to add keys or tensors.
    """

    n_layer: int = 2
    n_embd: int = 64
    n_ff: int = 160
    n_head: int = 4
    n_head_kv: int = 2
    n_vocab: int | None = None
    n_ctx: int = 512
    head_dim: int | None = None
    quant: str | Mapping[str, str] = "Q8_0"
    tied: bool = True
    seed: int = 0
    tokenizer: str | None = None
    pre: str = "smollm"
    rms_eps: float = 1e-5
    rope_freq_base: float = 10000.0
    rope_dim: int | None = None
    rope_scaling: tuple[str, float, int] | None = None
    rope_freqs: FloatArray | None = None
    edit: Callable[[GGUFWriter], None] | None = None


def write_llama(path: Path, model: TinyLlama | None = None, **fields: Any) -> Path:  # noqa: ANN401 - checked by the dataclass
    """Writes a dense llama with random weights of standard deviation 1/sqrt(n_in).

    Args:
        path: The file to write.
        model: What to write; None: `TinyLlama()`.
        fields: Fields of `TinyLlama` that differ from `model`.

    Returns:
        `path`.
    """
    model = replace(model or TinyLlama(), **fields)
    writer = GGUFWriter(path, "llama")
    n_vocab = _add_tokenizer(writer, model)
    _add_hyperparameters(writer, model, n_vocab)
    _add_weights(writer, model, n_vocab)
    if model.edit is not None:
        model.edit(writer)
    finish(writer)
    return path


def _head_dim(model: TinyLlama) -> int:
    return model.head_dim if model.head_dim is not None else model.n_embd // model.n_head


def _add_hyperparameters(writer: GGUFWriter, model: TinyLlama, n_vocab: int) -> None:
    """Adds the `llama.*` keys."""
    writer.add_block_count(model.n_layer)
    writer.add_context_length(model.n_ctx)
    writer.add_embedding_length(model.n_embd)
    writer.add_feed_forward_length(model.n_ff)
    writer.add_head_count(model.n_head)
    writer.add_head_count_kv(model.n_head_kv)
    if model.head_dim is not None:
        writer.add_key_length(model.head_dim)
        writer.add_value_length(model.head_dim)
    writer.add_layer_norm_rms_eps(model.rms_eps)
    writer.add_vocab_size(n_vocab)
    writer.add_rope_freq_base(model.rope_freq_base)
    writer.add_rope_dimension_count(model.rope_dim or _head_dim(model))
    if model.rope_scaling is not None:
        kind, factor, n_ctx_original = model.rope_scaling
        writer.add_rope_scaling_type(RopeScalingType(kind))
        writer.add_rope_scaling_factor(factor)
        writer.add_rope_scaling_orig_ctx_len(n_ctx_original)


def _add_weights(writer: GGUFWriter, model: TinyLlama, n_vocab: int) -> None:
    """Adds the tensors of a dense llama, in llama.cpp's names."""
    rng = np.random.default_rng(model.seed)
    n_embd, n_ff, size = model.n_embd, model.n_ff, _head_dim(model)

    def matrix(name: str, n_out: int, n_in: int) -> None:
        values = rng.standard_normal((n_out, n_in), dtype=np.float32) * np.float32(n_in**-0.5)
        add_matrix(writer, name, values, quant_for(name, model.quant))

    def norm(name: str) -> None:
        writer.add_tensor(name, (1 + 0.1 * rng.standard_normal(n_embd)).astype(np.float32))

    matrix("token_embd.weight", n_vocab, n_embd)
    norm("output_norm.weight")
    if not model.tied:
        matrix("output.weight", n_vocab, n_embd)
    if model.rope_freqs is not None:
        writer.add_tensor("rope_freqs.weight", model.rope_freqs.astype(np.float32))
    for layer in range(model.n_layer):
        block = f"blk.{layer}."
        norm(block + "attn_norm.weight")
        matrix(block + "attn_q.weight", model.n_head * size, n_embd)
        matrix(block + "attn_k.weight", model.n_head_kv * size, n_embd)
        matrix(block + "attn_v.weight", model.n_head_kv * size, n_embd)
        matrix(block + "attn_output.weight", n_embd, model.n_head * size)
        norm(block + "ffn_norm.weight")
        matrix(block + "ffn_gate.weight", n_ff, n_embd)
        matrix(block + "ffn_up.weight", n_ff, n_embd)
        matrix(block + "ffn_down.weight", n_embd, n_ff)


def quant_for(name: str, quant: str | Mapping[str, str]) -> str:
    """The GGML type of a matrix: `quant` itself, or the first pattern found in the name."""
    if isinstance(quant, str):
        return quant
    return next((type_ for pattern, type_ in quant.items() if re.search(pattern, name)), "F32")


def add_matrix(writer: GGUFWriter, name: str, values: FloatArray, quant: str) -> None:
    """Adds `values` (f32[n_out, n_in]) as a tensor of the GGML type `quant`."""
    type_ = GGMLQuantizationType[quant]
    writer.add_tensor(name, quantize(values, type_), raw_dtype=type_)


def finish(writer: GGUFWriter) -> None:
    """Writes all parts of the file and closes it."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def bpe_vocabulary(n_vocab: int | None = None) -> tuple[list[str], list[int], list[str]]:
    """A small byte-level BPE: control tokens, all 256 bytes, and a few words merged left to right.

    Args:
        n_vocab: Pads with unused tokens up to this many; None: no padding.

    Returns:
        Tokens, their types (GGUF's `TokenType`) and merges, as `tokenizer.ggml.*` has them.
    """
    chars = byte_characters()
    tokens = [*CONTROL_TOKENS, *(chars[byte] for byte in range(256))]
    merges: list[str] = []
    for word in _MERGED_WORDS:
        pieces = [chars[byte] for byte in word.encode()]
        left = pieces[0]
        for right in pieces[1:]:
            if left + right not in tokens:
                merges.append(f"{left} {right}")
                tokens.append(left + right)
            left += right
    types = [int(TokenType.CONTROL)] * len(CONTROL_TOKENS)
    types += [int(TokenType.NORMAL)] * (len(tokens) - len(types))
    if n_vocab is not None:
        if n_vocab < len(tokens):
            raise ValueError(f"n_vocab {n_vocab} is below the {len(tokens)} tokens of the BPE")
        types += [int(TokenType.UNUSED)] * (n_vocab - len(tokens))
        tokens += [f"[PAD{index}]" for index in range(len(tokens), n_vocab)]
    return tokens, types, merges


def byte_characters() -> dict[int, str]:
    """GPT-2's printable stand-in for each byte.

    Source: `bytes_to_unicode` of github.com/openai/gpt-2, src/encoder.py.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {
        byte: chr(256 + index) for index, byte in enumerate(others)
    }


def _add_tokenizer(writer: GGUFWriter, model: TinyLlama) -> int:
    """Adds the `tokenizer.*` keys; returns the rows that the embedding shall have."""
    if model.tokenizer is None:
        writer.add_tokenizer_model("no_vocab")
        return model.n_vocab or 320
    if model.tokenizer != "bpe":
        raise ValueError(f"tokenizer {model.tokenizer!r}: None or 'bpe' was expected")
    tokens, types, merges = bpe_vocabulary(model.n_vocab)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(model.pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(BOS_ID)
    writer.add_eos_token_id(EOS_ID)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
    return len(tokens)


def read_weights(path: Path) -> dict[str, FloatArray]:
    """All tensors of a file as float32, rows first, decoded by the `gguf` package."""
    return {
        tensor.name: dequantize(tensor.data, tensor.tensor_type)
        .astype(np.float32)
        .reshape([int(dim) for dim in reversed(tensor.shape)])
        for tensor in GGUFReader(path).tensors
    }


def header_size_bytes(path: Path) -> int:
    """Where the header of a file with tensors ends, before the padding."""
    last = GGUFReader(path).tensors[-1].field
    return int(last.offset) + sum(int(part.nbytes) for part in last.parts)


def write_header_only(source: Path, target: Path) -> Path:
    """Copies `source` up to the last tensor record, so without tensor data; returns `target`."""
    target.write_bytes(source.read_bytes()[: header_size_bytes(source)])
    return target


def split(source: Path, n_shards: int, *, empty_first: bool = False) -> list[Path]:
    """Writes the shards of a file beside it, dealt evenly in order, and leaves the file alone.

    As llama-gguf-split does it, the first shard has all metadata and the others only `split.*`.

    Args:
        source: The file to split; alignment 32.
        n_shards: How many.
        empty_first: The first shard gets no tensors (`--no-tensor-first-split`).

    Returns:
        The paths, first shard first.
    """
    reader = GGUFReader(source)
    groups = [
        [int(index) for index in part]
        for part in np.array_split(np.arange(len(reader.tensors)), n_shards - empty_first)
    ]
    if empty_first:
        groups.insert(0, [])
    paths = []
    for number, group in enumerate(groups):
        shard = _shard([reader.tensors[index] for index in group])
        shard = shard.with_metadata(
            ("split.no", GGUFValueType.UINT16, number),
            ("split.count", GGUFValueType.UINT16, n_shards),
            ("split.tensors.count", GGUFValueType.INT32, len(reader.tensors)),
        )
        if number == 0:
            metadata_bytes = source.read_bytes()[24 : reader.tensors[0].field.offset]
            n_keys = int(reader.fields["GGUF.kv_count"].contents())
            shard = replace(shard, prefix=metadata_bytes, n_prefix_keys=n_keys)
        name = f"{source.stem}-{number + 1:05d}-of-{n_shards:05d}.gguf"
        paths.append(shard.write(source.with_name(name)))
    return paths


def _shard(tensors: Sequence[ReaderTensor]) -> GgufBytes:
    """A file of these tensors without metadata."""
    entries: list[TensorEntry] = []
    data = bytearray()
    for tensor in tensors:
        dims = [int(dim) for dim in tensor.shape]
        entries.append(TensorEntry(tensor.name, dims, int(tensor.tensor_type), len(data)))
        data += tensor.data.tobytes()
        data += bytes(-len(data) % 32)
    return GgufBytes(tensors=entries, data=bytes(data))
