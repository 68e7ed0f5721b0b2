"""Where a command's text comes from: a flag, a file or standard input.

Knows the flags `prompt` and `file`; knows nothing of tokens. Used by the commands that read text.
"""

from __future__ import annotations

import sys
from pathlib import Path

from numamirror.cli.parsing import Arguments
from numamirror.errors import RequestError

_STDIN = "-"


def text_of(arguments: Arguments) -> str:
    """The text that `--prompt` or `--file` gives; `-` with either is standard input.

    Raises:
        RequestError: Neither is given, or both, or the text is not UTF-8.
        OSError: The file can't be read.
    """
    prompt: str | None = getattr(arguments.own, "prompt", None)
    file: str | None = arguments.own.file
    if prompt is not None and file is not None:
        raise RequestError("--prompt and --file: found both, expected one of them")
    if prompt is not None:
        return prompt if prompt != _STDIN else _decoded(_stdin_bytes(), "standard input")
    if file is not None:
        text = (
            _decoded(_stdin_bytes(), "standard input")
            if file == _STDIN
            else _decoded(Path(file).read_bytes(), file)
        )
        return text.removesuffix("\n")  # as llama.cpp reads -f
    takes_prompt = hasattr(arguments.own, "prompt")
    raise RequestError(
        f"{arguments.command}: found no text",
        hint="give it with -p TEXT, -f FILE, or -p - for standard input"
        if takes_prompt
        else "give it with -f FILE, or -f - for standard input",
    )


def _stdin_bytes() -> bytes:
    if sys.stdin is None:  # closed by the caller, as with <&-
        raise RequestError("standard input is closed, expected text")
    return sys.stdin.buffer.read()


def _decoded(data: bytes, name: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as fault:
        byte = data[fault.start]
        raise RequestError(
            f"{name}: found byte 0x{byte:02x} at offset {fault.start}, expected UTF-8 text"
        ) from None
