"""What a file says of its vocabulary is checked, and end tokens are those that llama.cpp finds."""

from __future__ import annotations

import numpy as np
import pytest
from numamirror.errors import ModelFileError, UnsupportedError
from numamirror.gguf_metadata import MetadataValue
from numamirror.vocabulary import read_vocabulary
from tiny_tokenizer import MERGES, TOKENS, TYPES, tiny_metadata

N = len(TOKENS)


def end_texts(*more: str, kind: int = 3, **changes: MetadataValue | None) -> set[str]:
    """Texts of the end tokens of a vocabulary with more tokens and no EOS."""
    tokens = ["a", "b", *more]
    types = np.array([1, 1, *(kind for _ in more)], np.int32)
    found = read_vocabulary(
        tiny_metadata(tokens=tokens, token_type=types, **{"eos_token_id": None, **changes})
    )
    assert found is not None
    return {tokens[token] for token in found.end_ids}


@pytest.mark.parametrize("model", ["no_vocab", "none", None])
def test_no_vocabulary_is_none(model: str | None) -> None:
    assert read_vocabulary(tiny_metadata(model=model)) is None


def test_an_unknown_model_is_named_with_the_known() -> None:
    with pytest.raises(UnsupportedError, match=r"tokenizer\.ggml\.model is 'bert', known: gpt2"):
        read_vocabulary(tiny_metadata(model="bert"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": 7}, "tokenizer.ggml.model"),
        ({"tokens": None}, "tokenizer.ggml.tokens"),
        ({"tokens": []}, "tokenizer.ggml.tokens"),
        ({"tokens": np.arange(3)}, "tokenizer.ggml.tokens"),
        ({"tokens": [*TOKENS[:-1], TOKENS[20]]}, "twice"),
        ({"token_type": np.array(TYPES[:-1], np.int32)}, "tokenizer.ggml.token_type"),
        ({"token_type": ["x"] * N}, "tokenizer.ggml.token_type"),
        ({"token_type": 3}, "tokenizer.ggml.token_type"),
        ({"merges": None}, "tokenizer.ggml.merges"),
        ({"merges": [*MERGES, "a b c"]}, f"tokenizer.ggml.merges[{len(MERGES)}]"),
        ({"merges": ["ab"]}, "tokenizer.ggml.merges[0]"),
        ({"merges": [" a"]}, "tokenizer.ggml.merges[0]"),
        ({"bos_token_id": N}, "tokenizer.ggml.bos_token_id"),
        ({"eos_token_id": -1}, "tokenizer.ggml.eos_token_id"),
        ({"eot_token_id": "2"}, "tokenizer.ggml.eot_token_id"),
        ({"pre": 1}, "tokenizer.ggml.pre"),
    ],
)
def test_malformed_metadata_is_refused_by_name(
    changes: dict[str, MetadataValue | None], words: str
) -> None:
    with pytest.raises(ModelFileError) as caught:
        read_vocabulary(tiny_metadata(**changes))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_empty_tokens_get_llama_cpps_name() -> None:
    found = read_vocabulary(tiny_metadata(tokens=["a", "", "b", ""], token_type=None))
    assert found is not None
    assert found.pieces == ["a", "[EMPTY_1]", "b", "[EMPTY_3]"]


def test_end_tokens_by_key_and_by_name() -> None:
    assert end_texts("x", "<|eot_id|>", "<|im_end|>", "<end_of_turn>") == {
        "<|eot_id|>",
        "<|im_end|>",
        "<end_of_turn>",
    }
    assert end_texts("x", "y", "z", eos_token_id=2, eot_token_id=3, eom_token_id=4) == {*"xyz"}


def test_an_end_name_counts_whatever_its_kind_and_is_control() -> None:
    tokens = ["a", "b", "<|im_end|>"]
    found = read_vocabulary(
        tiny_metadata(tokens=tokens, token_type=np.ones(3, np.int32), eos_token_id=None)
    )
    assert found is not None
    assert found.end_ids == {2}
    assert found.controls == {2}


def test_the_end_of_html_strike_out_counts_only_as_control() -> None:
    assert end_texts("</s>") == {"</s>"}
    assert end_texts("</s>", kind=1) == set()


def test_fill_in_tokens_end_a_generation() -> None:
    assert end_texts("<|fim_pad|>", "<|file_sep|>", "<|fim_prefix|>") == {
        "<|fim_pad|>",
        "<|file_sep|>",
    }


def test_harmonys_end_closes_a_message_only() -> None:
    assert end_texts("<|end|>") == {"<|end|>"}
    assert end_texts("<|end|>", "<|return|>", "<|call|>") == {"<|return|>", "<|call|>"}
