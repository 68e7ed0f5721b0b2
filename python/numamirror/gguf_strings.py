"""Reads arrays of GGUF strings in bulk.

Holds the two ways through such an array: many strings at once for the usual ones, one by one for
the rest. Knows nothing else of GGUF and makes no error messages. Called by `gguf_header`.
"""

from __future__ import annotations

import mmap
import struct

import numpy as np

_WINDOW_BYTES = 1 << 18
_WINDOW_BYTES_A_STRING = 64  # keeps the window of a short array small
_ONE_BY_ONE = 1 << 12  # strings after a window that was of little use, before the next is tried
_WORTHWHILE = 1 << 8  # strings that a window must give to be worth its cost
_LENGTH = struct.Struct("<Q")


class StringError(Exception):
    """A string of an array can't be read.

    Args:
        index: Which string, from 0.
        position: The byte where its length starts.
        reason: What is wrong with it, to follow its name.
        is_cut: It reaches past the end of what may be read.
    """

    def __init__(self, index: int, position: int, reason: str, *, is_cut: bool) -> None:
        super().__init__(reason)
        self.index = index
        self.position = position
        self.reason = reason
        self.is_cut = is_cut


def read_strings(data: mmap.mmap, start: int, limit: int, count: int) -> tuple[list[str], int]:
    """Reads `count` strings, each a u64 of its bytes and then UTF-8.

    Args:
        data: The file.
        start: Byte of the first string's length.
        limit: Byte that nothing may reach past; at most the size of `data`.
        count: How many strings.

    Returns:
        The strings, and the byte after the last.

    Raises:
        StringError: A string reaches past `limit` or is not UTF-8.
    """
    strings: list[str] = []
    position = start
    while len(strings) < count:
        n_left = count - len(strings)
        end = min(limit, position + min(_WINDOW_BYTES, n_left * _WINDOW_BYTES_A_STRING))
        part, n_bytes = _read_usual(data[position:end], n_left)
        strings += part
        position += n_bytes
        if len(part) < _WORTHWHILE:
            n_next = min(count, len(strings) + _ONE_BY_ONE)
            position = _read_one_by_one(data, position, limit, n_next, strings)
    return strings, position


def _read_usual(window: bytes, n_wanted: int) -> tuple[list[str], int]:
    """Reads the strings at the start of a window whose lengths are 1 to 255 and that hold no NUL.

    The length of such a string is one byte and seven zeros, and there are no other zeros. So the
    zeros taken in sevens give the lengths; each is checked to stand where the string before it
    ends. All of the lengths but their last zero is cut out, the rest decoded and split at once.

    Args:
        window: Bytes that start with a string's length; it may end anywhere.
        n_wanted: The most strings to read.

    Returns:
        The strings up to the first that is not so, and their bytes; none when one is not UTF-8.
    """
    values = np.frombuffer(window, np.uint8) if window else np.empty(0, np.uint8)
    zeros = np.flatnonzero(values == 0)
    n_heads = len(zeros) // 7
    if n_heads == 0:
        return [], 0
    heads = zeros[: n_heads * 7 : 7] - 1
    ends = heads + 8 + values[heads]
    is_usual = zeros[6 : n_heads * 7 : 7] - heads == 7
    is_usual[0] &= heads[0] == 0
    is_usual[1:] &= heads[1:] == ends[:-1]
    # The next zero is that of the next length, so it lies behind the string: no NUL in it.
    next_zeros = np.append(zeros[7::7], len(values))[:n_heads]
    is_usual &= ends <= next_zeros
    n_usual = min(n_heads if is_usual.all() else int(is_usual.argmin()), n_wanted)
    if n_usual == 0:
        return [], 0
    n_bytes = int(ends[n_usual - 1])
    is_kept = np.ones(n_bytes, np.bool_)
    for index in range(7):
        is_kept[heads[:n_usual] + index] = False
    try:
        text = values[:n_bytes][is_kept].tobytes().decode()
    except UnicodeDecodeError:
        return [], 0
    return text.split("\0")[1:], n_bytes


def _read_one_by_one(
    data: mmap.mmap, position: int, limit: int, n_wanted: int, strings: list[str]
) -> int:
    """Appends to `strings` until they are `n_wanted`; returns the byte after the last."""
    unpack = _LENGTH.unpack_from
    while len(strings) < n_wanted:
        start = position + 8
        if start > limit:
            raise StringError(len(strings), position, "takes 8 bytes", is_cut=True)
        end = start + unpack(data, position)[0]
        if end > limit:
            raise StringError(len(strings), position, f"takes {end - position} bytes", is_cut=True)
        try:
            strings.append(data[start:end].decode())
        except UnicodeDecodeError as error:
            reason = f"is not utf-8: {error.reason} at its byte {error.start}"
            raise StringError(len(strings), position, reason, is_cut=False) from None
        position = end
    return position
