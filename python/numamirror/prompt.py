"""A prompt of any kind to token ids: a text, messages, or ids.

Holds the rules for templates, BOS and control tokens: what a text or a message says never becomes a
control token unless `parse_special` is asked for, and BOS is not doubled when a template wrote it.
Chooses no tokens. Called by `generate`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from numamirror.chat_template import ChatTemplate
from numamirror.errors import RequestError
from numamirror.tokenizer import Tokenizer

Prompt = str | Sequence[Mapping[str, object]] | Sequence[int]


class PromptModel(Protocol):
    """What a prompt needs of a model; see `engine.Model`."""

    chat_template: ChatTemplate | None

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
        RequestError: The prompt is empty or malformed, or needs a template that is not there.
        ModelFileError: The template fails.
        UnsupportedError: The model has no usable tokenizer and the prompt is no list of ids.
    """
    if not isinstance(prompt, str):
        messages = [dict(item) for item in prompt if isinstance(item, Mapping)]
        if not messages or len(messages) != len(prompt):
            return _checked_ids(prompt, model.n_vocab)
    tokenizer = model.require_tokenizer()
    if isinstance(prompt, str):
        messages = [{"role": "user", "content": prompt}]
    template = None if raw else model.chat_template
    if template is not None:
        if system_prompt is not None:
            messages.insert(0, {"role": "system", "content": system_prompt})
        variables = dict(chat_template_kwargs or {})
        rendered = template.render_marked(messages, tokenizer.control_texts, variables)
        ids = tokenizer.encode(rendered.marked, False, True, rendered.twins)
    elif isinstance(prompt, str) and system_prompt is None:
        ids = tokenizer.encode(prompt, False, parse_special)
    else:
        raise _needs_template("a system prompt" if isinstance(prompt, str) else "messages", raw)
    if tokenizer.add_bos and tokenizer.bos_id is not None and ids[:1] != [tokenizer.bos_id]:
        ids.insert(0, tokenizer.bos_id)
    if not ids:
        raise RequestError("the prompt is empty, expected at least one token")
    return ids


def _needs_template(what: str, raw: bool) -> RequestError:
    if raw:
        return RequestError(f"{what} can't be used with raw: a chat template is needed")
    return RequestError(
        f"{what} can't be used: the model file has no chat template",
        hint="--chat-template-file gives one, --raw with a plain prompt needs none",
    )


def _checked_ids(prompt: Iterable[object], n_vocab: int) -> list[int]:
    ids = []
    for nth, item in enumerate(prompt):
        if isinstance(item, bool) or not hasattr(item, "__index__"):
            raise RequestError(f"prompt[{nth}] is {item!r:.60}, expected a token id")
        token = int(item.__index__())
        if not 0 <= token < n_vocab:
            raise RequestError(f"prompt[{nth}] is {token}, expected 0 to {n_vocab - 1}")
        ids.append(token)
    if not ids:
        raise RequestError("the prompt is empty, expected at least one token")
    return ids
