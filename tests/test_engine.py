"""A loaded model as users hold it: options, arguments, sequences, threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_gguf
from numamirror import generate, load
from numamirror.cli.model_source import notes
from numamirror.engine import Model, prepare
from numamirror.errors import ContextFullError, RequestError
from numamirror.gguf_file import open_model
from numamirror.sampling import SamplingSettings

PROMPTS = ([1, 2, 3, 4, 5], [9, 8, 7, 6, 5, 4, 3])
GREEDY = SamplingSettings(temperature=0)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model."""
    path = tmp_path_factory.mktemp("engine") / "tiny.gguf"
    tiny_gguf.write_llama(path, quant="Q8_0", seed=5)
    return path


@pytest.fixture
def model(path: Path) -> Model:
    """That model, loaded, with room for several sequences."""
    return load(path, parallel=4)


def test_what_is_no_path_is_refused() -> None:
    with pytest.raises(RequestError, match=r"path is 5, expected the path of a \.gguf file"):
        load(5)  # type: ignore[arg-type]


def test_a_cache_held_by_other_sequences_is_said(path: Path) -> None:
    with load(path, ctx_size=64) as model:
        first, second = model.new_sequence(), model.new_sequence()
        first.extend([1] * 64)
        with pytest.raises(ContextFullError) as caught:
            second.extend([1])
        assert "other sequences hold the cache" in str(caught.value.hint)
        first.close()
        second.extend([1])
        with pytest.raises(ContextFullError) as caught:
            second.extend([1] * 64)
        assert "--ctx-size" in str(caught.value.hint)


@pytest.mark.parametrize("penalty", [-100.0, 100.0])
def test_the_strongest_penalties_leave_logits_finite(model: Model, penalty: float) -> None:
    for repeat in (0.01, 100.0):
        settings = SamplingSettings(
            repeat_penalty=repeat, presence_penalty=penalty, frequency_penalty=penalty
        )
        sequence = model.new_sequence()
        sequence.extend(PROMPTS[0])
        assert np.isfinite(sequence.candidates(settings, PROMPTS[0] * 9).logits).all()
        sequence.close()


def test_an_unknown_option_is_named(path: Path) -> None:
    with pytest.raises(RequestError, match="unknown option ctxsize; known: ctx_size"):
        load(path, ctxsize=10)


def test_a_closed_model_says_so_and_its_sequences_can_be_closed(path: Path) -> None:
    with load(path) as model:
        sequence = model.new_sequence()
        sequence.extend(PROMPTS[0])
    with pytest.raises(RequestError, match="the model is closed"):
        model.logits([1])
    sequence.close()


def test_candidates_are_the_sequences_own_whatever_pass_follows(model: Model) -> None:
    first, second = model.new_sequence(), model.new_sequence()
    first.extend(PROMPTS[0])
    expected = first.candidates(GREEDY, ())
    second.extend(PROMPTS[1])
    model.logits(PROMPTS[1])
    found = first.candidates(GREEDY, ())
    assert np.array_equal(found.ids, expected.ids)
    assert np.array_equal(found.logits, expected.logits)


def test_a_sequence_without_logits_has_no_candidates(model: Model) -> None:
    with pytest.raises(RequestError, match="expected one whose last token asked for logits"):
        model.new_sequence().candidates(GREEDY, ())


def test_threads_get_their_own_results(model: Model) -> None:
    logits = [model.logits(prompt) for prompt in PROMPTS]
    texts = [generate(model, prompt, temperature=0, max_tokens=8) for prompt in PROMPTS]

    def run(turn: int) -> None:
        which = turn % 2
        assert np.array_equal(model.logits(PROMPTS[which]), logits[which])
        text = generate(model, PROMPTS[which], temperature=0, max_tokens=8)
        assert text == texts[which]

    with ThreadPoolExecutor(max_workers=4) as pool:
        list(pool.map(run, range(40)))


NO_IDS: list[Any] = [[1.7], "12", [True], [-1], [2**40], None]


@pytest.mark.parametrize("ids", NO_IDS)
def test_what_are_no_token_ids_is_refused(model: Model, ids: Any) -> None:  # noqa: ANN401
    calls: list[Callable[[Any], object]] = [model.logits, model.new_sequence().extend]
    if not isinstance(ids, str):
        calls.append(lambda prompt: generate(model, prompt))
    for call in calls:
        with pytest.raises(RequestError, match="expected"):
            call(ids)


@pytest.mark.parametrize("token", [1.7, "1", True, -1, 2**40])
def test_a_pass_over_no_token_is_refused(model: Model, token: Any) -> None:  # noqa: ANN401
    with pytest.raises(RequestError, match=r"token\[0\] is "):
        model.forward([(0, 0, token, True)])


def test_what_is_no_text_is_refused(tiny_model_path: Path) -> None:
    text = prepare(open_model(tiny_model_path)).text
    with pytest.raises(RequestError, match="text is None, expected a text"):
        text.tokenize(None)  # type: ignore[arg-type]


def test_a_model_is_prepared_first_and_loaded_of_that(tiny_model_path: Path) -> None:
    prepared = prepare(open_model(tiny_model_path), ctx_size=32)
    ids = prepared.text.tokenize("hello")
    with Model(prepared) as loaded:
        assert loaded.n_ctx == prepared.limits.n_ctx == 32
        assert loaded.tokenize("hello") == ids
        assert loaded.load_seconds > 0


def test_threads_that_share_a_cpu_are_noted(path: Path) -> None:
    with load(path, ctx_size=64, threads=1) as model:
        assert notes(model) == []
        cpu = model.engine.pins[0][0]
    with load(path, ctx_size=64, threads=2, cpu_range=str(cpu)) as crowded:
        assert [note.split(";")[0] for note in notes(crowded)] == ["threads: 2, cpus allowed: 1"]
