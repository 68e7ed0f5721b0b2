"""`numamirror topology`: print what is known of this machine.

Knows how to lay the facts out; the engine reads them. Called by `numamirror.cli.main`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from numamirror import _core, report
from numamirror.cli.parsing import Arguments

_HEADINGS = ("node", "cores", "cpus", "memory", "free", "distances")


def run(arguments: Arguments) -> int:
    """Print the topology; returns the exit code."""
    known: dict[str, Any] = dict(_core.topology())
    known["isas"] = [{"name": name, "detected": detected} for name, detected in _core.isas()]
    known["isa"] = _core.isa()
    if arguments.own.json:
        json.dump(known, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        sys.stdout.write("\n".join(lines(known)) + "\n")
    return 0


def lines(known: Mapping[str, Any]) -> list[str]:
    """The facts for a person: a row a node, then what concerns the whole machine."""
    table = [_HEADINGS, *(_node_row(node, known["cores"]) for node in known["nodes"])]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    rows = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]
    available = known["available_bytes"]
    detected = [isa["name"] for isa in known["isas"] if isa["detected"]]
    return [
        *rows,
        "",
        f"cpus allowed      {ranges(known['allowed_cpus'])}",
        f"memory available  {'unknown' if available is None else report.gib(available)}",
        f"instruction sets  {', '.join(detected)}; in use: {known['isa']}",
    ]


def _node_row(node: Mapping[str, Any], cores: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    distances = ", ".join(f"{distance} to {other}" for other, distance in node["distances"])
    return (
        str(node["id"]),
        str(sum(core["node"] == node["id"] for core in cores)),
        ranges(node["cpus"]) or "none",
        report.gib(node["total_bytes"]),
        report.gib(node["free_bytes"]),
        distances or "unknown",
    )


def ranges(numbers: Sequence[int]) -> str:
    """Whole numbers as the kernel lists CPUs: `0-3,8`."""
    pieces: list[list[int]] = []
    for value in sorted(set(numbers)):
        if pieces and value == pieces[-1][-1] + 1:
            pieces[-1].append(value)
        else:
            pieces.append([value])
    return ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in pieces)
