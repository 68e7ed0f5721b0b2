"""What can be asked of a load: the options of `numamirror.load`, checked.

Holds names and defaults, and what sizes they mean for a model. Loads nothing. Called by
`numamirror.engine`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from numamirror import _core
from numamirror.bounds import Bounds, check_choice, wrong
from numamirror.compile import Limits
from numamirror.errors import RequestError
from numamirror.overrides import Rule, cpu_moe_rules, n_cpu_moe_rules, parse_rules
from numamirror.placement import MATRIX_DEFAULTS
from numamirror.plan import Plan

CACHE_TYPES = ("f16", "f32")
NUMA_SYNONYMS = {"duplicate": "mirror", "distribute": "split", "numactl": "auto"}
"""Words of llama.cpp and its forks for `numa`, and what they are here."""
NUMA_MODES = (*MATRIX_DEFAULTS, *NUMA_SYNONYMS)
DEFAULT_CTX_SIZE = 4096
"""Positions of a context unless asked otherwise, as far as the model was trained for them."""

_MOST_POSITIONS = 1 << 24
_MOST_THREADS = 4096  # as the engine's MAX_THREADS
_MOST_SIMULATED_NODES = 64  # as the engine's MAX_SIMULATED_NODES
_AUTOMATIC = -1
_LOAD_BOUNDS = {
    "ctx_size": Bounds(0, _MOST_POSITIONS, is_whole=True),
    "threads": Bounds(1, _MOST_THREADS, is_whole=True),
    "threads_batch": Bounds(1, _MOST_THREADS, is_whole=True),
    "ubatch_size": Bounds(1, _MOST_POSITIONS, is_whole=True),
    "parallel": Bounds(1, _MOST_POSITIONS, is_whole=True),
    "simulate_nodes": Bounds(1, _MOST_SIMULATED_NODES, is_whole=True),
    "n_cpu_moe": Bounds(0, _MOST_POSITIONS, is_whole=True),
}
_N_CTX_BOUNDS = Bounds(1, _MOST_POSITIONS, is_whole=True)
_OPTIONAL = frozenset({"ctx_size", "threads", "threads_batch", "simulate_nodes"})


@dataclass(frozen=True)
class LoadOptions:
    """How to load a model; the names are the long flags with underscores.

    Args:
        ctx_size: Positions of a context; None: 4096 or the model's own, whichever is less; 0: the
            model's own.
        threads: Workers when one token is computed; None or -1: one a physical core.
        threads_batch: Workers when more are; None or -1: as many as `threads`.
        cpu_range: CPUs to use, `LO-HI[,…]`; None: all that the process may use.
        ubatch_size: Most tokens of a prompt computed at once.
        cache_type_k: Element type of cached keys, `f16` or `f32`.
        cache_type_v: Element type of cached values.
        parallel: Sequences of `ctx_size` that the cache holds at once.
        chat_template_file: A Jinja template to use in place of the model's own.
        numa: Where matrices go by default: `split`, `mirror`, `interleave`, `off` (one node, one
            copy, nothing bound), `auto` (split for now).
        simulate_nodes: Deal the cores to this many pretended nodes; None: the machine's own nodes.
        override_tensor: `PATTERN=BUFFER` rules.
        cpu_moe: The rule that puts all experts into the default buffer.
        n_cpu_moe: The same for the experts of that many first layers.

    Raises:
        RequestError: A value is of another kind or out of range.
    """

    ctx_size: int | None = None
    threads: int | None = None
    threads_batch: int | None = None
    cpu_range: str | None = None
    ubatch_size: int = 512
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    parallel: int = 1
    chat_template_file: str | Path | None = None
    numa: str = "auto"
    simulate_nodes: int | None = None
    override_tensor: Sequence[str] = ()
    cpu_moe: bool = False
    n_cpu_moe: int = 0

    def __post_init__(self) -> None:
        for name in ("threads", "threads_batch"):
            if getattr(self, name) == _AUTOMATIC:
                object.__setattr__(self, name, None)
        for name, bounds in _LOAD_BOUNDS.items():
            value = getattr(self, name)
            if value is not None or name not in _OPTIONAL:
                bounds.check(name, value)
        for name in ("cache_type_k", "cache_type_v"):
            check_choice(name, getattr(self, name), CACHE_TYPES)
        check_choice("numa", self.numa, NUMA_MODES)
        if isinstance(self.override_tensor, str):
            object.__setattr__(self, "override_tensor", (self.override_tensor,))
        if not isinstance(self.cpu_range, str | None):
            raise wrong("cpu_range", self.cpu_range, "ranges of cpu numbers such as 0-15,32-47")
        if not isinstance(self.chat_template_file, str | Path | None):
            raise wrong("chat_template_file", self.chat_template_file, "a path")

    @property
    def numa_mode(self) -> str:
        """`numa` in our own words."""
        return NUMA_SYNONYMS.get(self.numa, self.numa)

    def thread_plan(self) -> _core.ThreadPlan:
        """Nodes in use and the workers on them.

        Raises:
            RequestError: The counts or the CPUs can't be had.
        """
        return _core.ThreadPlan(
            threads=self.threads,
            threads_batch=self.threads_batch,
            cpu_range=self.cpu_range,
            simulate_nodes=1 if self.numa == "off" else self.simulate_nodes,
        )

    def rules(self, n_nodes: int) -> tuple[Rule, ...]:
        """The `-ot` rules, then those of `cpu_moe` and `n_cpu_moe`.

        Raises:
            RequestError: A rule is malformed or names no buffer.
        """
        rules = parse_rules(self.override_tensor, _core.buffers(n_nodes))
        if self.cpu_moe:
            rules += cpu_moe_rules()
        return rules + n_cpu_moe_rules(self.n_cpu_moe)

    def limits(self, plan: Plan) -> Limits:
        """The sizes that these options give a model.

        Raises:
            RequestError: A number is out of range.
        """
        own = plan.config.context_length
        n_ctx = min(DEFAULT_CTX_SIZE, own) if self.ctx_size is None else self.ctx_size or own
        _N_CTX_BOUNDS.check("ctx_size", n_ctx)  # the model's own may be anything
        n_ubatch = min(self.ubatch_size, n_ctx * self.parallel)
        return Limits(n_ctx, self.parallel, n_ubatch, self.cache_type_k, self.cache_type_v)


def read_options(options: Mapping[str, Any]) -> LoadOptions:
    """The options of a load.

    Raises:
        RequestError: One is not known or has a value that can't be used.
    """
    known = [field.name for field in fields(LoadOptions)]
    unknown = sorted(options.keys() - set(known))
    if unknown:
        raise RequestError(f"unknown option {unknown[0]}; known: {', '.join(known)}")
    return LoadOptions(**options)


def read_template(path: str | Path | None) -> str | None:
    """The text of a chat template's file, None for none.

    Raises:
        RequestError: It can't be read.
    """
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
    except UnicodeError:
        reason = "not utf-8 text"
    raise RequestError(f"chat-template-file {path}: {reason}, expected a file with a template")
