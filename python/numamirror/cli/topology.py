"""`numamirror topology`: print what is known of this machine.

Knows how to lay facts out; what they are, the engine says. Called by `numamirror.cli.main`.
"""

from __future__ import annotations

import json
import sys

from numamirror import _core
from numamirror.cli.json_output import plain
from numamirror.cli.parsing import Arguments

_SYSFS_ROOT = "/sys"


def run(arguments: Arguments) -> int:
    """Print the topology; returns the exit code."""
    known: dict[str, object] = dict(_core.topology(_SYSFS_ROOT))
    known["isas"] = [plain(isa) for isa in _core.isas()]
    if arguments.own.json:
        json.dump(plain(known), sys.stdout, indent=2)
        sys.stdout.write("\n")
        return 0
    for line in lines(known):
        sys.stdout.write(line + "\n")
    return 0


def lines(known: object, indent: str = "") -> list[str]:
    """Nested facts as indented lines, runs of whole numbers as ranges."""
    if isinstance(known, dict):
        found = []
        for name, value in known.items():
            label = indent + str(name).replace("_", " ")
            if _is_nested(value):
                found += [label, *lines(value, indent + "  ")]
            else:
                found.append(f"{label}: {_words(value)}")
        return found
    if isinstance(known, list | tuple):
        found = []
        for value in known:
            first, *rest = lines(value, indent + "  ") or [""]
            found += [f"{indent}- {first.strip()}", *rest]
        return found
    return [indent + _words(known)]


def _is_nested(value: object) -> bool:
    if isinstance(value, list | tuple):
        return any(isinstance(element, dict | list | tuple) for element in value)
    return isinstance(value, dict)


def _words(value: object) -> str:
    if isinstance(value, list | tuple):
        if value and all(isinstance(element, int) for element in value):
            return ranges(list(value))
        return ", ".join(map(str, value)) or "none"
    return "unknown" if value is None else str(value)


def ranges(numbers: list[int]) -> str:
    """Whole numbers as the kernel lists CPUs: `0-3,8`."""
    pieces: list[list[int]] = []
    for value in sorted(set(numbers)):
        if pieces and value == pieces[-1][-1] + 1:
            pieces[-1].append(value)
        else:
            pieces.append([value])
    return ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in pieces)
