"""llama-perplexity's rule, on a model whose logits are known."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import cast

import numpy as np
import numpy.typing as npt
import pytest
from numamirror.cli import perplexity
from numamirror.cli.perplexity import Estimate, negative_log_likelihoods
from numamirror.engine import Model
from numamirror.errors import NumaMirrorError
from numamirror.text import TextSide

_N_VOCAB = 11
_BOS = 10


class KnownModel:
    """Tokens are digits; the logit of token t after token s depends on s and t alone."""

    def __init__(self, adds_bos: bool = False) -> None:
        self.adds_bos = adds_bos
        self.tokenizer = SimpleNamespace(bos_id=_BOS)
        self.table = np.random.default_rng(1).normal(size=(_N_VOCAB, _N_VOCAB)).astype(np.float32)
        self.evaluated: list[list[int]] = []

    def tokenize(self, text: str) -> list[int]:
        return [_BOS] * self.adds_bos + [int(digit) for digit in text]

    def logits(self, ids: list[int]) -> npt.NDArray[np.float32]:
        self.evaluated.append(ids)
        return self.table[ids]


def chunks(model: KnownModel, text: str, n_ctx: int, n_wanted: int) -> list[list[int]]:
    return perplexity.chunks_of(cast("TextSide", model), text, n_ctx, n_wanted)


def results(model: KnownModel, parts: list[list[int]]) -> list[Estimate]:
    return list(perplexity.estimates(cast("Model", model), parts))


def _loss(model: KnownModel, before: int, after: int) -> float:
    row = model.table[before].astype(np.float64)
    return float(np.log(np.exp(row).sum()) - row[after])


def test_the_second_half_of_each_chunk_is_scored() -> None:
    model = KnownModel()
    text = "314159265358979323846264"
    found = results(model, chunks(model, text, 8, -1))
    ids = [int(digit) for digit in text]
    losses = [
        _loss(model, ids[start + i], ids[start + i + 1]) for start in (0, 8, 16) for i in (4, 5, 6)
    ]
    for n_chunks, estimate in enumerate(found, start=1):
        assert estimate.perplexity == pytest.approx(math.exp(np.mean(losses[: 3 * n_chunks])))
    spread = np.std(losses) / math.sqrt(len(losses) - 1)
    assert found[-1].error == pytest.approx(spread * found[-1].perplexity)


def test_chunks_start_with_bos_where_the_model_adds_it() -> None:
    model = KnownModel(adds_bos=True)
    assert results(model, chunks(model, "1234567", 4, -1))
    assert model.evaluated == [[_BOS, 1, 2, 3], [_BOS, 5, 6, 7]]
    without = KnownModel()
    assert results(without, chunks(without, "12345678", 4, -1))
    assert without.evaluated == [[1, 2, 3, 4], [5, 6, 7, 8]]


def test_chunks_are_whole_and_limited() -> None:
    model = KnownModel()
    assert len(chunks(model, "1" * 23, 4, -1)) == 5
    assert len(chunks(model, "1" * 23, 4, 2)) == 2
    assert len(chunks(model, "1" * 23, 4, 99)) == 5


def test_uniform_logits_are_as_surprised_as_the_vocabulary_is_large() -> None:
    logits = np.zeros((40, 7), np.float32)
    losses = negative_log_likelihoods(logits, [3] * 40)
    assert np.exp(losses) == pytest.approx(np.full(40, 7.0))


def test_large_logits_do_not_overflow() -> None:
    losses = negative_log_likelihoods(np.array([[30000.0, 0.0]], np.float32), [1])
    assert losses == pytest.approx([30000.0])


def test_too_short_a_text_is_refused_with_the_numbers() -> None:
    with pytest.raises(NumaMirrorError, match="has 7 tokens, expected at least 8 for chunks of 4"):
        chunks(KnownModel(), "1234567", 4, -1)
