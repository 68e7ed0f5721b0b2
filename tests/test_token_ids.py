"""What counts as token ids."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from numamirror.errors import RequestError
from numamirror.token_ids import checked_ids


@pytest.mark.parametrize(
    "ids", [[0, 9], (0, 9), np.array([0, 9]), iter([0, 9]), [np.uint8(0), np.int64(9)]]
)
def test_whole_numbers_below_the_width_are_ids(ids: Iterable[object]) -> None:
    found = checked_ids(ids, 10)
    assert found == [0, 9]
    assert all(type(token) is int for token in found)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, 1.7], "ids[1] is 1.7, expected a token id"),
        ([True], "ids[0] is True, expected a token id"),
        ([np.True_], "ids[0] is np.True_, expected a token id"),
        (["1"], "ids[0] is '1', expected a token id"),
        ([None], "ids[0] is None, expected a token id"),
        (np.zeros((1, 2), int), "ids[0] is array([0, 0]), expected a token id"),
        ([-1], "ids[0] is -1, expected 0 to 9"),
        ([0, 10], "ids[1] is 10, expected 0 to 9"),
        ([2**40], "ids[0] is 1099511627776, expected 0 to 9"),
        ("12", "ids is '12', expected a list of token ids"),
        (b"12", "ids is b'12', expected a list of token ids"),
        (None, "ids is None, expected a list of token ids"),
        (5, "ids is 5, expected a list of token ids"),
    ],
)
def test_all_else_is_refused(ids: Any, message: str) -> None:  # noqa: ANN401
    with pytest.raises(RequestError, match=f"^{re.escape(message)}$"):
        checked_ids(ids, 10)
