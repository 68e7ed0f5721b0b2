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
from numamirror.errors import (
    ModelFileError,
    NumaMirrorError,
    RequestError,
    UnsupportedError,
)
from numamirror.gguf_file import ModelFile, open_model
from numamirror.load_options import LoadOptions, read_options, read_template
from numamirror.placement import MemoryNeeds, Placement, check_fits, place
from numamirror.plan import Plan, make_plan
from numamirror.program import Program
from numamirror.sequence import CachedSequence, check_room
from numamirror.tokenizer import Tokenizer

_GIB = 1 << 30
_HUGE_PAGE_BYTES = 2 << 20
_FIRST_OWN_SEQUENCE = 1 << 31

LoadProgress = Callable[[int, int], None]
"""Receives the file bytes done and the bytes in all."""


@dataclass(frozen=True)
class Prepared:
    """Stages 2 to 4 of a model file: everything that is known before a weight is read."""

    plan: Plan
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
    plan = make_plan(model_file)
    limits = read_options(options).limits(plan)
    program = compile_program(plan)
    return Prepared(plan, place(plan), limits, program, memory_needs(program, limits))


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
    started = time.perf_counter()
    model_file = open_model(path)
    model = Model(prepare(model_file, **options), read_options(options), progress)
    model.load_seconds = time.perf_counter() - started
    return model


class Model:
    """A model in memory; made by `load`.

    Holds the values of all stages, the tokenizer and the engine. One pass runs at a time; give it
    back with `close`, or use it in a `with`.

    Args:
        prepared: Stages 2 to 4.
        options: How to load it.
        progress: Called while weights are read.
    """

    def __init__(
        self, prepared: Prepared, options: LoadOptions, progress: LoadProgress | None = None
    ) -> None:
        self.options = options
        self.plan = prepared.plan
        self.model_file = prepared.plan.model_file
        self.placement = prepared.placement
        self.limits = prepared.limits
        self.program = prepared.program
        self.needs = prepared.needs
        self.load_seconds = 0.0
        self._read_tokenizer()
        self.model_file.require_complete()
        check_fits(self.needs, _core.topology()["available_bytes"])
        self._engine: _core.Engine | None = self._load(progress)
        self._sequence_ids = itertools.count(_FIRST_OWN_SEQUENCE)

    def _read_tokenizer(self) -> None:
        """A file whose tokenizer can't be used still runs; text is refused with the reason."""
        metadata = self.model_file.metadata
        self.tokenizer: Tokenizer | None = None
        self._no_text: NumaMirrorError = UnsupportedError(
            "the model has no tokenizer: text can't be read or written",
            hint="bench, plan and Model.logits work with token ids",
        )
        self._chat_template: ChatTemplate | None = None
        self._no_template: NumaMirrorError | None = None
        try:
            self.tokenizer = self._checked_tokenizer(Tokenizer.from_metadata(metadata))
        except NumaMirrorError as error:
            self._no_text = error
        try:
            source = read_template(self.options.chat_template_file)
            self._chat_template = ChatTemplate.from_metadata(metadata, source)
        except ModelFileError as error:
            self._no_template = error

    def _checked_tokenizer(self, tokenizer: Tokenizer | None) -> Tokenizer | None:
        if tokenizer is not None and tokenizer.n_tokens > self.n_vocab:
            raise ModelFileError(
                f"tokenizer.ggml.tokens: {tokenizer.n_tokens} tokens for an embedding of "
                f"{self.n_vocab} rows"
            )
        return tokenizer

    def _load(self, progress: LoadProgress | None) -> _core.Engine:
        records = self.model_file.tensors
        total = self.plan.weight_bytes
        return _core.Engine(
            self.program.to_json(),
            [(str(records[t.name].path), records[t.name].offset) for t in self.program.tensors],
            threads=self.options.threads,
            threads_batch=self.options.threads_batch,
            cpu_range=self.options.cpu_range,
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
    def chat_template(self) -> ChatTemplate | None:
        """The chat template; None when there is none.

        Raises:
            ModelFileError: There is one that can't be used.
        """
        if self._no_template is not None:
            raise self._no_template
        return self._chat_template

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
            UnsupportedError: The model has no usable tokenizer.
        """
        return self.require_tokenizer().encode(text, add_special, parse_special)

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of token ids.

        Raises:
            UnsupportedError: The model has no usable tokenizer.
        """
        return self.require_tokenizer().decode(ids)

    def require_tokenizer(self) -> Tokenizer:
        """The tokenizer.

        Raises:
            UnsupportedError: There is none, with the reason.
        """
        if self.tokenizer is None:
            raise self._no_text
        return self.tokenizer

    def forward(self, batch: Sequence[tuple[int, int, int, bool]]) -> NDArray[np.float32]:
        """One pass over (sequence, position, token, wants logits), in any order of sequences.

        Positions of a sequence must be consecutive and start no later than its end; what it held
        from there on is replaced. Numbers from 2^31 on are the model's own.

        Returns:
            float32[n_wanted, n_vocab], in the order in which the batch asked.
        """
        logits = np.empty((sum(item[3] for item in batch), self.n_vocab), np.float32)
        self.engine.logits(list(batch), logits)
        return logits

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Logits after each token of a fresh sequence.

        Returns:
            float32[n_tokens, n_vocab].

        Raises:
            ContextFullError: More tokens than the context holds.
        """
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
        resident_bytes, huge_bytes = self.engine.weight_pages()
        if huge_bytes == 0:
            return "4K"
        # the last part of a mapping is rarely a whole huge page
        return "2M" if resident_bytes - huge_bytes < _HUGE_PAGE_BYTES else "2M+4K"

    @property
    def n_threads(self) -> int:
        """Workers when one token is computed."""
        return self.engine.n_threads

    @property
    def n_threads_batch(self) -> int:
        """Workers when more are."""
        return self.engine.n_threads_batch

    def describe(self) -> str:
        """What runs on what: instruction set, workers and their CPUs, pages, memory."""
        cpus = ",".join(str(cpu) for cpu, _ in self.engine.pins)
        needs = self.needs
        return (
            f"{self.isa}, {self.n_threads} threads ({self.n_threads_batch} for prompts) pinned to "
            f"cpus {cpus}, {self.pages} pages, weights {needs.weights_bytes / _GIB:.2f} GiB, "
            f"cache {needs.cache_bytes / _GIB:.2f} GiB, "
            f"activations {needs.activation_bytes / _GIB:.2f} GiB"
        )

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
