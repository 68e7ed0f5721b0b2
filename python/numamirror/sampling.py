"""From the best candidates to one token: settings, and a pure function of them and a generator.

Order and definitions are those of llama.cpp's default chain: penalties (applied in Rust, before the
candidates are chosen), top-k, top-p, min-p, temperature, draw. Holds no state and knows no text.
Called by `generate`; `engine` makes the candidates.

Source: llama.cpp, `src/llama-sampling.cpp`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from numamirror.bounds import Bounds

RANDOM_SEED = -1
_SEED_BITS = 32
SAMPLING_BOUNDS = {
    "temperature": Bounds(0.0),
    "top_k": Bounds(0, 2**31 - 1, is_whole=True),
    "top_p": Bounds(0.0, 1.0),
    "min_p": Bounds(0.0, 1.0),
    # penalties within these keep every logit finite
    "repeat_penalty": Bounds(0.01, 100.0),
    "repeat_last_n": Bounds(-1, 2**31 - 1, is_whole=True),
    "presence_penalty": Bounds(-100.0, 100.0),
    "frequency_penalty": Bounds(-100.0, 100.0),
    "seed": Bounds(-1, 2**64 - 1, is_whole=True),
}
"""What each field of `SamplingSettings` may be; the flags have the same bounds."""

_LEAST_TEMPERATURE = 1e-30  # below, dividing by it could overflow; as good as greedy long before


@dataclass(frozen=True)
class SamplingSettings:
    """How to choose the next token.

    Args:
        temperature: Logits are divided by it; 0 takes the likeliest token.
        top_k: Candidates to draw from; 0 means all.
        top_p: Draw from the likeliest tokens that reach this probability together; 1 means all.
        min_p: Drop tokens less likely than this share of the likeliest; 0 means none.
        repeat_penalty: Divides positive and multiplies negative logits of recent tokens.
        repeat_last_n: How many tokens are recent; 0 none, -1 all.
        presence_penalty: Taken off the logits of recent tokens once.
        frequency_penalty: Taken off the logits of recent tokens once for each occurrence.
        seed: Of the random generator; -1 draws one.

    Raises:
        RequestError: A value is out of range.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = -1

    def __post_init__(self) -> None:
        for name, bounds in SAMPLING_BOUNDS.items():
            bounds.check(name, getattr(self, name))

    @property
    def has_penalties(self) -> bool:
        """Whether recent tokens change any logit."""
        return self.repeat_last_n != 0 and (
            self.repeat_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0
        )


@dataclass(frozen=True, eq=False)
class Candidates:
    """The best next tokens, penalties applied.

    Attributes:
        ids: uint32[n], best first; of equal logits the lowest id first.
        logits: float32[n], descending, finite.
    """

    ids: NDArray[np.uint32]
    logits: NDArray[np.float32]

    def without(self, ids: Iterable[int]) -> Candidates:
        """The candidates that are not among `ids`."""
        keep = ~np.isin(self.ids, list(ids))
        return Candidates(self.ids[keep], self.logits[keep])


def random_seed() -> int:
    """A seed of 32 bits from the system's entropy."""
    return random.SystemRandom().getrandbits(_SEED_BITS)


def make_rng(seed: int) -> np.random.Generator:
    """The generator that draws of one generation come from.

    Args:
        seed: 0 or more; -1 was replaced before, by `random_seed`.
    """
    return np.random.Generator(np.random.PCG64(seed))


def pick(candidates: Candidates, settings: SamplingSettings, rng: np.random.Generator) -> int:
    """Chooses a token.

    With logits x in descending order: keep the first `top_k`; of these the shortest prefix whose
    softmax sums to `top_p` or more; of these those with x >= x[0] + ln(min_p); draw from
    softmax(x / temperature) of what is left. Each stage keeps at least one. Sums are float64.

    Args:
        candidates: At least one; with `top_k` 0 all tokens.
        settings: Temperature, top-k, top-p and min-p are used here.
        rng: Advanced by one draw, unless the choice is greedy.

    Returns:
        The token's id; at temperature 0 the best, the lowest of equals.
    """
    logits = candidates.logits
    if settings.top_k > 0:
        logits = logits[: settings.top_k]
    if settings.temperature <= 0:
        return int(candidates.ids[0])
    below = logits.astype(np.float64)
    below -= below[0]
    if settings.top_p < 1:
        sums = np.exp(below).cumsum()
        below = below[: int(sums.searchsorted(settings.top_p * sums[-1])) + 1]
    if settings.min_p > 0:
        # searched from the far end, as searchsorted wants ascending values
        below = below[: len(below) - int(below[::-1].searchsorted(math.log(settings.min_p)))]
    if len(below) <= 1:
        rng.random()
        return int(candidates.ids[0])
    sums = np.exp(below * (1 / max(settings.temperature, _LEAST_TEMPERATURE))).cumsum()
    drawn = int(sums.searchsorted(rng.random() * sums[-1], side="right"))
    return int(candidates.ids[min(drawn, len(sums) - 1)])
