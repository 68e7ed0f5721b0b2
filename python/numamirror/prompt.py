"""A prompt of any kind to token ids: a text, messages, or ids.

Holds the rules for templates, BOS and control tokens: what a text or a message says never becomes a
control token unless `parse_special` is asked for, and BOS is not doubled when a template wrote it.
Chooses no tokens. Called by `generate`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, cast

import numpy as np

from numamirror.bounds import wrong
from numamirror.chat_template import ChatTemplate
from numamirror.errors import RequestError
from numamirror.token_ids import checked_ids
from numamirror.tokenizer import Tokenizer

Prompt = str | Sequence[Mapping[str, object]] | Sequence[int]


class PromptModel(Protocol):
    """What a prompt needs of a model; see `text.TextSide`."""

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The template, None for none, or an error that says why it can't be used."""

    @property
    def n_vocab(self) -> int:
        """Width of the logits."""

    def require_tokenizer(self) -> Tokenizer:
        """The tokenizer, or an error that says why there is none."""


def prompt_ids(
    model: PromptModel,
    prompt: Prompt,
    *,
    raw: bool = False,
    system_prompt: str | None = None,
    chat_template_kwargs: Mapping[str, object] | None = None,
    parse_special: bool = False,
) -> list[int]:
    """The tokens of a prompt: BOS as the file asks, never EOS.

    Args:
        model: Gives tokenizer and template.
        prompt: A text, messages, or ids, which are used as they are.
        raw: Use no chat template. A text is also raw when there is no template.
        system_prompt: A system message before the others.
        chat_template_kwargs: More variables for the template.
        parse_special: Read control tokens in a raw text as what they are.

    Raises:
        NumaMirrorError: RequestError for an empty or malformed prompt, or one that needs a template
            that is not there; else tokenizer or template can't be used.
    """
    messages = _messages(prompt)
    if messages is None:
        ids = checked_ids(cast("Iterable[object]", prompt), model.n_vocab, "prompt")
    else:
        tokenizer = model.require_tokenizer()
        template = None if raw else model.chat_template
        if template is not None:
            messages = _with_system(system_prompt, messages)
            ids = _templated_ids(tokenizer, template, messages, chat_template_kwargs)
        elif isinstance(prompt, str) and system_prompt is None:
            ids = tokenizer.encode(prompt, False, parse_special)
        else:
            raise _needs_template("a system prompt" if isinstance(prompt, str) else "messages", raw)
        ids = _with_bos(tokenizer, ids)
    if not ids:
        raise RequestError("the prompt is empty, expected at least one token")
    return ids


def _with_system(text: str | None, messages: list[dict[str, object]]) -> list[dict[str, object]]:
    return messages if text is None else [{"role": "system", "content": text}, *messages]


def _with_bos(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    if not tokenizer.add_bos or tokenizer.bos_id is None or ids[:1] == [tokenizer.bos_id]:
        return ids
    return [tokenizer.bos_id, *ids]


def _messages(prompt: object) -> list[dict[str, object]] | None:
    """A prompt as messages, a text as a user's; None when it can only be ids."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    if isinstance(prompt, bytes | Mapping) or not isinstance(prompt, Sequence | np.ndarray):
        raise wrong("prompt", prompt, "a text, a list of messages or a list of token ids")
    messages = [dict(item) for item in prompt if isinstance(item, Mapping)]
    return messages if messages and len(messages) == len(prompt) else None


def _templated_ids(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Mapping[str, object]],
    variables: Mapping[str, object] | None,
) -> list[int]:
    rendered = template.render_marked(messages, tokenizer.control_texts, variables)
    return tokenizer.encode(rendered.marked, False, True, rendered.twins)


def _needs_template(what: str, raw: bool) -> RequestError:
    if raw:
        return RequestError(f"{what} can't be used with raw: a chat template is needed")
    return RequestError(
        f"{what} can't be used: the model file has no chat template",
        hint="--chat-template-file gives one, --raw with a plain prompt needs none",
    )
