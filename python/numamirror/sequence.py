"""One sequence of a loaded model: fed in chunks, asked for the best next tokens.

Holds the sequence's number in the engine and nothing of what is in it. Chooses no token. Made by
`engine.Model`, driven by `numamirror.generate` and the commands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from numamirror import _core
from numamirror.compile import Limits
from numamirror.errors import ContextFullError
from numamirror.sampling import Candidates, SamplingSettings
from numamirror.token_ids import checked_ids

_OTHERS_HOLD_IT = "other sequences hold the cache: close one, or load with a larger parallel"


def check_room(n_past: int, n_new: int, n_ctx: int) -> None:
    """Refuses tokens that a context can't take.

    Raises:
        ContextFullError: More than `n_ctx` in all.
    """
    if n_past + n_new > n_ctx:
        raise ContextFullError(
            f"{n_past + n_new} tokens do not fit into a context of {n_ctx}",
            hint="raise --ctx-size, or shorten the prompt",
        )


class SequenceModel(Protocol):
    """What a sequence needs of its model; see `engine.Model`."""

    limits: Limits

    @property
    def engine(self) -> _core.Engine:
        """The engine, or an error once the model is closed."""

    @property
    def is_closed(self) -> bool:
        """Whether the engine is gone."""

    @property
    def n_vocab(self) -> int:
        """Width of the logits."""


class CachedSequence:
    """One sequence's place in the cache, fed token by token or in chunks.

    Args:
        model: The model.
        sequence_id: Its number in the engine.
    """

    def __init__(self, model: SequenceModel, sequence_id: int) -> None:
        self._model = model
        self._id = sequence_id

    @property
    def n_past(self) -> int:
        """Positions that it holds."""
        return self._model.engine.n_past(self._id)

    def extend(
        self, ids: Sequence[int], progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Feeds tokens; the logits after the last are then there for `candidates`.

        Args:
            ids: Tokens, at least one.
            progress: Receives tokens done and tokens in all after each chunk.

        Raises:
            RequestError: One is no token id; nothing is computed.
            ContextFullError: They do not fit into the context, of which nothing is computed then,
                or into what other sequences leave of the cache.
        """
        ids = checked_ids(ids, self._model.n_vocab)
        check_room(self.n_past, len(ids), self._model.limits.n_ctx)
        try:
            self._feed(ids, progress)
        except ContextFullError as error:  # there is room in the context, so others hold the cache
            raise ContextFullError(str(error), hint=_OTHERS_HOLD_IT) from error

    def _feed(self, ids: Sequence[int], progress: Callable[[int, int], None] | None) -> None:
        n_past, limits = self.n_past, self._model.limits
        for start in range(0, len(ids), limits.n_ubatch):
            chunk = ids[start : start + limits.n_ubatch]
            last = len(ids) - 1 - start
            self._model.engine.forward(
                [(self._id, n_past + start + i, token, i == last) for i, token in enumerate(chunk)]
            )
            if progress is not None:
                progress(start + len(chunk), len(ids))

    def candidates(self, settings: SamplingSettings, recent_ids: Sequence[int]) -> Candidates:
        """The best next tokens after penalties, as many as sampling can need.

        Args:
            settings: Sampling settings: `top_k` and the penalties are used here.
            recent_ids: Tokens that penalties apply to.
        """
        n_vocab = self._model.n_vocab
        n = 1 if settings.temperature <= 0 else settings.top_k if settings.top_k > 0 else n_vocab
        ids, logits = self._model.engine.best(
            self._id,
            n,
            [int(token) for token in recent_ids],
            (settings.repeat_penalty, settings.frequency_penalty, settings.presence_penalty),
        )
        return Candidates(np.frombuffer(ids, np.uint32), np.frombuffer(logits, np.float32))

    def close(self) -> None:
        """Frees its part of the cache; nothing is left to free once the model is closed."""
        if not self._model.is_closed:
            self._model.engine.remove(self._id)
