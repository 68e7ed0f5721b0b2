"""What a loaded model really takes: the packed weights once, or once a node when mirrored.

Each load runs in a process of its own, so that nothing else comes and goes meanwhile.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from numamirror import default_model

TOLERANCE_BYTES = 100 * 10**6

MEASURE = """
import json, re, sys
import numamirror

def taken():
    status = open("/proc/self/status").read()
    kib = re.findall(r"^(?:RssAnon|HugetlbPages):\\s+(\\d+) kB$", status, re.MULTILINE)
    return 1024 * sum(map(int, kib))

path, options = sys.argv[1], json.loads(sys.argv[2])
before = taken()
with numamirror.load(path, **options) as model:
    needs = model.needs
    others = sum(needs.cache_bytes)
    print(json.dumps([taken() - before - others, sum(needs.weights_bytes)]))
"""


def resident_and_planned_bytes(path: Path, **options: object) -> tuple[int, int]:
    """Resident bytes of the weights after a load, and those that were planned."""
    command = [sys.executable, "-c", MEASURE, str(path), json.dumps(options)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    resident, planned = json.loads(result.stdout)
    return resident, planned


@pytest.mark.parametrize(("numa", "nodes", "copies"), [
    ("split", 2, 1),
    ("split", 4, 1),
    ("mirror", 2, 2),
    ("mirror", 4, 4),
    ("off", None, 1),
])  # fmt: skip
def test_weights_are_resident_once_or_once_a_node(
    numa: str, nodes: int | None, copies: int
) -> None:
    path = default_model.find()
    options = {"numa": numa, "simulate_nodes": nodes, "threads": 4, "ctx_size": 256}
    resident, planned = resident_and_planned_bytes(path, **options)
    assert abs(resident - planned) < TOLERANCE_BYTES
    assert abs(planned - copies * path.stat().st_size) < copies * 4 * 10**6
