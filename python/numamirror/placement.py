"""Stage 3: where each tensor goes, and whether it all fits.

Holds the default placement and the memory check. Knows the plan and the machine's memory, reads no
weight and allocates nothing. `numamirror plan` prints what it gives; the engine loads by it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from numamirror import _core
from numamirror.errors import OutOfNodeMemoryError
from numamirror.plan import Plan
from numamirror.units import GIB

DEFAULT_BUFFER = "CPU"
"""Buffer type of every tensor for now: one copy in the process's own memory."""


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
    """Every tensor's place."""

    tensors: tuple[PlacedTensor, ...]

    def describe(self) -> str:
        """Tensors and bytes by buffer and type, for `plan --show placement`."""
        groups: defaultdict[tuple[str, str], list[PlacedTensor]] = defaultdict(list)
        for tensor in self.tensors:
            groups[tensor.buffer, tensor.type].append(tensor)
        return "\n".join(
            f"{buffer} {kind}: {len(group)} tensors, "
            f"{sum(t.file_bytes for t in group) / GIB:.3f} GiB in the file, "
            f"{sum(t.packed_bytes for t in group) / GIB:.3f} GiB packed"
            for (buffer, kind), group in groups.items()
        )


@dataclass(frozen=True)
class MemoryNeeds:
    """Bytes that a program takes: packed weights, cache, activations."""

    weights_bytes: int
    cache_bytes: int
    activation_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.weights_bytes + self.cache_bytes + self.activation_bytes

    def describe(self) -> str:
        """Each part in GiB, for `plan --show memory` and for messages."""
        return (
            f"{self.total_bytes / GIB:.2f} GiB: weights {self.weights_bytes / GIB:.2f}, "
            f"cache {self.cache_bytes / GIB:.2f}, activations {self.activation_bytes / GIB:.2f}"
        )


def place(plan: Plan) -> Placement:
    """Gives every tensor of the plan its buffer and its packed size."""
    placed = []
    for need in plan.tensors:
        record = plan.model_file.tensors[need.name]
        n_rows = need.shape[0] if need.role == "matrix" else 1
        packed = _core.packed_bytes(record.type, n_rows, need.shape[-1], need.role)
        placed.append(PlacedTensor(need.name, record.type, DEFAULT_BUFFER, record.n_bytes, packed))
    return Placement(tuple(placed))


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
