"""The exceptions of numamirror, one tree.

Holds the classes alone; messages are written where the fault is found. Rust errors arrive as these
classes too (`rust/py/src/errors.rs` maps them). Raised everywhere, caught by `numamirror.cli`.
"""

from __future__ import annotations


class NumaMirrorError(Exception):
    """Something a user can be told in one line, with a hint when there is a way out.

    Args:
        message: What is wrong: lower case, no full stop, naming the thing, found and expected.
        hint: What to do about it, or None.
    """

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class ModelFileError(NumaMirrorError):
    """A model file is missing, damaged, incomplete or contradicts itself."""


class UnsupportedError(NumaMirrorError):
    """An architecture, quantization type, tokenizer or system that is not known here."""


class OutOfNodeMemoryError(NumaMirrorError, MemoryError):
    """Memory does not suffice for what was asked."""


class ContextFullError(NumaMirrorError):
    """A sequence does not fit into the context."""


class RequestError(NumaMirrorError):
    """An option or argument has a value that can't be used."""


class ProgramError(NumaMirrorError):
    """A program was refused by the engine's verifier."""


class NonFiniteError(NumaMirrorError):
    """A weight scale or a result is not a finite number."""


class EngineError(NumaMirrorError):
    """The engine can't go on: a failed system call, a forked process, an internal fault."""
