"""Tokenizer metadata without a file: all 256 bytes, a few merged words, some control tokens.

Called by the tests of tokenizer, template and generation.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numamirror.gguf_metadata import Metadata, MetadataValue
from numamirror.tokenizer import Tokenizer
from tiny_gguf import bpe_vocabulary

TOKENS, TYPES, MERGES = bpe_vocabulary()
BOS, EOS = 1, 2


def tiny_metadata(**changes: MetadataValue | None) -> Metadata:
    """A vocabulary of all bytes and some words; `changes` without the prefix, None removes."""
    values: dict[str, MetadataValue] = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": TOKENS,
        "token_type": np.array(TYPES, np.int32),
        "merges": MERGES,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
    }
    merged = values | {key: value for key, value in changes.items() if value is not None}
    removed = {key for key, value in changes.items() if value is None}
    kept = {f"tokenizer.ggml.{k}": v for k, v in merged.items() if k not in removed}
    return Metadata(kept, Path("tiny.gguf"))


def tiny(**changes: MetadataValue | None) -> Tokenizer:
    """The tokenizer of `tiny_metadata`."""
    tokenizer = Tokenizer.from_metadata(tiny_metadata(**changes))
    assert tokenizer is not None
    return tokenizer


def with_tokens(*more: tuple[str, int], **changes: MetadataValue | None) -> Tokenizer:
    """The same with more tokens, each with its GGUF type."""
    types = np.array([*TYPES, *(kind for _, kind in more)], np.int32)
    return tiny(tokens=[*TOKENS, *(text for text, _ in more)], token_type=types, **changes)
