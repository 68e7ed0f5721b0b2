"""`numamirror tokenize`: print the tokens of a text.

Opens the file and reads its tokenizer; loads no weights. Called by `numamirror.cli.main`.
"""

from __future__ import annotations

import json
import sys

from numamirror.cli.model_source import model_path
from numamirror.cli.parsing import Arguments
from numamirror.cli.text_source import text_of
from numamirror.errors import UnsupportedError
from numamirror.gguf_file import open_model
from numamirror.tokenizer import Tokenizer


def run(arguments: Arguments) -> int:
    """Tokenize; returns the exit code.

    Each line is an id and its piece, as llama-tokenize prints them; with `--json` one object in
    the shape of llama-server's `/tokenize` with pieces.
    """
    path = model_path(arguments)
    text = text_of(arguments)
    tokenizer = Tokenizer.from_metadata(open_model(path).metadata)
    if tokenizer is None:
        raise UnsupportedError(f"{path}: found no tokenizer in the file, expected one")
    ids = tokenizer.encode(
        text,
        add_special=not arguments.own.no_bos,
        parse_special=arguments.own.parse_special,
    )
    pieces = [tokenizer.piece(token) for token in ids]
    if arguments.own.json:
        tokens = [
            {"id": token, "piece": _json_piece(piece)}
            for token, piece in zip(ids, pieces, strict=True)
        ]
        json.dump({"tokens": tokens}, sys.stdout, ensure_ascii=False)
        sys.stdout.write("\n")
        return 0
    for token, piece in zip(ids, pieces, strict=True):
        sys.stdout.write(f"{token:6d} -> {piece.decode(errors='replace')!r}\n")
    return 0


def _json_piece(piece: bytes) -> str | list[int]:
    """The piece as text; a piece that is part of a character as its bytes."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)
