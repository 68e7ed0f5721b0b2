"""String arrays: the bulk way gives what the way one by one gives, for any mix of strings."""

from __future__ import annotations

import mmap

import pytest
from gguf_bytes import encode_string
from hypothesis import given, settings
from hypothesis import strategies as st
from numamirror.gguf_strings import StringError, read_strings


def in_memory(raw: bytes) -> mmap.mmap:
    data = mmap.mmap(-1, len(raw) + 1)
    data[: len(raw)] = raw
    return data


def read(raw: bytes, count: int, start: int = 0) -> tuple[list[str], int]:
    return read_strings(in_memory(raw), start, len(raw), count)


USUAL = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)
ANY = st.one_of(
    USUAL,
    st.text(max_size=4),
    st.text("\0a", max_size=12),
    st.integers(200, 300).map(lambda n: "x" * n),
)


@settings(deadline=None)
@given(st.lists(ANY, max_size=40), st.integers(0, 9))
def test_any_strings_come_back(strings: list[str], n_before: int) -> None:
    raw = b"\0" * n_before + b"".join(map(encode_string, strings))
    assert read(raw, len(strings), n_before) == (strings, len(raw))


@settings(deadline=None)
@given(st.lists(USUAL, min_size=1, max_size=40), st.binary(max_size=40))
def test_what_follows_the_array_is_left_alone(strings: list[str], after: bytes) -> None:
    raw = b"".join(map(encode_string, strings))
    assert read(raw + after, len(strings)) == (strings, len(raw))


@pytest.mark.parametrize(
    "odd", ["", "\0", "a\0b", "x" * 255, "x" * 256, "\0" * 7, "a" + "\0" * 7, "\0" + "x" * 300]
)
@pytest.mark.parametrize("place", [0, 5, 9000, 19999])
def test_an_odd_string_among_windows_of_usual_ones(odd: str, place: int) -> None:
    strings = [f"token {index} é" for index in range(20000)]
    strings[place] = odd
    assert read(b"".join(map(encode_string, strings)), len(strings))[0] == strings


@pytest.mark.parametrize("place", [0, 7, 9999])
def test_a_string_that_is_not_utf8_is_named(place: int) -> None:
    parts = [encode_string(f"token {index}") for index in range(10000)]
    parts[place] = encode_string(b"ab\xff")
    with pytest.raises(StringError, match="not utf-8: invalid start byte at its byte 2") as info:
        read(b"".join(parts), len(parts))
    assert info.value.index == place
    assert info.value.position == sum(map(len, parts[:place]))
    assert not info.value.is_cut


def test_a_character_cut_in_two_by_the_end_of_a_string_is_refused() -> None:
    raw = encode_string(b"ab\xc3") + encode_string(b"\xa9cd")
    with pytest.raises(StringError) as info:
        read(raw * 500, 1000)
    assert info.value.index == 0


@pytest.mark.parametrize("n_cut", [1, 3, 4, 11])
def test_a_cut_string_is_named(n_cut: int) -> None:
    raw = b"".join(encode_string(f"{index:03d}") for index in range(1000))
    with pytest.raises(StringError) as info:
        read(raw[:-n_cut], 1000)
    assert info.value.index == 999
    assert info.value.is_cut


def test_no_strings_take_no_bytes() -> None:
    assert read(b"", 0) == ([], 0)
