"""numamirror runs quantized GGUF language models on multi-socket CPU servers.

Holds the public names alone: `load`, `generate`, `stream_generate`, `Model`, `__version__`.
"""

from __future__ import annotations

import sys

if sys.platform != "linux":
    raise ImportError(
        "numamirror needs Linux: it places memory with Linux system calls, "
        f"and this system is {sys.platform}"
    )

from numamirror.engine import Model, load
from numamirror.generate import generate, stream_generate

__version__: str

__all__ = ["Model", "__version__", "generate", "load", "stream_generate"]


def __getattr__(name: str) -> object:
    """Read the installed version when it is asked for, not at import.

    Raises:
        AttributeError: `name` is not a public name of this package.
    """
    if name == "__version__":
        from importlib.metadata import version

        return version("numamirror")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
