"""Marks what users wrote, so that it can't become a control token after a template moved it about.

A template writes control tokens and contents into one string; by itself that string does not tell a
token of the template from one that a user typed. So before rendering, in every string of a request,
each character that can begin or end a control token is replaced by a twin: a private-use character
that occurs nowhere else. A control token in the rendered text then has its first and last character
from the template. Once the tokenizer has cut control tokens out, twins are put back and the rest is
encoded as text. Nothing is inserted or removed, so trimming, slicing, lengths and JSON are as ever,
and pieces that only become a token when joined are caught too.

Templates also look for literals in contents, as `'</think>' in content`. Where a literal of the
template stands in a content it is left alone, unless a control token could begin or end inside it.

Knows no template and no tokenizer. Called by `chat_template`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from numamirror.errors import RequestError

_PRIVATE_USE = range(0xF0000, 0xFFFFE)  # plane 15


@dataclass(frozen=True)
class Marks:
    """Twins for one request.

    Attributes:
        twins: Code point of a character to that of its twin.
        originals: The way back.
        kept: Literals to leave alone.
    """

    twins: Mapping[int, int]
    originals: Mapping[int, int]
    kept: re.Pattern[str] | None

    def mark(self, value: object) -> object:
        """The value with all its strings marked; keys of mappings too.

        Raises:
            RequestError: It holds something else than strings, numbers, mappings and lists.
        """
        if isinstance(value, str):
            return self._mark_text(value)
        if isinstance(value, Mapping):
            return {self.mark(key): self.mark(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.mark(item) for item in value]
        if value is None or isinstance(value, int | float):
            return value
        raise RequestError(f"a message holds {value!r:.60}, expected what JSON can hold")

    def unmark(self, text: str) -> str:
        """The text with twins put back."""
        return text.translate(self.originals)

    def _mark_text(self, text: str) -> str:
        if self.kept is None:
            return text.translate(self.twins)
        parts = self.kept.split(text)  # the literals are every second part
        parts[::2] = [part.translate(self.twins) for part in parts[::2]]
        return "".join(parts)


def make_marks(
    value: object, control_texts: Collection[str], literals: Collection[str], source: str = ""
) -> Marks:
    """Twins that do not occur in a request.

    Args:
        value: The request: strings, mappings, lists, nested.
        control_texts: Texts of the control tokens.
        literals: String constants of the template.
        source: The template.

    Raises:
        RequestError: The request uses so many private-use characters that none are left.
    """
    edges = sorted({ord(char) for text in control_texts for char in (text[0], text[-1])})
    used = set(source)
    _collect(value, used)
    free = (code for code in _PRIVATE_USE if chr(code) not in used)
    twins = dict(zip(edges, free, strict=False))
    if len(twins) < len(edges):
        raise RequestError("the messages use all private-use characters of plane 15")
    kept = [
        literal
        for literal in literals
        if any(ord(char) in twins for char in literal) and not _may_touch(literal, control_texts)
    ]
    pattern = "|".join(re.escape(literal) for literal in sorted(kept, key=len, reverse=True))
    return Marks(
        twins,
        {twin: code for code, twin in twins.items()},
        re.compile(f"({pattern})") if kept else None,
    )


def _may_touch(literal: str, control_texts: Collection[str]) -> bool:
    """Whether a control token could begin or end inside a literal."""
    return any(
        control in literal
        or any(
            literal.endswith(control[:n]) or literal.startswith(control[-n:])
            for n in range(1, min(len(literal), len(control)) + 1)
        )
        for control in control_texts
    )


def _collect(value: object, used: set[str]) -> None:
    if isinstance(value, str):
        used.update(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _collect(key, used)
            _collect(item, used)
    elif isinstance(value, list | tuple):
        for item in value:
            _collect(item, used)
