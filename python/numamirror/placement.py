"""Stage 3: where each tensor goes, and whether it all fits.

Holds the default buffers, the use of `-ot` rules and the memory check. Reads no weight and
allocates nothing. `numamirror plan` prints what it gives; the engine loads by it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from numamirror import _core
from numamirror.errors import OutOfNodeMemoryError
from numamirror.overrides import Matches, Rule, match
from numamirror.plan import Plan
from numamirror.units import GIB

MATRIX_DEFAULTS = {
    "auto": "SPLIT",
    "split": "SPLIT",
    "mirror": "MIRROR",
    "interleave": "INTERLEAVE",
    "off": "SPLIT",
}
"""Buffer of matrices by `--numa`; `off` has one node, to which all is dealt."""

VECTOR_DEFAULT = "MIRROR"
"""Buffer of what every thread reads whole: norms and biases."""


@dataclass(frozen=True)
class PlacedTensor:
    """One tensor's place: its type, buffer and sizes in the file and in memory."""

    name: str
    type: str
    buffer: str
    file_bytes: int
    packed_bytes: int


@dataclass(frozen=True)
class Placement:
    """Every tensor's place.

    Args:
        tensors: In the plan's order.
        rules: What became of each `-ot` rule.
    """

    tensors: tuple[PlacedTensor, ...]
    rules: Matches

    @property
    def read_bytes(self) -> int:
        """Bytes of the file that a load reads: all but those of what stays in its page cache."""
        return sum(tensor.file_bytes for tensor in self.tensors if tensor.buffer != "MMAP")

    @property
    def buffers(self) -> list[str]:
        """Buffer of each tensor, in the plan's order."""
        return [tensor.buffer for tensor in self.tensors]

    def describe(self) -> str:
        """Tensors and bytes by buffer and type, for `plan --show placement`."""
        groups: defaultdict[tuple[str, str], list[PlacedTensor]] = defaultdict(list)
        for tensor in self.tensors:
            groups[tensor.buffer, tensor.type].append(tensor)
        lines = [
            f"{buffer} {kind}: {len(group)} tensors, "
            f"{sum(t.file_bytes for t in group) / GIB:.3f} GiB in the file, "
            f"{sum(t.packed_bytes for t in group) / GIB:.3f} GiB packed"
            for (buffer, kind), group in groups.items()
        ]
        lines += [f"rule {line}" for line in self.rules.describe().splitlines()]
        return "\n".join(lines)


@dataclass(frozen=True)
class MemoryNeeds:
    """Bytes that a program takes.

    Args:
        weights_bytes: Packed weights, on each node in use.
        cache_bytes: Keys and values, on each node in use.
        activation_bytes: Activations of a pass.
    """

    weights_bytes: tuple[int, ...]
    cache_bytes: tuple[int, ...]
    activation_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return sum(self.weights_bytes) + sum(self.cache_bytes) + self.activation_bytes

    def describe(self) -> str:
        """Each part in GiB, for `plan --show memory` and for messages."""
        return (
            f"{self.total_bytes / GIB:.2f} GiB: weights {_sum_in_gib(self.weights_bytes)}, "
            f"cache {_sum_in_gib(self.cache_bytes)}, "
            f"activations {self.activation_bytes / GIB:.2f}"
        )


def _sum_in_gib(node_bytes: tuple[int, ...]) -> str:
    return " + ".join(f"{n_bytes / GIB:.2f}" for n_bytes in node_bytes)


def place(plan: Plan, numa: str, rules: Sequence[Rule]) -> Placement:
    """Gives every tensor of the plan its buffer and its packed size.

    Args:
        plan: Stage 2's value.
        numa: A key of `MATRIX_DEFAULTS`.
        rules: `-ot` rules, first match wins.
    """
    packed = {}
    for need in plan.tensors:
        kind = plan.model_file.tensors[need.name].type
        n_rows = need.shape[0] if need.role == "matrix" else 1
        packed[need.name] = _core.packed_bytes(kind, n_rows, need.shape[-1], need.role)
    matches = match(rules, packed, MATRIX_DEFAULTS[numa])
    placed = []
    for need in plan.tensors:
        record = plan.model_file.tensors[need.name]
        is_default = need.role == "vector" and need.name not in matches.deciding
        buffer = VECTOR_DEFAULT if is_default else matches.assignment[need.name]
        placed.append(
            PlacedTensor(need.name, record.type, buffer, record.n_bytes, packed[need.name])
        )
    return Placement(tuple(placed), matches)


def check_fits(needs: MemoryNeeds, available_bytes: int | None) -> None:
    """Refuses a load that does not fit, before a byte is read.

    Args:
        needs: What the load takes.
        available_bytes: What the system can give without swapping; None when it does not tell.

    Raises:
        OutOfNodeMemoryError: With the numbers of each part.
    """
    if available_bytes is None or needs.total_bytes <= available_bytes:
        return
    msg = f"not enough memory: {available_bytes / GIB:.2f} GiB available, needed {needs.describe()}"
    raise OutOfNodeMemoryError(
        msg, hint="lower --ctx-size or --ubatch-size, or stop other programs"
    )
