"""Stage 4: a plan and its placement become a program that the engine can run.

Holds the assignment of values to activation slots and the check that all of it fits into memory.
Knows no architecture (the plan's own module wires the ops) and reads no weight. Called by
`numamirror.engine` and `numamirror plan`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numamirror import _core, archs
from numamirror.placement import MemoryNeeds
from numamirror.plan import Plan
from numamirror.program import Builder, Op, Program, Rows, Tensor, Value


@dataclass(frozen=True)
class Limits:
    """How much a program is to hold at once.

    Args:
        n_ctx: Longest sequence, in positions.
        n_parallel: Sequences of that length.
        n_ubatch: Most tokens a pass.
        cache_type_k: Element type of cached keys.
        cache_type_v: Element type of cached values.
    """

    n_ctx: int
    n_parallel: int
    n_ubatch: int
    cache_type_k: str
    cache_type_v: str


def compile_program(plan: Plan) -> Program:
    """Wires the plan's architecture and gives its values slots.

    Returns:
        A program that the engine's verifier has accepted.

    Raises:
        ProgramError: The architecture wired something that the engine refuses: a fault of ours.
    """
    tensors = {
        need.name: Tensor(
            index, need.name, plan.model_file.tensors[need.name].type,
            need.shape[0] if need.role == "matrix" else 1, need.shape[-1], need.role,
        )
        for index, need in enumerate(plan.tensors)
    }  # fmt: skip
    builder = Builder(tensors)
    logits = archs.find(plan.architecture).wire(plan.config, builder)
    slots, slot_of = assign_slots(builder.ops, logits)
    program = Program(
        tensors=tuple(tensors.values()),
        slots=tuple(slots),
        caches=tuple(builder.caches),
        steps=tuple(_step(op, slot_of) for op in builder.ops),
        logits=slot_of[logits.index],
    )
    _core.verify_program(program.to_json())
    return program


def memory_needs(
    program: Program, buffers: list[str], threads: _core.ThreadPlan, limits: Limits
) -> MemoryNeeds:
    """What `program` takes within `limits`, to the byte, before anything is read.

    Args:
        program: The program.
        buffers: Buffer of each of its tensors.
        threads: The nodes in use.
        limits: Sizes of context and passes.

    Raises:
        UnsupportedError: There is no such buffer with so many nodes.
    """
    weights, cache, activations = _core.memory_needs(
        program.to_json(),
        buffers,
        threads,
        limits.n_ubatch,
        limits.n_ctx,
        limits.n_parallel,
        limits.cache_type_k,
        limits.cache_type_v,
    )
    return MemoryNeeds(tuple(weights), tuple(cache), activations)


def assign_slots(ops: Sequence[Op], logits: Value) -> tuple[list[tuple[int, Rows]], dict[int, int]]:
    """Gives each value a slot; a slot is used again once its value has been read for the last time.

    Args:
        ops: In order of execution.
        logits: Kept to the end.

    Returns:
        Width and rows of each slot, and the slot of each value by its index.
    """
    last_use = {value.index: i for i, op in enumerate(ops) for value in _values(op.operands)}
    last_use[logits.index] = len(ops)
    slots: list[tuple[int, Rows]] = []
    slot_of: dict[int, int] = {}
    free: defaultdict[tuple[int, Rows], list[int]] = defaultdict(list)
    for i, op in enumerate(ops):
        used = {value.index: value for value in _values(op.operands)}
        for value in used.values():
            if value.index not in slot_of:
                shape = (value.width, value.rows)
                if free[shape]:
                    slot_of[value.index] = free[shape].pop()
                else:
                    slot_of[value.index] = len(slots)
                    slots.append(shape)
        # Freed only after the op's results have theirs: an op never writes what it reads.
        for value in used.values():
            if last_use[value.index] == i:
                free[value.width, value.rows].append(slot_of[value.index])
    return slots, slot_of


def _values(operand: Any) -> Iterator[Value]:  # noqa: ANN401 - nested operands
    match operand:
        case Value():
            yield operand
        case Mapping():
            for inner in operand.values():
                yield from _values(inner)
        case list():
            for inner in operand:
                yield from _values(inner)


def _step(op: Op, slot_of: Mapping[int, int]) -> Mapping[str, Any]:
    def resolve(operand: Any) -> Any:  # noqa: ANN401 - nested operands
        match operand:
            case Value():
                return slot_of[operand.index]
            case Tensor():
                return operand.index
            case Mapping():
                return {key: resolve(inner) for key, inner in operand.items()}
            case list():
                return [resolve(inner) for inner in operand]
            case _:
                return operand

    return {"label": op.label, "op": {op.name: resolve(op.operands)}}
