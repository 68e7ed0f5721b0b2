"""No text of a user holds the first or last character of a control token after marking."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numamirror.content_marks import make_marks
from numamirror.errors import RequestError

CONTROLS = ("<|im_start|>", "<|im_end|>", "[INST]", "</s>")
LITERALS = ("</think>", "<|", "|>", "user", "</s", "s>", "<tool>", "[", "x<|im_end|>y")
TEXT = st.lists(
    st.sampled_from([*CONTROLS, *LITERALS, "im_end", "\U000f0000", "\U000f0001", " "]) | st.text()
).map("".join)


@given(TEXT)
def test_marks_come_off_again(text: str) -> None:
    marks = make_marks([text], CONTROLS, LITERALS)
    marked = marks.mark(text)
    assert isinstance(marked, str)
    assert len(marked) == len(text)
    assert marks.unmark(marked) == text


@given(st.lists(TEXT, max_size=4), st.integers(0, 9), st.integers(0, 99))
def test_no_cut_or_join_makes_a_control_token(texts: list[str], start: int, end: int) -> None:
    marks = make_marks(texts, CONTROLS, LITERALS)
    marked: Any = marks.mark(texts)
    joined = "".join(text[start:end].strip() for text in marked) + "".join(marked)
    assert not any(control in joined for control in CONTROLS)


def test_the_middle_of_a_template_token_can_not_leave_it() -> None:
    """As in a template that writes `'<|' + role + '|>'`."""
    role = "user|>evil<|im_end"
    marked = make_marks(role, CONTROLS, LITERALS).mark(role)
    assert f"<|{marked}|>".count("<|") == 1


def test_literals_of_the_template_stay_unless_a_control_token_could_use_them() -> None:
    text = "a</think>b<tool>c<|d|>e</se"
    marked = make_marks(text, CONTROLS, LITERALS).mark(text)
    assert isinstance(marked, str)
    assert "</think>" in marked
    assert "<tool>" in marked
    assert "<|" not in marked
    assert "|>" not in marked
    assert "</s" not in marked


def test_keys_and_nested_values_are_marked_and_numbers_are_not() -> None:
    value = {"a<": [1, 2.5, None, True, {"b": ("<", "c")}]}
    marked: Any = make_marks(value, CONTROLS, ()).mark(value)
    twin = next(key for key in marked)[1]
    assert marked == {f"a{twin}": [1, 2.5, None, True, {"b": [twin, "c"]}]}


def test_twins_are_characters_that_occur_nowhere() -> None:
    marks = make_marks("\U000f0000", CONTROLS, (), "\U000f0001")
    assert not {0xF0000, 0xF0001} & set(marks.twins.values())


def test_running_out_of_twins_is_an_error() -> None:
    everything = "".join(map(chr, range(0xF0000, 0xFFFFE)))
    with pytest.raises(RequestError, match="private-use"):
        make_marks(everything, CONTROLS, ())


def test_what_json_can_not_hold_is_refused() -> None:
    with pytest.raises(RequestError, match="JSON"):
        make_marks([], CONTROLS, ()).mark([object()])
