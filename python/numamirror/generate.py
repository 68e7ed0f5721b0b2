"""The generation loop: a prompt in, records with text, counts and rates out.

Holds the order of things: feed the prompt, then choose and feed until an end token, a stop string,
`max_tokens` or the end of the context; `generation_request` checks before. Prints nothing; knows no
flags and not how a pass is computed. Called by users, the commands and the server.

A str or a list of messages goes through the chat template. With `raw`, or when the model has no
template, a str is continued as it is; who wants to tell users so looks at `model.chat_template`.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from numamirror.generation_request import GenerationRequest, make_request
from numamirror.prompt import Prompt, PromptModel
from numamirror.sampling import Candidates, SamplingSettings, make_rng, pick
from numamirror.stop_strings import StopStrings
from numamirror.tokenizer import Tokenizer

PromptProgress = Callable[[int, int], None]
"""Receives the prompt's tokens done and those in all."""

_GIB_IN_KIB = 1 << 20
_NS_IN_MS = 1e6


class GenerationSequence(Protocol):
    """What the loop needs of a sequence; see `engine.CachedSequence`."""

    def extend(self, ids: Sequence[int], progress: PromptProgress | None = None) -> None:
        """Feeds tokens."""

    def candidates(self, settings: SamplingSettings, recent_ids: Sequence[int]) -> Candidates:
        """The best next tokens after penalties."""

    def close(self) -> None:
        """Frees the sequence."""


class GenerationModel(PromptModel, Protocol):
    """What the loop needs of a model; see `engine.Model`."""

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer, None when there is none that can be used."""

    @property
    def n_ctx(self) -> int:
        """Longest sequence, in positions."""

    def new_sequence(self) -> GenerationSequence:
        """An empty sequence."""


@dataclass(frozen=True)
class GenerationRecord:
    """A step of a generation; numbers count from its start.

    Attributes:
        text: Text that is certain with this step; often "", as when half a character came.
        token: The token of this step, None in the last record when no token came with it.
        prompt_tokens: Tokens of the prompt.
        prompt_tps: Tokens of the prompt a second.
        generation_tokens: Tokens chosen so far, an end token included.
        generation_tps: Passes after the prompt's a second, all other work included; 0 before one.
        peak_memory: Most memory that the process has held, in GiB.
        finish_reason: None; in the last record "stop" (end token or stop string), "length"
            (`max_tokens`) or "context" (no room for another token).
        seed: The seed in use.
        prompt_ms: Time for the prompt.
        generation_ms: Time since then.
    """

    text: str
    token: int | None
    prompt_tokens: int
    prompt_tps: float
    generation_tokens: int
    generation_tps: float
    peak_memory: float
    finish_reason: str | None
    seed: int
    prompt_ms: float
    generation_ms: float


def generate(
    model: GenerationModel,
    prompt: Prompt,
    *,
    raw: bool = False,
    **options: Any,  # noqa: ANN401
) -> str:
    """Text that continues a prompt; the arguments of `stream_generate`."""
    return "".join(record.text for record in stream_generate(model, prompt, raw=raw, **options))


def stream_generate(
    model: GenerationModel,
    prompt: Prompt,
    *,
    raw: bool = False,
    progress: PromptProgress | None = None,
    **options: Any,  # noqa: ANN401
) -> Generator[GenerationRecord, None, None]:
    """Records of a generation, one a token; the request is checked before the first is asked for.

    Args:
        model: A loaded model.
        prompt: A text, messages (mappings with `role` and `content`), or token ids.
        raw: Use no chat template.
        progress: Called while the prompt is computed.
        **options: The fields of `SamplingSettings` and `GenerationOptions`.

    Returns:
        The records; closing the generator frees the sequence.

    Raises:
        RequestError: The prompt is empty or malformed, an option unknown or out of range.
        ContextFullError: The prompt is longer than the context.
        UnsupportedError: Text is asked of a model without a tokenizer.
    """
    request = make_request(model, model.n_ctx, prompt, raw=raw, **options)
    return run_request(model, request, progress)


def run_request(
    model: GenerationModel, request: GenerationRequest, progress: PromptProgress | None = None
) -> Generator[GenerationRecord, None, None]:
    """Records of a checked request; see `stream_generate`."""
    return _Generation(model, request).run(progress)


class _Generation:
    """One run of the loop."""

    def __init__(self, model: GenerationModel, request: GenerationRequest) -> None:
        tokenizer = model.tokenizer
        self._model = model
        self._ids = list(request.ids)
        self._n_prompt = len(request.ids)
        self._settings = request.settings
        self._options = request.options
        self._end_ids: frozenset[int] = frozenset() if tokenizer is None else tokenizer.end_ids
        self._seed = request.settings.seed
        self._rng = make_rng(self._seed)
        self._text = None if tokenizer is None else tokenizer.stream(skip_special=True)
        self._stop = StopStrings(request.options.stop)
        self._prompt_ns = self._start_ns = 0

    def run(self, progress: PromptProgress | None) -> Generator[GenerationRecord, None, None]:
        sequence = self._model.new_sequence()
        try:
            start_ns = time.perf_counter_ns()
            sequence.extend(self._ids, progress)
            self._start_ns = time.perf_counter_ns()
            self._prompt_ns = self._start_ns - start_ns
            if self._options.max_tokens == 0:
                yield self._record("", None, "length")
                return
            while True:
                record = self._step(sequence)
                yield record
                if record.finish_reason is not None:
                    return
                sequence.extend(self._ids[-1:])
        finally:
            sequence.close()

    def _step(self, sequence: GenerationSequence) -> GenerationRecord:
        token = self._choose(sequence)
        self._ids.append(token)
        if token in self._end_ids and not self._options.ignore_eos:
            return self._record(self._last_text(), token, "stop")
        text = self._stop.push("" if self._text is None else self._text.push(token))
        if self._stop.is_found:
            return self._record(text, token, "stop")
        n_tokens = len(self._ids) - self._n_prompt
        if n_tokens == self._options.max_tokens:
            return self._record(text + self._last_text(), token, "length")
        if len(self._ids) > self._model.n_ctx:
            return self._record(text + self._last_text(), token, "context")
        return self._record(text, token, None)

    def _choose(self, sequence: GenerationSequence) -> int:
        settings, recent = self._settings, self._recent_ids()
        if not (self._options.ignore_eos and self._end_ids):
            return pick(sequence.candidates(settings, recent), settings, self._rng)
        # enough candidates that some are left without the end tokens, also for a greedy choice
        wanted = settings.top_k if settings.temperature > 0 else 1
        more = replace(
            settings, temperature=1.0, top_k=wanted + len(self._end_ids) if wanted else 0
        )
        candidates = sequence.candidates(more, recent)
        others = candidates.without(self._end_ids)
        return pick(others if len(others.ids) else candidates, settings, self._rng)

    def _recent_ids(self) -> Sequence[int]:
        if not self._settings.has_penalties:
            return ()
        last_n = self._settings.repeat_last_n
        return self._ids if last_n == -1 else self._ids[-last_n:]

    def _last_text(self) -> str:
        held = "" if self._text is None else self._text.flush()
        return self._stop.push(held) + self._stop.flush()

    def _record(self, text: str, token: int | None, finish_reason: str | None) -> GenerationRecord:
        elapsed_ns = time.perf_counter_ns() - self._start_ns
        n_tokens = len(self._ids) - self._n_prompt
        n_passes = max(n_tokens - 1, 0)  # the first token comes of the prompt's pass
        return GenerationRecord(
            text=text,
            token=token,
            prompt_tokens=self._n_prompt,
            prompt_tps=1e9 * self._n_prompt / max(self._prompt_ns, 1),
            generation_tokens=n_tokens,
            generation_tps=1e9 * n_passes / max(elapsed_ns, 1),
            peak_memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _GIB_IN_KIB,
            finish_reason=finish_reason,
            seed=self._seed,
            prompt_ms=self._prompt_ns / _NS_IN_MS,
            generation_ms=elapsed_ns / _NS_IN_MS,
        )
