"""Token ids from outside, checked: whole numbers below the width of the vocabulary.

Knows no tokenizer and no model. Called wherever ids enter: `tokenizer`, `prompt`, `sequence` and
`engine`.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import index

from numamirror.errors import RequestError


def checked_ids(ids: Iterable[object], n_vocab: int, name: str = "ids") -> list[int]:
    """Token ids as a list; numpy's whole numbers count as such, truth values and texts do not.

    Args:
        ids: What may be token ids.
        n_vocab: How many tokens there are.
        name: What messages call them.

    Raises:
        RequestError: They are no list, or one is no token id; the message says which.
    """
    if isinstance(ids, str | bytes) or not hasattr(ids, "__iter__"):
        raise RequestError(f"{name} is {ids!r:.60}, expected a list of token ids")
    return [checked_id(token, n_vocab, f"{name}[{nth}]") for nth, token in enumerate(ids)]


def checked_id(token: object, n_vocab: int, name: str = "token") -> int:
    """One token id.

    Raises:
        RequestError: It is none.
    """
    try:
        number = None if isinstance(token, bool) else index(token)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None:
        raise RequestError(f"{name} is {token!r:.60}, expected a token id")
    if not 0 <= number < n_vocab:
        raise RequestError(f"{name} is {number}, expected 0 to {n_vocab - 1}")
    return number
