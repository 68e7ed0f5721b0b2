"""Architectures: one module a `general.architecture`, found by its name.

Holds the lookup alone. A name from a file is compared with the folder's listing and never imported
as it stands. `numamirror.plan` calls it. To add an architecture, add its file here, hyphens as
underscores, with what `Architecture` lists, and nothing else.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, cast

from numamirror.errors import ModelFileError, UnsupportedError

if TYPE_CHECKING:
    from numamirror.gguf_file import ModelFile
    from numamirror.program import Builder, Value


@dataclass(frozen=True)
class TensorNeed:
    """A tensor that an architecture reads.

    Args:
        name: Name in the file.
        shape: Rows first; `(n,)` for a vector.
        required: Whether the model can't run without it.
    """

    name: str
    shape: tuple[int, ...]
    required: bool = True

    @property
    def role(self) -> Literal["matrix", "vector"]:
        """How the engine holds it: packed for products, or one row of plain f32."""
        return "vector" if len(self.shape) == 1 else "matrix"


class Config(Protocol):
    """What every architecture's hyper-parameters tell; the names are GGUF's keys."""

    @property
    def block_count(self) -> int:
        """Number of layers."""

    @property
    def context_length(self) -> int:
        """Positions that the model was trained for."""

    @property
    def embedding_length(self) -> int:
        """Width of the residual stream."""

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding, width of the logits."""


class Architecture(Protocol):
    """What a module in this folder exports."""

    def read_config(self, file: ModelFile) -> Config:
        """Reads the hyper-parameters from the metadata.

        Raises:
            ModelFileError: A key is missing, of the wrong type, or contradicts another.
            UnsupportedError: The file asks for something that is not built.
        """

    def tensors(self, config: Config) -> Iterable[TensorNeed]:
        """Every tensor that the architecture reads, with its shape."""

    def wire(self, config: Config, b: Builder) -> Value:
        """Describes one forward pass to `b`; returns the logits."""


def names() -> list[str]:
    """The architectures there are, as files name them."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__))


def find(name: str) -> Architecture:
    """The architecture that a file calls `name`.

    Raises:
        UnsupportedError: There is none; the message lists those there are.
    """
    for module in pkgutil.iter_modules(__path__):
        if module.name == name.replace("-", "_"):
            return cast("Architecture", importlib.import_module(f"{__name__}.{module.name}"))
    raise UnsupportedError(f"architecture {name!r} is not supported; known: {', '.join(names())}")


def vocab_size(file: ModelFile) -> int:
    """Size of the vocabulary: `<architecture>.vocab_size`, else the rows of the embedding.

    Raises:
        ModelFileError: The file has no embedding, or the key is no positive integer.
    """
    if "token_embd.weight" not in file.tensors:
        raise ModelFileError(f"{file.paths[0]}: tensor token_embd.weight is missing")
    prefix = file.metadata.get_str("general.architecture")
    n_rows = file.tensors["token_embd.weight"].shape[0]
    return file.metadata.get_int(f"{prefix}.vocab_size", n_rows, minimum=1)
