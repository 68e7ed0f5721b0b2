"""Ends a streamed text where a stop string begins, also when it comes in pieces.

Text that may be the beginning of a stop string is held back until it is known. Knows no tokens.
Called by `generate`.
"""

from __future__ import annotations

from collections.abc import Collection

from numamirror.bounds import wrong
from numamirror.errors import RequestError


class StopStrings:
    """Looks for stop strings in a text that comes in pieces.

    Args:
        stops: The strings; one alone may stand for a list of one, None for an empty one.

    Raises:
        RequestError: One is empty or no string.

    Attributes:
        is_found: Whether one was found; what follows is dropped.
    """

    def __init__(self, stops: Collection[str] | str | None) -> None:
        if isinstance(stops, bytes) or not isinstance(stops, Collection | None):
            raise wrong("stop", stops, "a text or a list of texts")
        self._stops = [stops] if isinstance(stops, str) else list(stops or ())
        for stop in self._stops:
            if not isinstance(stop, str) or not stop:
                raise RequestError(f"stop string {stop!r:.60}: expected a text of one or more")
        self._held = ""
        self.is_found = False

    def push(self, text: str) -> str:
        """Takes a piece of text; returns what is certain to come before any stop string."""
        if self.is_found:
            return ""
        text = self._held + text
        starts = [start for stop in self._stops if (start := text.find(stop)) >= 0]
        if starts:
            self.is_found = True
            self._held = ""
            return text[: min(starts)]
        n_certain = len(text) - max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[n_certain:]
        return text[:n_certain]

    def flush(self) -> str:
        """What is held back, at the end."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that `stop` begins with."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
