"""The table of pre-tokenizers, and what does not fit it."""

from __future__ import annotations

import pytest
from numamirror.errors import ModelFileError, UnsupportedError
from numamirror.pre_tokenizer import PRE_KINDS, byte_alphabet, find_pre_kind
from tiny_gguf import byte_characters
from tiny_tokenizer import MERGES, tiny


def test_an_unknown_kind_is_named_with_the_known() -> None:
    with pytest.raises(UnsupportedError) as caught:
        find_pre_kind("qwen\n2")
    assert "'qwen\\n2'" in str(caught.value)
    assert all(name in str(caught.value) for name in PRE_KINDS)


@pytest.mark.parametrize("name", sorted(PRE_KINDS))
def test_every_kind_keeps_the_text(name: str) -> None:
    tokenizer = tiny(pre=name)
    text = "It's 12345  words,\n\n  and\tmore… 日本語 'S \x00 $+<=>^~| end  "
    assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text


def test_a_file_without_a_kind_gets_the_default() -> None:
    text = "a+b 12345"
    assert tiny(pre=None).encode(text) == tiny(pre="default").encode(text)


def test_the_alphabet_is_gpt2s() -> None:
    assert {byte: char for char, byte in byte_alphabet().items()} == byte_characters()


@pytest.mark.parametrize("merge", ["zz zz", "z z"])
def test_a_merge_that_makes_no_token_is_refused(merge: str) -> None:
    with pytest.raises(ModelFileError, match=r"tokenizer\.ggml\.merges does not fit"):
        tiny(merges=[*MERGES, merge])
