"""The text side of a model: what there is, or why there is nothing."""

from __future__ import annotations

import pytest
from numamirror.errors import ModelFileError, NumaMirrorError, UnsupportedError
from numamirror.gguf_metadata import MetadataValue
from numamirror.text import TextSide
from tiny_tokenizer import TOKENS, tiny_metadata


def side(
    n_vocab: int = len(TOKENS), template: str | None = None, **changes: MetadataValue | None
) -> TextSide:
    return TextSide(tiny_metadata(**changes), n_vocab, template)


def test_text_goes_to_ids_and_back() -> None:
    text = side()
    assert text.detokenize(text.tokenize("hello")) == "hello"
    assert text.tokenizer is text.require_tokenizer()
    assert text.n_vocab == len(TOKENS)


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        (side(model="no_vocab"), UnsupportedError, "has no tokenizer"),
        (side(model="other"), UnsupportedError, "other"),
        (side(n_vocab=3), ModelFileError, "for an embedding of 3 rows"),
        (side(merges=["x"]), ModelFileError, "merges"),
    ],
)
def test_why_there_is_no_tokenizer(text: TextSide, kind: type[NumaMirrorError], words: str) -> None:
    assert text.tokenizer is None
    for _ in range(2):
        with pytest.raises(kind, match=words):
            text.tokenize("x")


def test_the_template_is_the_given_one_or_refused_when_asked_for() -> None:
    given = side(template="{{ messages }}").chat_template
    assert given is not None
    assert given.source == "{{ messages }}"
    assert side().chat_template is None
    broken = side(template="{% if %}")
    assert broken.tokenize("x")
    with pytest.raises(ModelFileError, match="chat template, line 1"):
        _ = broken.chat_template
