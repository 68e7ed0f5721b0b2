"""What can be asked of a load: the options of `numamirror.load`, checked.

Holds names and defaults, and what sizes they mean for a model. Loads nothing. Called by
`numamirror.engine`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from numamirror.compile import Limits
from numamirror.errors import RequestError
from numamirror.plan import Plan

DEFAULT_CTX_SIZE = 4096
"""Positions of a context unless asked otherwise, as far as the model was trained for them."""


@dataclass(frozen=True)
class LoadOptions:
    """How to load a model; the names are the long flags with underscores.

    Args:
        ctx_size: Positions of a context; None: 4096 or the model's own, whichever is less; 0: the
            model's own.
        threads: Workers when one token is computed; None: one a physical core.
        threads_batch: Workers when more are; None: as many as `threads`.
        cpu_range: CPUs to use, `LO-HI[,…]`; None: all that the process may use.
        ubatch_size: Most tokens of a prompt computed at once.
        cache_type_k: Element type of cached keys, `f16` or `f32`.
        cache_type_v: Element type of cached values.
        parallel: Sequences of `ctx_size` that the cache holds at once.
        chat_template_file: A Jinja template to use in place of the model's own.
    """

    ctx_size: int | None = None
    threads: int | None = None
    threads_batch: int | None = None
    cpu_range: str | None = None
    ubatch_size: int = 512
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    parallel: int = 1
    chat_template_file: str | None = None

    def limits(self, plan: Plan) -> Limits:
        """The sizes that these options give a model.

        Raises:
            RequestError: A number is out of range.
        """
        own = plan.config.context_length
        n_ctx = min(DEFAULT_CTX_SIZE, own) if self.ctx_size is None else self.ctx_size or own
        for name, value in (
            ("ctx_size", n_ctx),
            ("ubatch_size", self.ubatch_size),
            ("parallel", self.parallel),
        ):
            if not 1 <= value <= 1 << 24:
                raise RequestError(f"{name} is {value}, expected 1 to {1 << 24}")
        n_ubatch = min(self.ubatch_size, n_ctx * self.parallel)
        return Limits(n_ctx, self.parallel, n_ubatch, self.cache_type_k, self.cache_type_v)


def read_options(options: Mapping[str, Any]) -> LoadOptions:
    """The options of a load.

    Raises:
        RequestError: One is not known.
    """
    known = [field.name for field in fields(LoadOptions)]
    unknown = sorted(options.keys() - set(known))
    if unknown:
        raise RequestError(f"unknown option {unknown[0]}; known: {', '.join(known)}")
    return LoadOptions(**options)


def read_template(path: str | None) -> str | None:
    """The text of a chat template's file, None for none.

    Raises:
        RequestError: It can't be read.
    """
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise RequestError(f"chat_template_file {path}: {error}") from error
