"""The engine on the real model, teacher-forced, against llama.cpp's logits and perplexity."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import goldens
import numamirror
import numpy as np
import pytest
import tolerances
from numamirror import default_model

GPL3 = Path(__file__).parent / "data" / "GPL-3.txt"
GOLDEN = goldens.read_golden("smollm2")


@pytest.fixture(scope="module")
def model() -> Iterator[numamirror.Model]:
    with numamirror.load(default_model.find()) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def forced_logits(model: numamirror.Model) -> list[np.ndarray]:
    return [case.rows(model.logits(case.ids)) for case in GOLDEN.cases]


def test_normalised_error_against_the_float_logits(forced_logits: list[np.ndarray]) -> None:
    errors = np.concatenate(
        [
            goldens.normalised_errors(logits[:, GOLDEN.fixed_ids], goldens.fixed(case.float_steps))
            for case, logits in zip(GOLDEN.cases, forced_logits, strict=True)
        ]
    )
    assert errors.mean() <= tolerances.ENGINE_VS_GOLDEN_FLOAT


@pytest.mark.parametrize("index", range(len(GOLDEN.cases)))
def test_same_choice_where_the_float_logits_are_decided(
    forced_logits: list[np.ndarray], index: int
) -> None:
    best = forced_logits[index].argmax(axis=1)
    steps = GOLDEN.cases[index].float_steps
    other = [
        (i, int(best[i]), step.top_ids[0])
        for i, step in enumerate(steps)
        if step.gap > tolerances.DECISIVE_GAP and best[i] != step.top_ids[0]
    ]
    assert not other, f"(step, chosen, float's choice): {other}"


@pytest.mark.parametrize("index", range(len(GOLDEN.cases)))
def test_prompts_are_tokenized_as_llama_cpp_does(model: numamirror.Model, index: int) -> None:
    case = GOLDEN.cases[index]
    assert model.tokenize(case.prompt, parse_special=True) == list(case.prompt_ids)


def test_paris(model: numamirror.Model) -> None:
    text = numamirror.generate(
        model, "The capital of France is", raw=True, temperature=0.0, max_tokens=4
    )
    assert text.startswith(" Paris.")


def test_perplexity_of_the_gpl3_text(model: numamirror.Model) -> None:
    n_chunks, chunk_tokens = 8, 512
    ids = model.tokenize(GPL3.read_text())[: n_chunks * chunk_tokens]
    losses: list[float] = []
    for start in range(0, len(ids), chunk_tokens):
        chunk = ids[start : start + chunk_tokens]
        judged = range(chunk_tokens // 2, chunk_tokens - 1)
        logits = model.logits(chunk)[judged].astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        log_sums = np.log(np.exp(logits).sum(axis=1))
        nexts = [chunk[i + 1] for i in judged]
        losses += (log_sums - logits[np.arange(len(nexts)), nexts]).tolist()
    assert len(losses) == n_chunks * (chunk_tokens // 2 - 1)
    allowed = tolerances.PERPLEXITY_LLAMA_CPP - tolerances.PERPLEXITY_FLOAT
    assert abs(math.exp(np.mean(losses)) - tolerances.PERPLEXITY_FLOAT) <= allowed
