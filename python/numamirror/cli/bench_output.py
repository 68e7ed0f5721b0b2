"""The formats of `numamirror bench`: llama-bench's Markdown table, CSV, JSON and JSON lines.

Knows the columns; knows nothing of how they were measured. Used by `numamirror.cli.bench`. Field
names are llama-bench's where it has them, so that scripts that read its output read ours.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from numamirror import report


@dataclass(frozen=True)
class Row:
    """One measurement: times in ns, rates in tokens a second, sizes in bytes."""

    model_filename: str
    model_type: str
    model_size: int
    model_n_params: int
    isa: str
    pages: str
    n_threads: int
    n_ubatch: int
    type_k: str
    type_v: str
    n_prompt: int
    n_gen: int
    test: str
    test_time: str
    avg_ns: int
    stddev_ns: int
    avg_ts: float
    stddev_ts: float
    samples_ns: list[int]
    samples_ts: list[float]


class Writer(Protocol):
    """Writes rows to stdout as they come."""

    def begin(self) -> None:
        """Write what stands before the first row."""

    def row(self, row: Row) -> None:
        """Write one row."""

    def end(self) -> None:
        """Write what stands after the last row."""


def writer(format_name: str) -> Writer:
    """The writer of a format: `md`, `csv`, `json` or `jsonl`."""
    writers: dict[str, Callable[[], Writer]] = {
        "md": _Markdown,
        "csv": _Csv,
        "json": _Json,
        "jsonl": _JsonLines,
    }
    return writers[format_name]()


class _Markdown:
    # (heading, width, is_right), widths as llama-bench has them
    _COLUMNS = (
        ("model", 30, False),
        ("size", 10, True),
        ("params", 10, True),
        ("backend", 10, False),
        ("threads", 7, True),
        ("isa", 10, False),
        ("pages", 8, False),
        ("test", 15, True),
        ("t/s", 20, True),
    )

    def begin(self) -> None:
        self._write([heading for heading, _, _ in self._COLUMNS])
        rules = ["-" * (w - 1) + (":" if right else "-") for _, w, right in self._COLUMNS]
        self._write(rules)

    def row(self, row: Row) -> None:
        self._write(
            [
                row.model_type,
                report.gib(row.model_size),
                _params(row.model_n_params),
                "CPU",
                str(row.n_threads),
                row.isa,
                row.pages,
                row.test,
                f"{row.avg_ts:.2f} ± {row.stddev_ts:.2f}",
            ]
        )

    def end(self) -> None:
        pass

    def _write(self, cells: list[str]) -> None:
        padded = [
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, (_, width, is_right) in zip(cells, self._COLUMNS, strict=True)
        ]
        sys.stdout.write("| " + " | ".join(padded) + " |\n")
        sys.stdout.flush()


class _Csv:
    # the samples are lists, which CSV has no place for
    _FIELDS = tuple(f.name for f in dataclasses.fields(Row) if not f.name.startswith("samples_"))

    def begin(self) -> None:
        csv.writer(sys.stdout, lineterminator="\n").writerow(self._FIELDS)

    def row(self, row: Row) -> None:
        cells = [getattr(row, name) for name in self._FIELDS]
        csv.writer(sys.stdout, lineterminator="\n").writerow(cells)
        sys.stdout.flush()

    def end(self) -> None:
        pass


class _Json:
    def __init__(self) -> None:
        self._rows: list[dict[str, object]] = []

    def begin(self) -> None:
        pass

    def row(self, row: Row) -> None:
        self._rows.append(dataclasses.asdict(row))

    def end(self) -> None:
        json.dump(self._rows, sys.stdout, indent=2)
        sys.stdout.write("\n")


class _JsonLines:
    def begin(self) -> None:
        pass

    def row(self, row: Row) -> None:
        sys.stdout.write(json.dumps(dataclasses.asdict(row)) + "\n")
        sys.stdout.flush()

    def end(self) -> None:
        pass


def _params(n_params: int) -> str:
    return f"{n_params / 1e9:.2f} B" if n_params >= 1e9 else f"{n_params / 1e6:.2f} M"
