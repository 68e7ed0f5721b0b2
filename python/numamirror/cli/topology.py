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

_HEADINGS = ("node", "cores", "cpus", "memory", "free", "distances", "huge pages free")
_BALANCING = {0: "off", 1: "on"}


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
    """The facts for a person: a row a node, then what concerns the whole machine.

    Args:
        known: What `_core.topology` gives, with `isas` and `isa`.
    """
    table = [_HEADINGS, *(_node_row(node, known) for node in known["nodes"])]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    rows = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]
    available, balancing = known["available_bytes"], known["numa_balancing"]
    detected = [isa["name"] for isa in known["isas"] if isa["detected"]]
    facts = {
        "cpus allowed": ranges(known["allowed_cpus"]),
        "cpus a core": ranges([len(core["cpus"]) for core in known["cores"]]),
        "memory available": "unknown" if available is None else report.gib(available),
        "huge pages": _pools(known, None),
        "transparent huge pages": known["transparent_huge_pages"] or "not there",
        "numa balancing": "not there" if balancing is None else _BALANCING.get(balancing, "tiers"),
        "instruction sets": f"{', '.join(detected)}; in use: {known['isa']}",
    }
    if any(pool["node"] is not None for pool in known["page_pools"]):
        del facts["huge pages"]  # each node's row has its own
    width = max(map(len, facts))
    return [*rows, "", *(f"{name:<{width}}  {fact}" for name, fact in facts.items())]


def _node_row(node: Mapping[str, Any], known: Mapping[str, Any]) -> tuple[str, ...]:
    # in the order of the rows: the kernel tells the distance to each node there is
    distances = " ".join(str(distance) for _, distance in node["distances"])
    return (
        str(node["id"]),
        str(sum(core["node"] == node["id"] for core in known["cores"])),
        ranges(node["cpus"]) or "none",
        report.gib(node["total_bytes"]),
        report.gib(node["free_bytes"]),
        distances or "unknown",
        _pools(known, node["id"]),
    )


def _pools(known: Mapping[str, Any], node: int | None) -> str:
    """Pools of a node (None: of the machine) that have pages, such as `3 of 8 of 1 GiB`."""
    pools = [pool for pool in known["page_pools"] if pool["node"] == node and pool["n_pages"]]
    words = [
        f"{pool['n_free_pages']} of {pool['n_pages']} of {_page_size(pool['page_bytes'])}"
        for pool in pools
    ]
    return ", ".join(words) or "none"


def _page_size(n_bytes: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if n_bytes % size == 0:
            return f"{n_bytes // size} {unit}"
    return f"{n_bytes >> 10} KiB"


def ranges(numbers: Sequence[int]) -> str:
    """Whole numbers as the kernel lists CPUs: `0-3,8`."""
    pieces: list[list[int]] = []
    for value in sorted(set(numbers)):
        if pieces and value == pieces[-1][-1] + 1:
            pieces[-1].append(value)
        else:
            pieces.append([value])
    return ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in pieces)
