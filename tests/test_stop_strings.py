"""A stop string is found however the text is cut, and nothing before it is lost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numamirror.errors import RequestError
from numamirror.stop_strings import StopStrings

TEXT = st.text("ab\n", max_size=30)


@given(st.lists(TEXT), st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=4))
def test_pieces_give_the_text_before_the_first_found(pieces: list[str], stops: list[str]) -> None:
    finder = StopStrings(stops)
    shown = ""
    for piece in pieces:
        shown += finder.push(piece)
        assert not any(stop in shown for stop in stops)
        if finder.is_found:
            break
    found = finder.is_found
    shown += finder.flush()
    text = "".join(pieces)
    assert found == any(stop in text for stop in stops)
    if found:
        assert any(text[len(shown) :].startswith(stop) for stop in stops)
        assert text.startswith(shown)
    else:
        assert shown == text


def test_only_what_may_be_a_stop_string_is_held() -> None:
    finder = StopStrings(["END"])
    assert finder.push("abE") == "ab"
    assert finder.push("N") == ""
    assert finder.push("x") == "ENx"
    assert finder.push("xEND rest") == "x"
    assert finder.is_found
    assert finder.push("more") == ""
    assert finder.flush() == ""


def test_one_text_is_one_stop_string() -> None:
    finder = StopStrings("ab")
    assert finder.push("xaxb") == "xaxb"


@pytest.mark.parametrize("stops", [[""], ["a", ""], [1], ""])
def test_empty_and_other_stops_are_refused(stops: Any) -> None:  # noqa: ANN401
    with pytest.raises(RequestError, match="stop string"):
        StopStrings(stops)
