"""Prompts of each kind to ids: templates, BOS, control tokens, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numamirror.chat_template import ChatTemplate
from numamirror.errors import RequestError, UnsupportedError
from numamirror.gguf_metadata import MetadataValue
from numamirror.prompt import prompt_ids
from numamirror.tokenizer import Tokenizer
from tiny_tokenizer import BOS, EOS, TOKENS, tiny

TEMPLATE = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}{{ tail }}"


class TextModel:
    """What `prompt_ids` needs of a model."""

    n_vocab = len(TOKENS)

    def __init__(self, template: str | None, **changes: MetadataValue | None) -> None:
        self.tokenizer: Tokenizer | None = tiny(**changes)
        self.chat_template = None if template is None else ChatTemplate(template, TOKENS[BOS])

    def require_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise UnsupportedError("no tokenizer here")
        return self.tokenizer

    def text(self, prompt: Any, **options: Any) -> str:  # noqa: ANN401
        return self.require_tokenizer().decode(prompt_ids(self, prompt, **options))


def test_a_text_is_a_users_message() -> None:
    model = TextModel(TEMPLATE)
    assert model.text("hi") == "user:hi;"
    assert model.text("hi", system_prompt="s") == "system:s;user:hi;"
    assert model.text("hi", chat_template_kwargs={"tail": "t"}) == "user:hi;t"
    assert model.text([{"role": "tool", "content": "x"}]) == "tool:x;"


def test_raw_or_without_template_a_text_is_itself() -> None:
    assert TextModel(TEMPLATE).text("hi", raw=True) == "hi"
    assert TextModel(None).text("hi") == "hi"


def test_ids_are_used_as_they_are() -> None:
    model = TextModel(TEMPLATE, add_bos_token=True)
    assert prompt_ids(model, [5, 3, 5]) == [5, 3, 5]
    assert prompt_ids(model, np.array([5, 3])) == [5, 3]  # type: ignore[arg-type]
    model.tokenizer = None
    assert prompt_ids(model, [5]) == [5]
    with pytest.raises(UnsupportedError, match="no tokenizer here"):
        prompt_ids(model, "x")


@pytest.mark.parametrize("template", [TEMPLATE, "{{ bos_token }}" + TEMPLATE])
def test_bos_comes_once_and_eos_never(template: str) -> None:
    ids = prompt_ids(TextModel(template, add_bos_token=True, add_eos_token=True), "hi")
    assert ids.count(BOS) == 1
    assert ids[0] == BOS
    assert EOS not in ids


@pytest.mark.parametrize("options", [{}, {"raw": True}, {"system_prompt": TOKENS[EOS]}])
def test_a_users_text_is_never_a_control_token(options: dict[str, Any]) -> None:
    model = TextModel(TEMPLATE)
    ids = prompt_ids(model, f"a{TOKENS[EOS]}b", **options)
    assert not any(map(model.require_tokenizer().is_control, ids))


def test_a_raw_text_may_ask_for_control_tokens() -> None:
    model = TextModel(TEMPLATE)
    assert EOS in prompt_ids(model, f"a{TOKENS[EOS]}", raw=True, parse_special=True)


def test_an_empty_text_is_bos_or_refused() -> None:
    assert prompt_ids(TextModel(None, add_bos_token=True), "") == [BOS]
    with pytest.raises(RequestError, match="the prompt is empty"):
        prompt_ids(TextModel(None), "")


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([], "the prompt is empty"),
        ([1, -1], r"prompt\[1\] is -1, expected 0 to"),
        ([len(TOKENS)], "expected 0 to"),
        ([1, "x"], r"prompt\[1\] is 'x', expected a token id"),
        ([{"role": "user", "content": "x"}, 1], "expected a token id"),
        ([True], "expected a token id"),
        ([2**40], "expected 0 to"),
        (None, "prompt is None, expected a text, a list of messages or a list of token ids"),
        (5, "prompt is 5, expected a text"),
        (b"hi", "prompt is b'hi', expected a text"),
        ({"role": "user", "content": "x"}, "expected a text, a list of messages"),
        ([1.5], "expected a token id"),
    ],
)
def test_malformed_prompts_are_refused(prompt: Any, words: str) -> None:  # noqa: ANN401
    with pytest.raises(RequestError, match=words):
        prompt_ids(TextModel(TEMPLATE), prompt)


@pytest.mark.parametrize("template", [None, TEMPLATE])
@pytest.mark.parametrize(
    ("prompt", "system_prompt"), [("x", "s"), ([{"role": "user", "content": "x"}], None)]
)
def test_what_needs_a_template_says_so(
    template: str | None, prompt: str | list[dict[str, object]], system_prompt: str | None
) -> None:
    raw = template is not None
    with pytest.raises(RequestError, match="chat template"):
        prompt_ids(TextModel(template), prompt, raw=raw, system_prompt=system_prompt)
