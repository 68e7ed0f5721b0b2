"""Reads a command line: words and environment variables to checked values.

Knows the table of `numamirror.cli.flags` and no flag by name but help and version. Called by
`numamirror.cli.main`. Written out rather than left to argparse, since llama.cpp's users expect what
argparse can't do: long names with one dash that are never prefixes of one another (`-t`, `-tb`),
values that begin with a dash, flags whose value is optional, a model before or after the flags.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from numamirror.cli.flags import (
    FLAGS,
    IGNORED_FLAGS,
    Arity,
    Destination,
    Flag,
    IgnoredFlag,
    flags_of,
)
from numamirror.errors import RequestError

HELP_NAMES = ("-h", "--help")
_SWITCH_WORDS = frozenset({"on", "off", "auto", "0", "1"})
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class Arguments:
    """What a command was asked to do.

    Args:
        command: Its name.
        own: Values of the command's own flags, by option name.
        load: Options of `numamirror.load`.
        generate: Arguments of `numamirror.stream_generate`.
        notes: Sentences about accepted flags that do nothing.
    """

    command: str
    own: SimpleNamespace
    load: Mapping[str, Any]
    generate: Mapping[str, Any]
    notes: tuple[str, ...] = ()


@dataclass
class _Words:
    """What the words of one command line said, texts not yet turned into values."""

    texts: dict[Flag, list[str]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    wants_help: bool = False


def parse(command: str, words: Sequence[str], environ: Mapping[str, str]) -> Arguments | None:
    """Turn the words after `command` and the environment into values.

    Args:
        command: A key of `numamirror.cli.flags.COMMANDS`.
        words: The command line after the command.
        environ: Environment variables; those named after flags of the command are read, unless
            they are empty or the command line names a flag that excludes theirs.

    Returns:
        The values, or None when help was asked for.

    Raises:
        RequestError: A flag is unknown, lacks its value, or its value is none of its kind.
    """
    said = _read_words(command, words)
    if said.wants_help:
        return None
    excluded = _excluded(command, said.texts)
    heeded = {name: text for name, text in environ.items() if text and name not in excluded}
    by_destination: dict[Destination, dict[str, object]] = {place: {} for place in Destination}
    for flag in flags_of(command):
        by_destination[flag.destination][flag.option] = _value(flag, said.texts, heeded)
    return Arguments(
        command,
        SimpleNamespace(**by_destination[Destination.COMMAND]),
        by_destination[Destination.LOAD],
        by_destination[Destination.GENERATE],
        tuple(said.notes.values()),
    )


def _read_words(command: str, words: Sequence[str]) -> _Words:
    known = {name: flag for flag in flags_of(command) for name in flag.names}
    ignored = {name: flag for flag in IGNORED_FLAGS for name in flag.names if name not in known}
    said = _Words()
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        name, equals, attached = word.partition("=")
        following = words[position] if position < len(words) else None
        if word in HELP_NAMES:
            said.wants_help = True
        elif not word.startswith("-") or word == "-":
            _take_positional(command, word, said)
        elif name in known:
            flag = known[name]
            if equals:
                text = attached
            elif flag.kind.is_switch:
                text = "on"
            elif following is None or following in known or following in HELP_NAMES:
                raise RequestError(f"{name}: found no value, expected {flag.kind.expected}")
            else:
                text, position = following, position + 1
            said.texts.setdefault(flag, []).append(text)
        elif name in ignored:
            position += _n_ignored_words(ignored[name], name, bool(equals), following)
            said.notes[name] = f"{name} has no effect: {ignored[name].reason}"
        else:
            raise _unknown_flag(command, name, [*known, *HELP_NAMES])
    return said


def _take_positional(command: str, word: str, said: _Words) -> None:
    flag = next((flag for flag in flags_of(command) if flag.is_positional), None)
    if flag is None or flag in said.texts:
        raise RequestError(
            f"{command}: unexpected word {_shown(word)}",
            hint="quote a text that has spaces in it, and give it with its flag",
        )
    said.texts[flag] = [word]


def _n_ignored_words(flag: IgnoredFlag, name: str, is_attached: bool, following: str | None) -> int:
    """How many words after an ignored flag belong to it."""
    if is_attached or flag.arity is Arity.NONE:
        return 0
    if flag.arity is Arity.SWITCH_WORD:
        return int(following in _SWITCH_WORDS)
    if following is None:
        raise RequestError(f"{name}: found no value, expected one")
    return 1


def _unknown_flag(command: str, name: str, names: Sequence[str]) -> RequestError:
    users = sorted({c for flag in FLAGS if name in flag.names for c in flag.commands})
    similar = difflib.get_close_matches(name, names, n=1)
    if users:
        hint = f"{name} is a flag of {', '.join(users)}"
    elif similar:
        hint = f"did you mean {similar[0]}?"
    else:
        hint = f"numamirror {command} --help lists its flags"
    return RequestError(f"{command}: unknown flag {_shown(name)}", hint=hint)


def _excluded(command: str, texts: Mapping[Flag, list[str]]) -> frozenset[str]:
    """Variables of flags that what the command line says rules out."""
    said = {flag.long for flag in texts if _value(flag, texts, {}) != flag.default}
    return frozenset(flag.variable for flag in flags_of(command) if said & set(flag.excludes))


def wants_traceback(words: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether `--verbose` is asked for, also by words that can't be read otherwise."""
    flag = next(flag for flag in FLAGS if flag.option == "verbose")
    pairs = [word.partition("=") for word in words]
    said = [text if equals else "on" for name, equals, text in pairs if name in flag.names]
    try:
        return bool(flag.kind.parse(said[-1] if said else environ.get(flag.variable) or "off"))
    except ValueError:
        return False


def _value(flag: Flag, texts: Mapping[Flag, list[str]], environ: Mapping[str, str]) -> object:
    if flag in texts:
        values = [_converted(flag, f"--{flag.long}", text) for text in texts[flag]]
    elif flag.variable in environ:
        values = [_converted(flag, flag.variable, environ[flag.variable])]
    else:
        return flag.default
    return tuple(values) if flag.is_repeatable else values[-1]


def _converted(flag: Flag, source: str, text: str) -> object:
    try:
        return flag.kind.parse(text)
    except (ValueError, RecursionError):
        message = f"{source}: found {_shown(text)}, expected {flag.kind.expected}"
        raise RequestError(message) from None


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…")
