"""Kinds of flag values: how the text of a flag becomes a value.

Holds one `Kind` a sort of value (whole numbers, sizes such as `32k`, CPU ranges, ...). Knows no
flag by name. Used by `numamirror.cli.flags` to declare flags and by `numamirror.cli.parsing` to
read them, from the command line and from the environment alike.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from numamirror.bounds import Bounds


@dataclass(frozen=True)
class Kind:
    """A sort of value that a flag takes.

    Args:
        metavar: Stands for the value in help texts.
        expected: Completes "expected ..." in an error message.
        parse: Text to value; raises ValueError when the text is none of this kind.
        is_switch: The flag takes no value on the command line: naming it means true.
    """

    metavar: str
    expected: str
    parse: Callable[[str], object]
    is_switch: bool = False


def _boolean(text: str) -> bool:
    words = {"1": True, "on": True, "true": True, "yes": True}
    words |= {"0": False, "off": False, "false": False, "no": False}
    if text.lower() not in words:
        raise ValueError(text)
    return words[text.lower()]


def _text(text: str) -> str:
    text.encode()  # an argument that was not UTF-8 arrives with lone surrogates and fails here
    return text


def _path(text: str) -> str:
    if not text:
        raise ValueError(text)
    return text


def _threads(text: str) -> int | None:
    n_threads = _whole(text)
    if n_threads == -1:
        return None
    if n_threads < 1:
        raise ValueError(text)
    return n_threads


def _whole(text: str) -> int:
    # int() would take "1_000" and Arabic digits as well
    if not re.fullmatch(r"[+-]?[0-9]{1,20}", text):
        raise ValueError(text)
    return int(text)


def _decimal(text: str) -> float:
    # float() would take "nan" and "1_0" as well
    if not re.fullmatch(r"[-+0-9.eE]{1,32}", text):
        raise ValueError(text)
    return float(text)


def _ctx_size(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,12})([kK]?)", text)
    if match is None:
        raise ValueError(text)
    return int(match[1]) * (1024 if match[2] else 1)


def _cpu_range(text: str) -> str:
    for piece in text.split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", piece)
        if match is None or (match[2] is not None and int(match[2]) < int(match[1])):
            raise ValueError(text)
    return text


def _json_object(text: str) -> dict[str, object]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(text)  # noqa: TRY004  # the caller turns ValueError into a message
    return value


SWITCH = Kind("", "on or off", _boolean, is_switch=True)
TEXT = Kind("TEXT", "UTF-8 text", _text)
PATH = Kind("FILE", "a path", _path)
THREADS = Kind("N", "a whole number from 1, or -1 for one a physical core", _threads)
CTX_SIZE = Kind("N", "a number of tokens such as 4096 or 32k, or 0 for the model's own", _ctx_size)
CPU_RANGE = Kind("LO-HI[,...]", "ranges of CPU numbers such as 0-15,32-47", _cpu_range)
JSON_OBJECT = Kind("JSON", "a JSON object", _json_object)


def bounded(bounds: Bounds, meaning: str = "") -> Kind:
    """Decimal numbers within `bounds`; `meaning` explains a special value in errors."""

    def parse(text: str) -> float:
        value = _whole(text) if bounds.is_whole else _decimal(text)
        if not bounds.hold(value):
            raise ValueError(text)
        return value

    return Kind("N" if bounds.is_whole else "X", bounds.expected + meaning, parse)


def whole(minimum: int, meaning: str = "") -> Kind:
    """Whole numbers from `minimum` on; `meaning` explains a special value in errors."""
    return bounded(Bounds(minimum, is_whole=True), meaning)


def choice(*names: str) -> Kind:
    """One of `names`, upper or lower case."""

    def parse(text: str) -> str:
        if text.lower() not in names:
            raise ValueError(text)
        return text.lower()

    return Kind("|".join(names), "one of " + ", ".join(names), parse)


def whole_list(minimum: int) -> Kind:
    """Whole numbers from `minimum` on, separated by commas; the value is a tuple."""
    element = whole(minimum)

    def parse(text: str) -> tuple[int, ...]:
        values = tuple(element.parse(piece) for piece in text.split(","))
        return tuple(value for value in values if isinstance(value, int))

    return Kind("N[,N...]", f"whole numbers from {minimum}, separated by commas", parse)
