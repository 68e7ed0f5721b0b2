"""The loop over a model whose logits are a script: ends, stops, counts, and sequences closed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numamirror.chat_template import ChatTemplate
from numamirror.errors import ContextFullError, RequestError, UnsupportedError
from numamirror.generate import GenerationRecord, generate, stream_generate
from numamirror.sampling import Candidates, SamplingSettings
from numamirror.tokenizer import Tokenizer
from tiny_tokenizer import EOS, TOKENS, tiny

PROMPT = [3, 4, 5]


class ScriptedModel:
    """Says a text token by token, whatever it is fed, then its end token for ever."""

    n_vocab = len(TOKENS)

    def __init__(self, says: str | Sequence[int], n_ctx: int = 4096) -> None:
        self.tokenizer: Tokenizer | None = tiny()
        self.chat_template: ChatTemplate | None = None
        self.n_ctx = n_ctx
        self.script = list(self.tokenizer.encode(says) if isinstance(says, str) else says)
        self.sequences: list[ScriptedSequence] = []
        self.on_candidates: Callable[[], None] = lambda: None

    def require_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise UnsupportedError("no tokenizer here")
        return self.tokenizer

    def new_sequence(self) -> ScriptedSequence:
        self.sequences.append(ScriptedSequence(self))
        return self.sequences[-1]


class ScriptedSequence:
    """Remembers what it was fed and asked."""

    def __init__(self, model: ScriptedModel) -> None:
        self.model = model
        self.fed: list[int] = []
        self.recent: list[list[int]] = []
        self.asked: list[SamplingSettings] = []
        self.n_closed = 0

    def extend(
        self, ids: Sequence[int], progress: Callable[[int, int], None] | None = None
    ) -> None:
        assert ids, "nothing to feed"
        assert len(self.fed) + len(ids) <= self.model.n_ctx, "fed past the context"
        self.fed += ids
        if progress is not None:
            progress(len(ids), len(ids))

    def candidates(self, settings: SamplingSettings, recent_ids: Sequence[int]) -> Candidates:
        self.model.on_candidates()
        self.asked.append(settings)
        self.recent.append(list(recent_ids))
        nth = len(self.asked) - 1
        best = self.model.script[nth] if nth < len(self.model.script) else EOS
        others = [token for token in range(len(TOKENS)) if token != best]
        n = 1 if settings.temperature == 0 else settings.top_k or len(TOKENS)
        logits = np.array([50.0, *np.linspace(10, 0, len(others))], np.float32)
        return Candidates(np.array([best, *others], np.uint32)[:n], logits[:n])

    def close(self) -> None:
        self.n_closed += 1


def run(model: ScriptedModel, prompt: Any = PROMPT, **options: Any) -> list[GenerationRecord]:  # noqa: ANN401
    records = list(stream_generate(model, prompt, **options))
    assert [sequence.n_closed for sequence in model.sequences] == [1]
    return records


def text_of(records: list[GenerationRecord]) -> str:
    return "".join(record.text for record in records)


def test_it_says_the_text_until_the_end_token() -> None:
    model = ScriptedModel("Hello, wörld 😀!")
    records = run(model)
    assert text_of(records) == "Hello, wörld 😀!"
    assert [record.token for record in records] == [*model.script, EOS]
    assert [record.finish_reason for record in records] == [None] * len(model.script) + ["stop"]
    assert model.sequences[0].fed == PROMPT + model.script
    assert generate(ScriptedModel("abc"), PROMPT) == "abc"


def test_records_count() -> None:
    records = run(ScriptedModel("abc"), seed=5)
    assert [record.generation_tokens for record in records] == [1, 2, 3, 4]
    for record in records:
        assert record.prompt_tokens == 3
        assert record.prompt_tps > 0
        assert record.prompt_ms > 0
        assert record.generation_ms >= 0
        assert record.peak_memory > 0.001
        assert record.seed == 5
    assert records[0].generation_tps == 0
    assert records[-1].generation_tps > 0


def test_a_random_seed_is_told_and_repeats_the_run() -> None:
    noisy = {"temperature": 30.0, "top_p": 1.0, "min_p": 0.0, "max_tokens": 20}
    first = run(ScriptedModel("abc"), **noisy)
    again = run(ScriptedModel("abc"), **noisy, seed=first[0].seed)
    other = run(ScriptedModel("abc"), **noisy, seed=first[0].seed ^ 1)
    assert [r.token for r in first] == [r.token for r in again] != [r.token for r in other]


@pytest.mark.parametrize("n", [1, 2, 5])
def test_max_tokens_ends_with_length(n: int) -> None:
    model = ScriptedModel("abcdefgh")
    records = run(model, max_tokens=n)
    assert len(records) == n
    assert records[-1].finish_reason == "length"
    assert model.sequences[0].fed == PROMPT + model.script[: n - 1]


def test_max_tokens_may_be_a_number_of_numpy_and_stop_none() -> None:
    assert len(run(ScriptedModel("abcdefgh"), max_tokens=np.int64(2), stop=None)) == 2


def test_max_tokens_zero_only_computes_the_prompt() -> None:
    (record,) = run(ScriptedModel("abc"), max_tokens=0)
    assert (record.text, record.token, record.finish_reason) == ("", None, "length")


@pytest.mark.parametrize("n_ctx", [3, 4, 6])
def test_the_end_of_the_context_is_a_reason(n_ctx: int) -> None:
    records = run(ScriptedModel("abcdefgh", n_ctx), max_tokens=-1)
    assert len(records) == n_ctx - 3 + 1
    assert records[-1].finish_reason == "context"


def test_a_prompt_longer_than_the_context_is_refused_before_anything() -> None:
    model = ScriptedModel("abc", n_ctx=2)
    with pytest.raises(ContextFullError, match="3 tokens, the context holds 2") as caught:
        stream_generate(model, PROMPT)
    assert "--ctx-size" in str(caught.value.hint)
    assert model.sequences == []


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (["lo"], "Hel"),
        (["o, w", "zzz"], "Hell"),
        ("world", "Hello, "),
        (["w", "o"], "Hell"),
        (["!x"], "Hello, world!"),
    ],
)
def test_stop_strings_end_it_and_are_not_shown(stop: Any, expected: str) -> None:  # noqa: ANN401
    records = run(ScriptedModel("Hello, world!"), stop=stop)
    assert text_of(records) == expected
    assert records[-1].finish_reason == "stop"


def test_held_text_is_shown_at_any_end() -> None:
    assert text_of(run(ScriptedModel("aSTO"), stop=["STOP"])) == "aSTO"
    assert text_of(run(ScriptedModel("aSTOP"), stop=["STOP"], max_tokens=4)) == "aSTO"
    half = tiny().encode("ß")[:1]
    assert text_of(run(ScriptedModel(half))) == "\ufffd"


def test_control_tokens_are_not_shown() -> None:
    middle = next(t for t in range(len(TOKENS)) if tiny().is_control(t) and t not in tiny().end_ids)
    assert text_of(run(ScriptedModel([*tiny().encode("a"), middle, *tiny().encode("b")]))) == "ab"


@pytest.mark.parametrize("options", [{"temperature": 0}, {"seed": 1}, {"top_k": 0}, {"top_k": 1}])
def test_ignore_eos_never_takes_an_end_token(options: dict[str, Any]) -> None:
    model = ScriptedModel("ab")
    records = run(model, ignore_eos=True, max_tokens=9, **options)
    assert len(records) == 9
    assert records[-1].finish_reason == "length"
    assert EOS not in [record.token for record in records]
    assert [record.token for record in records[:2]] == model.script


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [[], [], []]),
        ({"repeat_penalty": 1.1, "repeat_last_n": 2}, [[4, 5], [5, "a"], ["a", "b"]]),
        ({"presence_penalty": 1, "repeat_last_n": -1}, [[3, 4, 5], [3, 4, 5, "a"], None]),
        ({"frequency_penalty": 1, "repeat_last_n": 0}, [[], [], []]),
    ],
)
def test_penalties_see_the_last_tokens_of_prompt_and_text(
    options: dict[str, Any], expected: list[list[Any] | None]
) -> None:
    model = ScriptedModel("ab")
    run(model, **options)
    names = dict(zip(model.script, "ab", strict=True))
    for found, wanted in zip(model.sequences[0].recent, expected, strict=True):
        if wanted is not None:
            assert [names.get(token, token) for token in found] == wanted


def test_progress_is_told() -> None:
    calls: list[tuple[int, int]] = []
    run(ScriptedModel("a"), progress=lambda done, total: calls.append((done, total)))
    assert calls == [(3, 3)]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_errors_pass_through_with_the_sequence_closed(error: type[BaseException]) -> None:
    model = ScriptedModel("abcdef")

    def fail() -> None:
        if len(model.sequences[0].asked) == 2:
            raise error

    model.on_candidates = fail
    with pytest.raises(error):
        list(stream_generate(model, PROMPT))
    assert model.sequences[0].n_closed == 1


def test_closing_the_generator_closes_the_sequence() -> None:
    model = ScriptedModel("abcdef")
    stream = stream_generate(model, PROMPT)
    assert model.sequences == []
    next(stream)
    stream.close()
    assert model.sequences[0].n_closed == 1


def test_ids_without_a_tokenizer_give_tokens_without_text() -> None:
    model = ScriptedModel([7, 8, 9])
    model.tokenizer = None
    records = run(model, max_tokens=3)
    assert [record.token for record in records] == [7, 8, 9]
    assert text_of(records) == ""
    with pytest.raises(UnsupportedError):
        stream_generate(model, PROMPT, stop=["x"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temprature": 1}, "unknown option temprature; known: chat_template_kwargs, frequency"),
        ({"temperature": -1}, "temperature is -1"),
        ({"max_tokens": -2}, "max_tokens is -2, expected a whole number from -1"),
        ({"max_tokens": 1.5}, "max_tokens is 1.5, expected a whole number"),
        ({"max_tokens": True}, "max_tokens is True, expected a whole number"),
        ({"stop": [""]}, "stop string"),
        ({"stop": 5}, "stop is 5, expected a text or a list of texts"),
        ({"stop": [5]}, "stop string 5"),
        ({"raw": "yes"}, "raw is 'yes', expected True or False"),
        ({"ignore_eos": 1}, "ignore_eos is 1, expected True or False"),
        ({"system_prompt": 5}, "system_prompt is 5, expected a text"),
        ({"chat_template_kwargs": 5}, "chat_template_kwargs is 5, expected a mapping"),
    ],
)
def test_bad_options_are_refused_at_the_call(options: dict[str, Any], words: str) -> None:
    model = ScriptedModel("a")
    with pytest.raises(RequestError, match=words):
        stream_generate(model, PROMPT, **options)
    assert model.sequences == []
