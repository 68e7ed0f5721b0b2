"""Sequences of a loaded model: closing, side by side, from several threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tiny_gguf
from numamirror import generate, load
from numamirror.engine import Model
from numamirror.errors import ContextFullError, RequestError
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
