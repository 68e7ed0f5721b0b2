"""What values options may have: kinds and ranges, and the words that refuse others.

Holds `Bounds` and checks of single values; knows no option by name. The tables of bounds stand with
their options (`sampling`, `load_options`), and the flags read them from there, so that the command
line and Python refuse alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from numamirror.errors import RequestError


@dataclass(frozen=True)
class Bounds:
    """A range of numbers, both ends included.

    Args:
        low: The least.
        high: The largest.
        is_whole: Whole numbers only.
    """

    low: float
    high: float = math.inf
    is_whole: bool = False

    @property
    def expected(self) -> str:
        """Completes "expected ..."."""
        noun = "a whole number" if self.is_whole else "a number"
        if math.isinf(self.high):
            return f"{noun} from {_shown(self.low)}"
        return f"{noun} from {_shown(self.low)} to {_shown(self.high)}"

    def check(self, name: str, value: object) -> None:
        """Refuses what is no number of this kind and range; numpy's numbers count as numbers.

        Raises:
            RequestError: Names the option, what was found and what is expected.
        """
        if not self.hold(value):
            raise wrong(name, value, self.expected)

    def hold(self, value: object) -> bool:
        """Whether `value` is a number of this kind and range."""
        if isinstance(value, bool):
            return False
        if isinstance(value, int | np.integer):
            return bool(self.low <= value <= self.high)
        if self.is_whole or not isinstance(value, float | np.floating):
            return False
        return math.isfinite(value) and bool(self.low <= value <= self.high)


def wrong(name: str, value: object, expected: str) -> RequestError:
    """The error for a value that an option can't have."""
    return RequestError(f"{name} is {value!r:.60}, expected {expected}")


def check_switch(name: str, value: object) -> None:
    """Refuses what is neither True nor False.

    Raises:
        RequestError: Names the option.
    """
    if not isinstance(value, bool | np.bool_):
        raise wrong(name, value, "True or False")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Refuses what is none of `choices`.

    Raises:
        RequestError: Names the option.
    """
    if value not in choices:
        raise wrong(name, value, "one of " + ", ".join(choices))


def _shown(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"
