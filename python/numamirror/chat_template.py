"""Messages to a prompt, by the Jinja template of the model file or one that the user gives.

Holds what Hugging Face's templates may rely on (variables, errors) and two promises: a stranger's
template runs in `template_sandbox`, and by `content_marks` a message never becomes a control token,
however the template trims, cuts or joins it. The rendered prompt carries the marks: encode it with
`Tokenizer.encode(prompt.marked, parse_special=True, twins=prompt.twins)`. Knows no ids but BOS and
EOS. Called by `engine`, `prompt` and the commands.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gguf.constants import Keys
from jinja2 import TemplateError, TemplateSyntaxError

from numamirror.content_marks import make_marks
from numamirror.errors import ModelFileError, RequestError
from numamirror.gguf_metadata import Metadata
from numamirror.template_sandbox import (
    MAX_SOURCE_CHARACTERS,
    MAX_VALUE_CHARACTERS,
    Budget,
    RefusedMessagesError,
    SandboxEnvironment,
    weight,
)
from numamirror.vocabulary import read_id, read_pieces

_MAX_REQUEST_CHARACTERS = 1 << 28
_SHOWN_CHARACTERS = 200
_HINT = "--raw uses no template, --chat-template-file another one"
_OWN_VARIABLES = ("messages", "add_generation_prompt")


@dataclass(frozen=True)
class RenderedPrompt:
    """A prompt that knows which of its characters users wrote.

    Attributes:
        text: The prompt as people read it.
        marked: The prompt with twins in place of characters of contents that could be part of a
            control token.
        twins: Code point of a twin to that of its character.
    """

    text: str
    marked: str
    twins: Mapping[int, int]


class ChatTemplate:
    """A compiled template; made by `from_metadata`.

    Args:
        source: The template's text.
        bos_token: Text of BOS, for the template.
        eos_token: Text of EOS, for the template.

    Raises:
        ModelFileError: It is no valid template.
    """

    def __init__(self, source: str, bos_token: str = "", eos_token: str = "") -> None:
        if len(source) > MAX_SOURCE_CHARACTERS:
            raise ModelFileError(
                f"chat template has {len(source)} characters, expected at most "
                f"{MAX_SOURCE_CHARACTERS}",
                hint=_HINT,
            )
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._environment = SandboxEnvironment()
        self._lock = threading.Lock()  # a budget belongs to one rendering
        try:
            self._template = self._environment.from_string(source)
        except TemplateSyntaxError as error:
            raise ModelFileError(
                f"chat template, line {error.lineno}: {_shown(error)}", hint=_HINT
            ) from error
        except Exception as error:  # a stranger's text: any fault in compiling it is the file's
            raise ModelFileError(f"chat template: {_shown(error)}", hint=_HINT) from error

    @classmethod
    def from_metadata(cls, metadata: Metadata, source: str | None = None) -> ChatTemplate | None:
        """The template of a file.

        Args:
            metadata: The file's metadata.
            source: A template to use in place of the file's.

        Returns:
            The template, or None when there is none.

        Raises:
            ModelFileError: It is no valid template, or BOS or EOS is out of range.
        """
        key = Keys.Tokenizer.CHAT_TEMPLATE
        if source is None:
            if key not in metadata:
                return None
            source = metadata.get_str(key)
        bos, eos = (
            _special_text(metadata, key) for key in (Keys.Tokenizer.BOS_ID, Keys.Tokenizer.EOS_ID)
        )
        return cls(source, bos, eos)

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        add_generation_prompt: bool = True,
        **variables: object,
    ) -> str:
        """The prompt as text, to be read; see `render_marked` for one to be encoded.

        Args:
            messages: At least one, each with a `role`, most with a `content`.
            add_generation_prompt: End with the start of an answer.
            **variables: More variables for the template.

        Raises:
            RequestError: The messages are malformed, or the template does not take them.
            ModelFileError: The template fails or exceeds its limits.
        """
        return self.render_marked(messages, (), variables, add_generation_prompt).text

    def render_marked(
        self,
        messages: Sequence[Mapping[str, object]],
        control_texts: Collection[str],
        variables: Mapping[str, object] | None = None,
        add_generation_prompt: bool = True,
    ) -> RenderedPrompt:
        """The prompt, with what users wrote kept apart from control tokens.

        Args:
            messages: As in `render`.
            control_texts: `Tokenizer.control_texts`.
            variables: More variables for the template.
            add_generation_prompt: As in `render`.

        Raises:
            RequestError: As in `render`.
            ModelFileError: As in `render`.
        """
        _check_messages(messages)
        request: dict[str, object] = {**(variables or {}), "messages": messages}
        if (variables or {}).keys() & set(_OWN_VARIABLES):
            raise RequestError(f"chat template variables {', '.join(_OWN_VARIABLES)} can't be set")
        size = _checked_size(request)
        try:
            marks = make_marks(request, control_texts, self._environment.literals, self.source)
            marked = {name: marks.mark(value) for name, value in request.items()}
        except RecursionError as error:
            raise RequestError("the messages are nested too deeply") from error
        context = {"tools": None, "documents": None, **self._tokens, **marked}
        context["add_generation_prompt"] = add_generation_prompt
        with self._lock:
            self._environment.budget = Budget(max(MAX_VALUE_CHARACTERS, 4 * size))
            prompt = self._render(context)
        return RenderedPrompt(marks.unmark(prompt), prompt, marks.originals)

    def _render(self, variables: Mapping[str, object]) -> str:
        try:
            return self._template.render(variables)
        except RefusedMessagesError as error:
            raise RequestError(
                f"the chat template does not take these messages: {_shown(error)}", hint=_HINT
            ) from error
        except TemplateError as error:
            raise ModelFileError(f"chat template: {_shown(error)}", hint=_HINT) from error
        except Exception as error:  # a stranger's code: any fault in running it is the file's
            raise ModelFileError(
                f"chat template: {type(error).__name__}: {_shown(error)}", hint=_HINT
            ) from error


def _special_text(metadata: Metadata, key: str) -> str:
    if key not in metadata or Keys.Tokenizer.LIST not in metadata:
        return ""
    pieces = read_pieces(metadata)
    token = read_id(metadata, key, len(pieces))
    return "" if token is None else pieces[token]


def _check_messages(messages: Sequence[Mapping[str, object]]) -> None:
    if not messages:
        raise RequestError("there are no messages, expected at least one")
    for nth, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise RequestError(f"message {nth} is {message!r:.60}, expected a mapping with a role")


def _checked_size(request: object) -> int:
    size = weight(request, _MAX_REQUEST_CHARACTERS)
    if size > _MAX_REQUEST_CHARACTERS:
        raise RequestError(f"the messages have more than {_MAX_REQUEST_CHARACTERS} characters")
    return size


def _shown(error: Exception) -> str:
    """An error's words in one printable line."""
    line = " ".join(str(error)[: 4 * _SHOWN_CHARACTERS].split()) or type(error).__name__
    printable = "".join(char if char.isprintable() else "\ufffd" for char in line)
    return printable[:_SHOWN_CHARACTERS]
