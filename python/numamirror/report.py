"""What a person at the terminal reads on stderr: sizes, rates, progress, errors.

Holds wording and layout; computes nothing and knows no command. Used by `numamirror.cli`. Colours
vanish where stderr is no terminal or `NO_COLOR` is set.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from numamirror.units import GIB

_QUIET_SECONDS = 2.0  # before progress shows; also between lines where there is no bar
_FACT_NAME_WIDTH = 9

ProgressCallback = Callable[[int, int], None]  # done, total


def gib(n_bytes: int) -> str:
    """A size in GiB, such as `0.09 GiB`."""
    return f"{n_bytes / GIB:.2f} GiB"


def gbps(n_bytes: int, seconds: float) -> str:
    """A rate in GB/s (10^9 bytes a second), such as `1.2 GB/s`."""
    return f"{n_bytes / 1e9 / max(seconds, 1e-9):.1f} GB/s"


def one_line(text: str) -> str:
    """`text` with everything that is not printable escaped, so that it stays one line.

    Names out of a model file end up in messages: none may move the cursor of a terminal.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def line(text: str) -> None:
    """Print a text as it is."""
    _console().print(Text(text))


def error(message: str, hint: str | None = None) -> None:
    """Print an error and what can be done about it."""
    _labelled("error", "bold red", message)
    if hint is not None:
        _labelled("hint", "bold cyan", hint)


def note(message: str) -> None:
    """Print something worth knowing."""
    _labelled("note", "bold", message)


def facts(rows: Sequence[tuple[str, str]]) -> None:
    """Print names and what they are, one a line, aligned."""
    for name, value in rows:
        text = Text.assemble((name.ljust(_FACT_NAME_WIDTH), "dim"), one_line(value))
        _console().print(text)


@dataclass(frozen=True)
class Timings:
    """Counts and times of one generation."""

    prompt_tokens: int
    prompt_ms: float
    generation_runs: int
    generation_ms: float
    total_ms: float


def timing_lines(timings: Timings) -> list[str]:
    """The closing lines of a generation, in the words that scripts read from llama.cpp.

    Source: llama_perf_context_print in llama.cpp's src/llama-context.cpp.
    """
    n_total = timings.prompt_tokens + timings.generation_runs
    prompt = _per_token(timings.prompt_ms, timings.prompt_tokens)
    generation = _per_token(timings.generation_ms, timings.generation_runs)
    prompt_count = f"{timings.prompt_ms:10.2f} ms / {timings.prompt_tokens:5d} tokens"
    generation_count = f"{timings.generation_ms:10.2f} ms / {timings.generation_runs:5d} runs  "
    return [
        f"prompt eval time = {prompt_count} {prompt}",
        f"       eval time = {generation_count} {generation}",
        f"      total time = {timings.total_ms:10.2f} ms / {n_total:5d} tokens",
    ]


def _per_token(elapsed_ms: float, n_tokens: int) -> str:
    ms = elapsed_ms / max(n_tokens, 1)
    rate = 1e3 * n_tokens / elapsed_ms if elapsed_ms > 0 else 0.0
    return f"({ms:8.2f} ms per token, {rate:8.2f} tokens per second)"


@contextmanager
def progress(
    what: str, measure: Callable[[int, int, float], str], is_shown: bool = True
) -> Iterator[ProgressCallback]:
    """Show how far a piece of work is, once it has taken two seconds.

    A terminal gets a bar that goes away at the end; elsewhere a line is printed every two seconds.

    Args:
        what: Name of the work.
        measure: Turns (done, total, seconds so far) into words.
        is_shown: False to show nothing at all.

    Yields:
        The function to call with (done, total) as the work goes on.
    """
    shown = _ShownProgress(what, measure)
    try:
        yield shown.update if is_shown else _ignore
    finally:
        shown.hide()


class _ShownProgress:
    """How far one piece of work is: a bar on a terminal, lines elsewhere."""

    def __init__(self, what: str, measure: Callable[[int, int, float], str]) -> None:
        self._what = what
        self._measure = measure
        self._console = _console()
        self._start = self._last = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[measure]}"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task(what, measure="", total=None)

    def update(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._start < _QUIET_SECONDS:
            return
        words = self._measure(done, total, now - self._start)
        if self._console.is_terminal and done >= total:
            self.hide()  # the work goes on to something else, such as text on the same screen
        elif self._console.is_terminal:
            self._bar.start()
            self._bar.update(self._task, completed=done, total=total, measure=words)
        elif now - self._last >= _QUIET_SECONDS:
            self._last = now
            line(f"{self._what}: {words}")

    def hide(self) -> None:
        if self._bar.live.is_started:  # stopping a bar that never showed would print an empty line
            self._bar.stop()


def _ignore(_done: int, _total: int) -> None:
    pass


def byte_progress(done: int, total: int, seconds: float) -> str:
    """Words for work that is counted in bytes."""
    return f"{done / GIB:.2f} of {gib(total)}, {gbps(done, seconds)}"


def token_progress(done: int, total: int, seconds: float) -> str:
    """Words for work that is counted in tokens."""
    return f"{done} of {total} tokens, {done / max(seconds, 1e-9):.1f} tokens/s"


def _labelled(label: str, style: str, message: str) -> None:
    _console().print(Text.assemble((f"{label}:", style), " ", one_line(message)))


def _console() -> Console:
    # made anew each time: stderr may have been replaced since
    return Console(stderr=True, soft_wrap=True, highlight=False, emoji=False, markup=False)
