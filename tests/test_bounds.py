"""Ranges of options, and the words for them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numamirror.bounds import Bounds, check_choice, check_switch
from numamirror.errors import RequestError

WHOLE = Bounds(-1, 9, is_whole=True)
NUMBER = Bounds(0.5, 2.0)


@pytest.mark.parametrize("value", [-1, 9, np.int64(3), np.uint8(9)])
def test_whole_numbers_in_range(value: object) -> None:
    assert WHOLE.hold(value)


@pytest.mark.parametrize("value", [-2, 10, 1.0, np.float32(1), True, np.True_, "1", None, 1 << 70])
def test_all_else_is_not_whole_and_in_range(value: object) -> None:
    assert not WHOLE.hold(value)


@pytest.mark.parametrize("value", [0.5, 2, np.float32(1), np.int8(1)])
def test_numbers_in_range(value: object) -> None:
    assert NUMBER.hold(value)


@pytest.mark.parametrize("value", [0.49, 3, math.nan, math.inf, True, "1", None, np.float64("nan")])
def test_all_else_is_no_number_in_range(value: object) -> None:
    assert not NUMBER.hold(value)


def test_infinity_is_in_no_range() -> None:
    assert not Bounds(0).hold(math.inf)


def test_the_words_name_option_found_and_expected() -> None:
    with pytest.raises(RequestError, match=r"^n is 10, expected a whole number from -1 to 9$"):
        WHOLE.check("n", 10)
    with pytest.raises(RequestError, match=r"^x is 'a', expected a number from 0.5 to 2$"):
        NUMBER.check("x", "a")
    assert Bounds(0, is_whole=True).expected == "a whole number from 0"
    with pytest.raises(RequestError, match=r"^f is 1, expected True or False$"):
        check_switch("f", 1)
    with pytest.raises(RequestError, match=r"^c is 'z', expected one of a, b$"):
        check_choice("c", "z", ("a", "b"))
