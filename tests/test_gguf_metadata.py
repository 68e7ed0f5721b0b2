"""Typed getters: the value, or an error that names the file, the key, what is there and wanted."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numamirror.errors import ModelFileError
from numamirror.gguf_metadata import Metadata, describe_value, shown

METADATA = Metadata(
    {
        "int": 7,
        "negative": -1,
        "big": 2**40,
        "float": 0.5,
        "nan": float("nan"),
        "bool": True,
        "str": "abc",
        "ints": np.array([1, 2, 3], np.uint32),
        "floats": np.array([1.0, 2.0], np.float32),
        "strs": ["a", "b"],
        "nested": [np.array([1], np.int8), ["a"]],
    },
    Path("m.gguf"),
)


def test_is_a_mapping_in_file_order() -> None:
    assert list(METADATA)[:3] == ["int", "negative", "big"]
    assert len(METADATA) == 11
    assert METADATA["str"] == "abc"
    assert METADATA.get("absent") is None
    assert "int" in METADATA


def test_values_of_the_right_type() -> None:
    assert METADATA.get_int("int") == 7
    assert METADATA.get_int("big", maximum=2**63) == 2**40
    assert METADATA.get_int("negative", minimum=-1) == -1
    assert METADATA.get_float("float", above=0) == 0.5
    assert METADATA.get_bool("bool") is True
    assert METADATA.get_str("str") == "abc"
    assert METADATA.get_strs("strs") == ["a", "b"]
    assert METADATA.get_ints("ints", 3) == (1, 2, 3)
    assert METADATA.get_ints("int", 3) == (7, 7, 7)


def test_defaults_stand_for_absent_keys_only() -> None:
    assert METADATA.get_int("absent", -5) == -5
    assert METADATA.get_float("absent", 1.5) == 1.5
    assert METADATA.get_bool("absent", False) is False
    assert METADATA.get_str("absent", "") == ""
    assert METADATA.get_ints("absent", 2, 0) == (0, 0)
    assert METADATA.get_int("int", 9) == 7
    with pytest.raises(ModelFileError):
        METADATA.get_int("str", 9)


GETTERS: list[tuple[Callable[[str], object], str, str]] = [
    (METADATA.get_int, "an integer", "int"),
    (METADATA.get_float, "a float", "float"),
    (METADATA.get_bool, "a boolean", "bool"),
    (METADATA.get_str, "a string", "str"),
    (METADATA.get_strs, "an array of strings", "strs"),
]


@pytest.mark.parametrize(("getter", "wanted", "right_key"), GETTERS)
def test_every_other_type_is_refused(
    getter: Callable[[str], object], wanted: str, right_key: str
) -> None:
    for key in ("int", "float", "bool", "str", "ints", "strs", "nested"):
        if key != right_key:
            with pytest.raises(ModelFileError, match=f"'{key}' is .*, {wanted} was expected"):
                getter(key)


@pytest.mark.parametrize(("getter", "wanted", "right_key"), GETTERS)
def test_an_absent_key_is_named(
    getter: Callable[[str], object], wanted: str, right_key: str
) -> None:
    assert wanted
    assert right_key
    with pytest.raises(ModelFileError, match=r"^m.gguf: metadata has no 'x.y', which is required"):
        getter("x.y")


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda: METADATA.get_int("negative"), "'negative' is -1, 0 to 2147483647 was expected"),
        (lambda: METADATA.get_int("big"), "'big' is 1099511627776, 0 to 2147483647 was"),
        (lambda: METADATA.get_int("int", maximum=6), "'int' is 7, 0 to 6 was expected"),
        (lambda: METADATA.get_float("nan"), "'nan' is nan, a finite number was expected"),
        (lambda: METADATA.get_float("float", above=0.5), "is 0.5, a finite number above 0.5 was"),
        (lambda: METADATA.get_ints("ints", 4), "'ints' has 3 values, 4 were expected"),
        (lambda: METADATA.get_ints("ints", 3, minimum=2), "'ints'[0] is 1, 2 to 2147483647 was"),
        (lambda: METADATA.get_ints("floats", 2), "float32 [1.0, 2.0], an integer or an array of"),
        (lambda: METADATA.get_ints("strs", 2), "strings ['a', 'b'], an integer or an array of"),
        (lambda: METADATA.get_ints("float", 2), "is the float 0.5, an integer was expected"),
    ],
)
def test_wrong_values_say_what_was_expected(read: Callable[[], object], message: str) -> None:
    with pytest.raises(ModelFileError, match=re.escape(message)):
        read()


def test_text_from_a_file_is_one_short_escaped_line() -> None:
    assert shown("a\n\x1b[31m") == r"'a\n\x1b[31m'"
    assert len(shown("x" * 10**6)) < 100


def test_values_in_a_few_words() -> None:
    assert describe_value(True) == "the boolean True"
    assert describe_value(np.arange(9, dtype=np.int16)) == "an array of 9 int16 [0, 1, 2, 3, ...]"
    assert describe_value([]) == "an array of 0 strings []"
    assert describe_value([["a"], ["b"]]) == "an array of 2 arrays [[...], [...]]"
