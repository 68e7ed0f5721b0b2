"""Wording and layout of what goes to stderr."""

from __future__ import annotations

import pytest
from numamirror import report


def test_sizes_and_rates_have_their_units() -> None:
    assert report.gib(3 << 29) == "1.50 GiB"
    assert report.gbps(3_000_000_000, 2.0) == "1.5 GB/s"
    assert report.token_progress(5, 10, 2.0) == "5 of 10 tokens, 2.5 tokens/s"
    assert report.byte_progress(1 << 29, 1 << 30, 1.0) == "0.50 of 1.00 GiB, 0.5 GB/s"


def test_timing_lines_are_word_for_word_those_of_llama_cpp() -> None:
    timings = report.Timings(
        prompt_tokens=24,
        prompt_ms=925.78,
        generation_runs=31,
        generation_ms=4178.32,
        total_ms=5211.06,
    )
    assert report.timing_lines(timings) == [
        "prompt eval time =     925.78 ms /    24 tokens "
        "(   38.57 ms per token,    25.92 tokens per second)",
        "       eval time =    4178.32 ms /    31 runs   "
        "(  134.78 ms per token,     7.42 tokens per second)",
        "      total time =    5211.06 ms /    55 tokens",
    ]


def test_timing_lines_of_nothing_divide_by_nothing() -> None:
    lines = report.timing_lines(report.Timings(0, 0.0, 0, 0.0, 0.0))
    assert all("nan" not in line and "inf" not in line for line in lines)


def test_an_error_is_one_line_on_stderr_and_its_hint_another(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report.error("tensor a\nb\x1b[2J: " + "long " * 60, hint="do [bold]this[/bold]")
    captured = capsys.readouterr()
    assert captured.out == ""
    error, hint = captured.err.splitlines()
    assert error.startswith("error: tensor a\\nb\\x1b[2J: long long")
    assert hint == "hint: do [bold]this[/bold]"


def test_no_colour_where_no_terminal_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    report.note("thing")
    report.facts([("model", "m.gguf")])
    assert capsys.readouterr().err == "note: thing\nmodel    m.gguf\n"


def test_no_color_is_honoured_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    report.error("x")
    assert "\x1b[" in capsys.readouterr().err
    monkeypatch.setenv("NO_COLOR", "1")
    report.error("x")
    assert "\x1b[31m" not in capsys.readouterr().err


def test_progress_is_silent_for_short_work_and_speaks_for_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("numamirror.report.time.monotonic", lambda: clock[0])
    with report.progress("loading", report.byte_progress) as update:
        for seconds in (0.0, 1.9, 2.1, 2.2, 4.3):
            clock[0] = seconds
            update(int(seconds * 1e9), 8_000_000_000)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "loading: 1.96 of 7.45 GiB",
        "loading: 4.00 of 7.45 GiB",
    ]


def test_progress_can_be_kept_quiet(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("numamirror.report.time.monotonic", lambda: clock[0])
    with report.progress("loading", report.byte_progress, is_shown=False) as update:
        clock[0] = 9.0
        update(1, 2)
    assert capsys.readouterr().err == ""
