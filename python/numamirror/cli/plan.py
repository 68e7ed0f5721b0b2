"""`numamirror plan`: print stages 1 to 4 for a model, loading nothing.

Knows the stages' names and that each value describes itself; knows nothing of what is in them.
Called by `numamirror.cli.main`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

from numamirror.cli.json_output import plain
from numamirror.cli.model_source import model_path
from numamirror.cli.parsing import Arguments
from numamirror.engine import prepare
from numamirror.gguf_file import ModelFile, open_model
from numamirror.placement import MemoryNeeds, Placement
from numamirror.plan import Plan, make_plan
from numamirror.program import Program


def run(arguments: Arguments) -> int:
    """Print the stages; returns the exit code."""
    shown: str | None = arguments.own.show
    stages = {}
    for name, value in _stages(arguments):
        if shown in (None, name):
            stages[name] = value
        if name == shown:
            break
    # printed only once all were made: a model that can't be planned leaves stdout empty
    if arguments.own.json:
        json.dump(plain(stages), sys.stdout, indent=2, ensure_ascii=False)
        sys.stdout.write("\n")
        return 0
    for name, value in stages.items():
        heading = f"== {name} ==\n" if shown is None else ""
        sys.stdout.write(f"{heading}{value.describe()}\n")
    return 0


def _stages(
    arguments: Arguments,
) -> Iterator[tuple[str, ModelFile | Plan | Placement | Program | MemoryNeeds]]:
    """The stages' names and values in order, each made only when it is asked for."""
    model_file = open_model(model_path(arguments))
    yield "file", model_file
    yield "plan", make_plan(model_file)
    prepared = prepare(model_file, **arguments.load)
    yield "placement", prepared.placement
    yield "program", prepared.program
    yield "memory", prepared.needs
