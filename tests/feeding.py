"""Ways to feed token sequences to a model, batch by batch.

Holds builders of batches and the loop that runs them through `Model.forward`. Knows no model's
numbers. Called by the invariance and architecture tests.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Item: TypeAlias = tuple[int, int, int, bool]
"""(sequence id, position, token, wants logits), as `Model.forward` takes them."""


class Forward(Protocol):
    """The part of `numamirror.Model` that is used here."""

    def forward(self, batch: list[Item]) -> NDArray[np.float32]:
        """Logits of the wanted items in batch order, f32[n_wanted, n_vocab]."""
        ...


def random_ids(n_vocab: int, n_tokens: int, seed: int = 1) -> list[int]:
    """Random token ids, fixed by the seed."""
    ids: list[int] = np.random.default_rng(seed).integers(0, n_vocab, n_tokens).tolist()
    return ids


def sequence(sequence_id: int, ids: Sequence[int], wanted_every: int = 1) -> list[Item]:
    """One sequence from position 0.

    Args:
        sequence_id: Its id.
        ids: Its tokens.
        wanted_every: Ask for the logits of each n-th token, the last one included.
    """
    last = len(ids) - 1
    return [
        (sequence_id, position, token, (last - position) % wanted_every == 0)
        for position, token in enumerate(ids)
    ]


def dealt(sequences: Sequence[Sequence[int]], first_id: int = 0) -> list[Item]:
    """Several sequences token by token in turn, as long as each lasts; all logits wanted."""
    return [
        (first_id + index, position, ids[position], True)
        for position in range(max(map(len, sequences)))
        for index, ids in enumerate(sequences)
        if position < len(ids)
    ]


def forward(
    model: Forward, items: Sequence[Item], batch_tokens: int
) -> dict[int, NDArray[np.float32]]:
    """Feed items in batches of a size and collect the wanted logits of each sequence.

    Args:
        model: A loaded model in which the items' sequences start here or go on.
        items: What to feed, in order.
        batch_tokens: Items a call; the last call may have fewer.

    Returns:
        f32[n_wanted, n_vocab] by sequence id.
    """
    rows: defaultdict[int, list[NDArray[np.float32]]] = defaultdict(list)
    for start in range(0, len(items), batch_tokens):
        batch = list(items[start : start + batch_tokens])
        wanted = [item[0] for item in batch if item[3]]
        for sequence_id, row in zip(wanted, model.forward(batch), strict=True):
            rows[sequence_id].append(row)
    return {sequence_id: np.stack(found) for sequence_id, found in rows.items()}
