"""`load` and `Model`: the stages put together, and what a loaded model can do.

Holds the parts of a loaded model and feeds passes to the engine, in chunks of `ubatch_size`. Knows
no sampling and prints nothing. Called by `numamirror.generate`, the commands and users.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from numamirror import _core
from numamirror.chat_template import ChatTemplate
from numamirror.compile import Limits, compile_program, memory_needs
from numamirror.errors import RequestError
from numamirror.gguf_file import ModelFile, open_model
from numamirror.load_options import LoadOptions, read_options, read_template
from numamirror.placement import MemoryNeeds, Placement, check_fits, place
from numamirror.plan import Plan, make_plan
from numamirror.program import Program
from numamirror.sequence import CachedSequence, check_room
from numamirror.text import TextSide
from numamirror.token_ids import checked_ids
from numamirror.tokenizer import Tokenizer
from numamirror.units import GIB

_FIRST_OWN_SEQUENCE = 1 << 31

LoadProgress = Callable[[int, int], None]
"""Receives the file bytes done and the bytes in all."""


@dataclass(frozen=True)
class Prepared:
    """Stages 2 to 4 of a model file: everything that is known before a weight is read.

    Args:
        options: How to load it.
        text: Tokenizer and chat template.
        plan: Stage 2.
        threads: Nodes in use and the workers on them.
        placement: Stage 3.
        limits: Sizes of context and passes.
        program: Stage 4.
        needs: Memory that it takes.
    """

    options: LoadOptions
    text: TextSide
    plan: Plan
    threads: _core.ThreadPlan
    placement: Placement
    limits: Limits
    program: Program
    needs: MemoryNeeds


def prepare(model_file: ModelFile, **options: Any) -> Prepared:  # noqa: ANN401
    """Plans, places and compiles a model; header-only files too.

    Args:
        model_file: Stage 1's value.
        **options: The fields of `LoadOptions`.

    Raises:
        NumaMirrorError: The file or an option does not allow it.
    """
    read = read_options(options)
    template_source = read_template(read.chat_template_file)
    plan = make_plan(model_file)
    threads = read.thread_plan()
    placement = place(plan, read.numa_mode, read.rules(len(threads.node_threads)))
    limits = read.limits(plan)
    program = compile_program(plan)
    return Prepared(
        options=read,
        text=TextSide(model_file.metadata, plan.config.vocab_size, template_source),
        plan=plan,
        threads=threads,
        placement=placement,
        limits=limits,
        program=program,
        needs=memory_needs(program, placement.buffers, threads, limits),
    )


def load(path: str | Path, *, progress: LoadProgress | None = None, **options: Any) -> Model:  # noqa: ANN401
    """Opens, plans, places, compiles and loads a model.

    Args:
        path: A GGUF file; of a split model any shard.
        progress: Called about twenty times a second while weights are read.
        **options: The fields of `LoadOptions`.

    Raises:
        NumaMirrorError: The file, the machine or an option does not allow it; before weights are
            read, but for what only they can tell.
    """
    return Model(prepare(open_model(path), **options), progress)


class Model:
    """A model in memory; made by `load`, or of what `prepare` gives.

    Holds the values of all stages, the text side and the engine. One pass runs at a time; give it
    back with `close`, or use it in a `with`.

    Args:
        prepared: Stages 2 to 4.
        progress: Called while weights are read.

    Raises:
        NumaMirrorError: The file is header-only, memory does not suffice, or a weight is bad.

    Attributes:
        text: Tokenizer and chat template.
        load_seconds: How long it took to read the weights.
    """

    def __init__(self, prepared: Prepared, progress: LoadProgress | None = None) -> None:
        self.options = prepared.options
        self.text = prepared.text
        self.plan = prepared.plan
        self.model_file = prepared.plan.model_file
        self.threads = prepared.threads
        self.placement = prepared.placement
        self.limits = prepared.limits
        self.program = prepared.program
        self.needs = prepared.needs
        self.model_file.require_complete()
        check_fits(self.needs, _core.topology()["available_bytes"])
        started = time.perf_counter()
        self._engine: _core.Engine | None = self._load(progress)
        self.load_seconds = time.perf_counter() - started
        self._sequence_ids = itertools.count(_FIRST_OWN_SEQUENCE)

    def _load(self, progress: LoadProgress | None) -> _core.Engine:
        records = self.model_file.tensors
        total = self.placement.read_bytes
        return _core.Engine(
            self.program.to_json(),
            [(str(records[t.name].path), records[t.name].offset) for t in self.program.tensors],
            self.placement.buffers,
            self.threads,
            n_ubatch=self.limits.n_ubatch,
            n_ctx=self.limits.n_ctx,
            n_parallel=self.limits.n_parallel,
            cache_type_k=self.limits.cache_type_k,
            cache_type_v=self.limits.cache_type_v,
            progress=None if progress is None else lambda done: progress(done, total),
        )

    @property
    def engine(self) -> _core.Engine:
        """The engine.

        Raises:
            RequestError: The model is closed.
        """
        if self._engine is None:
            raise RequestError("the model is closed")
        return self._engine

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer; None when there is none that can be used."""
        return self.text.tokenizer

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The chat template; None when there is none.

        Raises:
            ModelFileError: There is one that can't be used.
        """
        return self.text.chat_template

    @property
    def is_closed(self) -> bool:
        """Whether memory and threads were given back."""
        return self._engine is None

    @property
    def n_vocab(self) -> int:
        """Width of the logits."""
        return self.plan.config.vocab_size

    @property
    def n_ctx(self) -> int:
        """Longest sequence, in positions."""
        return self.limits.n_ctx

    def tokenize(
        self,
        text: str,
        add_special: bool = True,
        parse_special: bool = False,
    ) -> list[int]:
        """Token ids of a text.

        Args:
            text: Any text.
            add_special: Add BOS and EOS as the metadata asks.
            parse_special: Read control tokens in the text as what they are.

        Raises:
            RequestError: It is no text.
            NumaMirrorError: The model has no usable tokenizer.
        """
        return self.text.tokenize(text, add_special, parse_special)

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of token ids.

        Raises:
            RequestError: One is no token id.
            NumaMirrorError: The model has no usable tokenizer.
        """
        return self.text.detokenize(ids)

    def require_tokenizer(self) -> Tokenizer:
        """The tokenizer.

        Raises:
            NumaMirrorError: There is none, with the reason.
        """
        return self.text.require_tokenizer()

    def forward(self, batch: Sequence[tuple[int, int, int, bool]]) -> NDArray[np.float32]:
        """One pass over (sequence, position, token, wants logits), in any order of sequences.

        Positions of a sequence must be consecutive and start no later than its end; what it held
        from there on is replaced. Numbers from 2^31 on are the model's own.

        Returns:
            float32[n_wanted, n_vocab], in the order in which the batch asked.

        Raises:
            RequestError: A token is none, or a position out of order.
            ContextFullError: The cache has no room.
        """
        checked_ids([item[2] for item in batch], self.n_vocab, "token")
        logits = np.empty((sum(item[3] for item in batch), self.n_vocab), np.float32)
        self.engine.logits(list(batch), logits)
        return logits

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Logits after each token of a fresh sequence.

        Returns:
            float32[n_tokens, n_vocab].

        Raises:
            RequestError: One is no token id.
            ContextFullError: More tokens than the context holds.
        """
        ids = checked_ids(ids, self.n_vocab)
        check_room(0, len(ids), self.n_ctx)
        sequence = next(self._sequence_ids)
        out = np.empty((len(ids), self.n_vocab), np.float32)
        try:
            for start in range(0, len(ids), self.limits.n_ubatch):
                chunk = ids[start : start + self.limits.n_ubatch]
                rows = [(sequence, start + i, int(token), True) for i, token in enumerate(chunk)]
                self.engine.logits(rows, out[start : start + len(chunk)])
        finally:
            self.engine.remove(sequence)
        return out

    def new_sequence(self) -> CachedSequence:
        """An empty sequence in the cache."""
        return CachedSequence(self, next(self._sequence_ids))

    @property
    def isa(self) -> str:
        """The instruction set in use."""
        return self.engine.isa

    @property
    def pages(self) -> str:
        """What pages the weights lie in, read back from the kernel: `2M`, `4K` or both."""
        reports = self.engine.weight_pages()
        huge_bytes = sum(report[1] for report in reports)
        small_bytes = sum(report[0] for report in reports) - huge_bytes
        if huge_bytes == 0:
            return "4K"
        return "2M" if small_bytes == 0 else "2M+4K"

    @property
    def n_threads(self) -> int:
        """Workers when one token is computed."""
        return self.threads.n_threads

    @property
    def n_threads_batch(self) -> int:
        """Workers when more are."""
        return self.threads.n_threads_batch

    def describe(self) -> str:
        """What runs on what: a line for the engine, and one for each node in use."""
        kind, reason, bind_refused = self.engine.page_kind()
        lines = [
            f"{self.isa}, {self.n_threads} threads ({self.n_threads_batch} for prompts), {kind}"
            + (f" ({reason})" if reason else ""),
            f"memory {self.needs.describe()}",
        ]
        if bind_refused:
            lines.append(
                "memory could not be bound to nodes (a container needs --cap-add SYS_NICE): "
                "pages lie where their threads touched them first"
            )
        return "\n".join([*lines, *self._node_lines()])

    def _node_lines(self) -> list[str]:
        """Of each node: its workers' CPUs, its weights, and where its pages really are."""
        lines = []
        for node, (kernel_node, report) in enumerate(
            zip(self.threads.kernel_nodes, self.engine.weight_pages(), strict=True)
        ):
            cpus = ",".join(str(cpu) for cpu, index in self.threads.pins if index == node)
            name = "pretended" if kernel_node is None else f"kernel node {kernel_node}"
            total = sum(count for _, count in report[2])
            found = ", ".join(f"{100 * count / total:.0f} % on {at}" for at, count in report[2])
            lines.append(
                f"node {node} ({name}): cpus {cpus or 'none'}, "
                f"weights {self.needs.weights_bytes[node] / GIB:.2f} GiB, "
                f"cache {self.needs.cache_bytes[node] / GIB:.2f} GiB"
                + (f", pages {found}" if found else "")
            )
        return lines

    def close(self) -> None:
        """Gives memory and threads back; the model can't be used after."""
        self._engine = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
