"""`pick` against a naive version of llama.cpp's chain, and its draws against probabilities."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numamirror.errors import RequestError
from numamirror.sampling import (
    SAMPLING_BOUNDS,
    Candidates,
    SamplingSettings,
    make_rng,
    pick,
    random_seed,
)

N_DRAWS = 20_000


def candidates(logits: list[float]) -> Candidates:
    """Candidates in the order that the engine gives; ids are the places in `logits`."""
    values = np.array(logits, np.float32)
    order = np.lexsort((np.arange(len(values)), -values))
    return Candidates(order.astype(np.uint32), values[order])


def naive_chain(found: Candidates, settings: SamplingSettings) -> dict[int, float]:
    """Probability of each token that can be drawn: the stages one by one, in plain Python."""
    left = [(int(i), float(x)) for i, x in zip(found.ids, found.logits, strict=True)]
    if settings.top_k > 0:
        left = left[: settings.top_k]
    if settings.top_p < 1:
        total, kept = 0.0, []
        for (token, logit), p in zip(left, softmax([x for _, x in left]), strict=True):
            kept.append((token, logit))
            total += p
            if total >= settings.top_p:
                break
        left = kept
    if settings.min_p > 0:
        least = left[0][1] + math.log(settings.min_p)
        left = [left[0], *(pair for pair in left[1:] if pair[1] >= least)]
    probabilities = softmax([x / settings.temperature for _, x in left])
    return {token: p for (token, _), p in zip(left, probabilities, strict=True)}


def softmax(values: list[float]) -> list[float]:
    powers = [math.exp(value - max(values)) for value in values]
    return [power / sum(powers) for power in powers]


class FixedRng:
    """A generator whose draws are known."""

    def __init__(self, draw: float) -> None:
        self.draw = draw

    def random(self) -> float:
        return self.draw


def pick_at(draw: float, found: Candidates, settings: SamplingSettings) -> int:
    rng: Any = FixedRng(draw)
    return pick(found, settings, rng)


LOGITS = st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=60)


@given(
    LOGITS,
    st.floats(0.05, 4),
    st.integers(0, 50),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0, 1, exclude_max=True),
)
def test_the_choice_is_the_naive_chains(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float, draw: float
) -> None:
    settings = SamplingSettings(temperature, top_k, top_p, min_p)
    found = candidates(logits)
    expected = naive_chain(found, settings)
    token = pick_at(draw, found, settings)
    # sums in another order may move the borders by rounding: accept both sides of a near one
    borders = np.cumsum(list(expected.values()))
    accepted = {
        list(expected)[min(int(np.searchsorted(borders, at, "right")), len(expected) - 1)]
        for at in (draw - 1e-9, draw, draw + 1e-9)
    }
    looser = dict(expected)
    for by in (1 - 1e-9, 1 + 1e-9):
        near = SamplingSettings(temperature, top_k, min(top_p * by, 1), min(min_p * by, 1))
        looser |= naive_chain(found, near)
    assert token in accepted or len(looser) != len(expected)


@given(LOGITS)
def test_temperature_zero_takes_the_best_and_lowest(logits: list[float]) -> None:
    expected = int(np.argmax(np.array(logits, np.float32)))
    settings = SamplingSettings(temperature=0, top_k=0)
    assert pick_at(0.99, candidates(logits), settings) == expected


@pytest.mark.parametrize(
    "settings",
    [
        SamplingSettings(),
        SamplingSettings(temperature=1.7, top_k=0, top_p=1, min_p=0),
        SamplingSettings(temperature=0.5, top_k=5, top_p=0.7, min_p=0),
        SamplingSettings(temperature=1, top_k=0, top_p=1, min_p=0.2),
    ],
)
def test_draws_have_the_chains_distribution(settings: SamplingSettings) -> None:
    found = candidates([2.0, 1.5, 1.4, 0.3, 0.0, -0.5, -1.0, -3.0])
    expected = naive_chain(found, settings)
    rng = make_rng(42)
    draws = [pick(found, settings, rng) for _ in range(N_DRAWS)]
    assert set(draws) <= expected.keys()
    for token, p in expected.items():
        sigma = math.sqrt(p * (1 - p) / N_DRAWS)
        assert abs(draws.count(token) / N_DRAWS - p) < 5 * sigma + 1e-12, token


def test_each_stage_keeps_one() -> None:
    found = candidates([1.0, 1.0, 1.0])
    assert pick_at(0.9, found, SamplingSettings(top_p=0, min_p=0)) == 0
    assert pick_at(0.9, found, SamplingSettings(top_k=1)) == 0
    assert pick_at(0.0, candidates([5.0]), SamplingSettings(min_p=1)) == 0


def test_min_p_one_keeps_the_best_and_its_equals() -> None:
    found = candidates([1.0, 1.0, 0.9])
    assert {pick_at(d, found, SamplingSettings(min_p=1)) for d in (0, 0.4, 0.6, 0.99)} == {0, 1}


@pytest.mark.parametrize("temperature", [1e-320, 1e-30, 1e30])
def test_extreme_temperatures_neither_warn_nor_fail(temperature: float) -> None:
    settings = SamplingSettings(temperature=temperature, top_k=0, top_p=1, min_p=0)
    assert pick_at(0.999, candidates([3e38, 0.0, -3e38]), settings) == 0


def test_the_same_seed_draws_the_same() -> None:
    found = candidates([0.0] * 40)
    settings = SamplingSettings()
    runs = []
    for seed in (7, 7, 8):
        rng = make_rng(seed)
        runs.append([pick(found, settings, rng) for _ in range(20)])
    assert runs[0] == runs[1] != runs[2]


def test_a_random_seed_has_32_bits() -> None:
    assert all(0 <= random_seed() < 1 << 32 for _ in range(50))


def test_without_drops_ids() -> None:
    left = candidates([3, 2, 1]).without([0, 2])
    assert left.ids.tolist() == [1]
    assert left.logits.tolist() == [2]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("temperature", -0.1, "a number from 0"),
        ("temperature", math.nan, "a number from 0"),
        ("temperature", math.inf, "a number from 0"),
        ("temperature", "1", "a number from 0"),
        ("temperature", True, "a number from 0"),
        ("top_k", -1, "a whole number from 0"),
        ("top_k", 1.5, "a whole number from 0"),
        ("top_p", 1.01, "a number from 0 to 1"),
        ("top_p", -0.01, "a number from 0 to 1"),
        ("min_p", 2, "a number from 0 to 1"),
        ("repeat_penalty", 0, "a number from 0.01 to 100"),
        ("repeat_penalty", 1e38, "a number from 0.01 to 100"),
        ("repeat_last_n", -2, "a whole number from -1"),
        ("presence_penalty", 1e38, "a number from -100 to 100"),
        ("frequency_penalty", None, "a number from -100 to 100"),
        ("seed", -2, "a whole number from -1"),
        ("seed", 1 << 64, "to 18446744073709551615"),
    ],
)
def test_settings_out_of_range_are_refused(name: str, value: Any, expected: str) -> None:  # noqa: ANN401
    with pytest.raises(RequestError) as caught:
        SamplingSettings(**{name: value})
    assert str(caught.value).startswith(f"{name} is ")
    assert expected in str(caught.value)


def test_numbers_of_numpy_are_numbers() -> None:
    of_numpy: dict[str, Any] = {"temperature": np.float32(0.5), "top_k": np.int64(3)}
    assert SamplingSettings(**of_numpy, seed=5) == SamplingSettings(
        temperature=0.5, top_k=3, seed=5
    )


def test_every_setting_has_bounds_that_hold_its_default() -> None:
    assert SAMPLING_BOUNDS.keys() == {field.name for field in fields(SamplingSettings)}
    for field in fields(SamplingSettings):
        assert SAMPLING_BOUNDS[field.name].hold(field.default), field.name


def test_penalties_are_known_to_matter() -> None:
    assert not SamplingSettings().has_penalties
    assert SamplingSettings(repeat_penalty=1.1).has_penalties
    assert SamplingSettings(presence_penalty=-0.1).has_penalties
    assert not SamplingSettings(frequency_penalty=1, repeat_last_n=0).has_penalties
