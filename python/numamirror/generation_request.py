"""A request for a generation, checked: prompt, sampling settings and what else was asked for.

Holds the options' names, defaults and bounds, and what can be refused before a weight is read. Runs
nothing. Called by `generate`, and by the commands before they load a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from numamirror.bounds import Bounds, check_switch, wrong
from numamirror.errors import ContextFullError, RequestError
from numamirror.prompt import Prompt, PromptModel, prompt_ids
from numamirror.sampling import RANDOM_SEED, SamplingSettings, random_seed
from numamirror.stop_strings import StopStrings

MAX_TOKENS_BOUNDS = Bounds(-1, is_whole=True)
"""What `max_tokens` may be; the flag has the same bounds."""

_SAMPLING_NAMES = frozenset(item.name for item in fields(SamplingSettings))


@dataclass(frozen=True)
class GenerationOptions:
    """What else a generation can be told.

    Args:
        max_tokens: Tokens to choose at most; -1 goes on until a stop or the end of the context.
        stop: Texts that end the generation, None for none; they are not part of it.
        ignore_eos: Never choose an end token.
        system_prompt: A system message before the others.
        chat_template_kwargs: More variables for the chat template.
        parse_special: Read control tokens in a raw prompt as what they are.

    Raises:
        RequestError: A value is of another kind or out of range.
    """

    max_tokens: int = 256
    stop: Sequence[str] | str | None = ()
    ignore_eos: bool = False
    system_prompt: str | None = None
    chat_template_kwargs: Mapping[str, object] | None = None
    parse_special: bool = False

    def __post_init__(self) -> None:
        MAX_TOKENS_BOUNDS.check("max_tokens", self.max_tokens)
        StopStrings(self.stop)
        check_switch("ignore_eos", self.ignore_eos)
        check_switch("parse_special", self.parse_special)
        if not isinstance(self.system_prompt, str | None):
            raise wrong("system_prompt", self.system_prompt, "a text")
        if not isinstance(self.chat_template_kwargs, Mapping | None):
            raise wrong("chat_template_kwargs", self.chat_template_kwargs, "a mapping")


@dataclass(frozen=True)
class GenerationRequest:
    """A checked request: what to continue and how.

    Args:
        ids: Tokens of the prompt.
        settings: Sampling settings, with a seed of their own.
        options: What else was asked for.
    """

    ids: tuple[int, ...]
    settings: SamplingSettings
    options: GenerationOptions


def make_request(
    text: PromptModel,
    n_ctx: int,
    prompt: Prompt,
    *,
    raw: bool = False,
    **options: Any,  # noqa: ANN401
) -> GenerationRequest:
    """Checks a request against a model's text side; needs no weights.

    Args:
        text: Tokenizer and template.
        n_ctx: Longest sequence, in positions.
        prompt: As in `stream_generate`.
        raw: Use no chat template.
        **options: The fields of `SamplingSettings` and `GenerationOptions`.

    Raises:
        NumaMirrorError: As in `stream_generate`.
    """
    settings, rest = _read_options(options)
    check_switch("raw", raw)
    if rest.stop:
        text.require_tokenizer()
    ids = prompt_ids(
        text,
        prompt,
        raw=raw,
        system_prompt=rest.system_prompt,
        chat_template_kwargs=rest.chat_template_kwargs,
        parse_special=rest.parse_special,
    )
    _check_length(len(ids), n_ctx)
    if settings.seed == RANDOM_SEED:
        settings = replace(settings, seed=random_seed())
    return GenerationRequest(tuple(ids), settings, rest)


def _check_length(n_tokens: int, n_ctx: int) -> None:
    if n_tokens > n_ctx:
        raise ContextFullError(
            f"the prompt has {n_tokens} tokens, the context holds {n_ctx}",
            hint="raise --ctx-size, or shorten the prompt",
        )


def _read_options(options: dict[str, Any]) -> tuple[SamplingSettings, GenerationOptions]:
    names = [item.name for item in fields(GenerationOptions)]
    unknown = sorted(options.keys() - _SAMPLING_NAMES - set(names))
    if unknown:
        known = ", ".join(sorted([*_SAMPLING_NAMES, *names]))
        raise RequestError(f"unknown option {unknown[0]}; known: {known}")
    sampling = {name: value for name, value in options.items() if name in _SAMPLING_NAMES}
    rest = {name: value for name, value in options.items() if name in names}
    return SamplingSettings(**sampling), GenerationOptions(**rest)
