"""Logits that llama.cpp gave, teacher-forced, and the error measure they are compared with.

Holds the loader of `goldens/*.json` and the normalised error. Knows nothing of any engine. Called
by the golden and architecture tests.

A golden file holds the logits of the model file itself (`model`) and of the same weights in F32
(`float`), rounded to four decimals: after the prompt and `forced_ids[:i]`, the eight best tokens
and 64 fixed ones.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

FOLDER = Path(__file__).parent / "goldens"


@dataclass(frozen=True)
class Step:
    """Logits of one position.

    Args:
        top_ids: The eight best tokens, best first.
        top_logits: Their logits.
        fixed_logits: f64[64], logits of the file's `fixed_ids`.
    """

    top_ids: tuple[int, ...]
    top_logits: tuple[float, ...]
    fixed_logits: NDArray[np.float64]

    @property
    def gap(self) -> float:
        """How far the best logit is above the second."""
        return self.top_logits[0] - self.top_logits[1]


@dataclass(frozen=True)
class Case:
    """One prompt and the tokens that were fed after it, whatever the model would have chosen."""

    prompt: str
    prompt_ids: tuple[int, ...]
    forced_ids: tuple[int, ...]
    float_steps: tuple[Step, ...]
    model_steps: tuple[Step, ...]

    @property
    def ids(self) -> list[int]:
        """Every token whose logits are compared, in one causal sequence."""
        return [*self.prompt_ids, *self.forced_ids][: len(self.prompt_ids) + self.n_steps - 1]

    @property
    def n_steps(self) -> int:
        """Positions that are compared, the last one of the prompt first."""
        return len(self.float_steps)

    def rows(self, logits: NDArray[Any]) -> NDArray[np.float64]:
        """The compared rows of the logits of `ids`."""
        return logits[len(self.prompt_ids) - 1 :].astype(np.float64)


@dataclass(frozen=True)
class Golden:
    """One golden file."""

    fixed_ids: NDArray[np.int64]
    cases: tuple[Case, ...]


def read_golden(name: str) -> Golden:
    """Read `goldens/<name>.json`."""
    raw = json.loads((FOLDER / f"{name}.json").read_text())
    return Golden(np.array(raw["fixed_ids"]), tuple(_case(case) for case in raw["cases"]))


def _case(raw: dict[str, Any]) -> Case:
    return Case(
        prompt=raw["prompt"],
        prompt_ids=tuple(raw["prompt_ids"]),
        forced_ids=tuple(raw["forced_ids"]),
        float_steps=tuple(_step(step) for step in raw["float"]),
        model_steps=tuple(_step(step) for step in raw["model"]),
    )


def _step(raw: dict[str, Any]) -> Step:
    ids, logits = zip(*raw["top"], strict=True)
    return Step(tuple(ids), tuple(logits), np.array(raw["fixed"]))


def fixed(steps: Sequence[Step]) -> NDArray[np.float64]:
    """The fixed logits of several steps: f64[n_steps, 64]."""
    return np.stack([step.fixed_logits for step in steps])


def normalised_errors(x: ArrayLike, f: ArrayLike) -> NDArray[np.float64]:
    """`sum((x - f)^2) / sum(f^2)` over the last axis: one value a row.

    Args:
        x: What is judged, [..., n].
        f: What it is judged against, [..., n].
    """
    x, f = np.asarray(x, np.float64), np.asarray(f, np.float64)
    return np.asarray(((x - f) ** 2).sum(axis=-1) / (f**2).sum(axis=-1))


def normalised_error(x: ArrayLike, f: ArrayLike) -> float:
    """Mean over all rows of `normalised_errors`."""
    return float(normalised_errors(x, f).mean())
