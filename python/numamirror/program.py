"""The forward pass as plain data: the builder that architectures speak to, and the program.

Holds values (one an op's result), ops in order and the tensors and caches they name. Knows no
model and no memory: `numamirror.compile` gives values their slots. Ops and their fields are the
engine's (`_core.op_schema()`); the builder refuses an op that the engine would not know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from numamirror import _core
from numamirror.errors import ProgramError

Rows = Literal["tokens", "outputs"]
RopeStyle = Literal["interleaved", "neox"]


@dataclass(frozen=True)
class Value:
    """The result of an op, f32[n_rows, width].

    Args:
        index: Number of the value in the order of creation.
        width: Values a row.
        rows: `tokens`, one row a token; `outputs`, one row a token whose logits are wanted.
    """

    index: int
    width: int
    rows: Rows


@dataclass(frozen=True)
class Tensor:
    """A tensor that a program uses.

    Args:
        index: Number in the program.
        name: Name in the file.
        type: GGML's name of its type.
        n_rows: Rows; 1 for a vector.
        n_cols: Values a row.
        role: `matrix` or `vector`.
    """

    index: int
    name: str
    type: str
    n_rows: int
    n_cols: int
    role: Literal["matrix", "vector"]


@dataclass(frozen=True)
class CacheSpec:
    """The block cache of one attention layer: heads and the lengths of a key and a value."""

    n_head_kv: int
    k_dim: int
    v_dim: int


@dataclass(frozen=True)
class Op:
    """One op over values: its name, what its fields hold and where in the model it stands."""

    name: str
    operands: Mapping[str, Any]
    label: str


@dataclass(frozen=True)
class Program:
    """A compiled forward pass, as the engine takes it.

    Args:
        tensors: In order of index.
        slots: Width and rows of each activation slot.
        caches: In order of use.
        steps: Ops with slots for values, in the engine's JSON form.
        logits: Slot of the logits.
    """

    tensors: tuple[Tensor, ...]
    slots: tuple[tuple[int, Rows], ...]
    caches: tuple[CacheSpec, ...]
    steps: tuple[Mapping[str, Any], ...]
    logits: int

    def to_json(self) -> str:
        """The form that `_core.Engine` and `_core.verify_program` read."""
        return json.dumps(
            {
                "tensors": [
                    {
                        "name": t.name,
                        "type": t.type,
                        "n_rows": t.n_rows,
                        "n_cols": t.n_cols,
                        "role": t.role,
                    }
                    for t in self.tensors
                ],
                "slots": [{"width": width, "rows": rows} for width, rows in self.slots],
                "caches": [vars(cache) for cache in self.caches],
                "steps": list(self.steps),
                "logits": self.logits,
            },
            allow_nan=False,
        )

    def describe(self) -> str:
        """One line a slot and an op, for `plan --show program`."""
        lines = [f"slot {i}: f32[{rows}, {width}]" for i, (width, rows) in enumerate(self.slots)]
        for i, step in enumerate(self.steps):
            ((name, operands),) = step["op"].items()
            lines.append(f"{i:4} {step['label']:24} {name}({self._operands(name, operands)})")
        return "\n".join(lines)

    def _operands(self, name: str, operands: Mapping[str, Any]) -> str:
        fields = op_fields()[name]
        return ", ".join(
            f"{key}={self._operand(fields[key], value)}" for key, value in operands.items()
        )

    def _operand(self, field: Mapping[str, Any], value: Any) -> str:  # noqa: ANN401 - any JSON
        match field["kind"]:
            case "read" | "write" | "update":
                return f"%{value}"
            case "vector" | "matrix":
                return str(self.tensors[value].name)
            case "records":
                fields = {f["name"]: f for f in field["fields"]}
                records = (
                    " ".join(f"{k}={self._operand(fields[k], v)}" for k, v in record.items())
                    for record in value
                )
                return f"[{'; '.join(records)}]"
            case "list" if len(value) > 3:
                return f"[{value[0]:g}, {value[1]:g}, … {len(value)}]"
            case _:
                return str(value)


@cache
def op_fields() -> dict[str, dict[str, dict[str, Any]]]:
    """Fields of every op that the engine has, by op and field name."""
    return {name: {f["name"]: f for f in fields} for name, fields in _core.op_schema().items()}


@dataclass
class Builder:
    """What an architecture's `wire` speaks to: each method adds one op.

    Weights are named without `.weight`; a bias is used when the file has one.

    Args:
        tensors: The tensors of the plan by name: type, shape and role.
    """

    tensors: Mapping[str, Tensor]
    ops: list[Op] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    caches: list[CacheSpec] = field(default_factory=list)

    def has(self, name: str) -> bool:
        """Whether the file has the tensor `name`."""
        return name in self.tensors

    def embed(self, table: str) -> Value:
        """The embedding of each token, f32[n_tokens, n_embd]."""
        weight = self._tensor(f"{table}.weight")
        out = self._value(weight.n_cols, "tokens")
        self._emit("embed", table, table=weight, out=out)
        return out

    def rms_norm(self, x: Value, weight: str, eps: float) -> Value:
        """`x` over its root mean square, times the weight; the shape of `x`."""
        out = self._value(x.width, x.rows)
        tensor = self._tensor(f"{weight}.weight")
        self._emit("rms_norm", weight, input=x, weight=tensor, out=out, eps=eps)
        return out

    def linear(self, x: Value, *weights: str) -> tuple[Value, ...]:
        """Products of `x` with each weight, plus its bias when there is one."""
        products, outs = [], []
        for name in weights:
            weight = self._tensor(f"{name}.weight")
            outs.append(self._value(weight.n_rows, x.rows))
            product: dict[str, Tensor | Value] = {"weight": weight, "out": outs[-1]}
            if self.has(f"{name}.bias"):
                product["bias"] = self._tensor(f"{name}.bias")
            products.append(product)
        self._emit("linear", ", ".join(weights), input=x, products=products)
        return tuple(outs)

    def rope_angles(
        self, frequencies: Sequence[float], factors: str | None = None, magnitude: float = 1.0
    ) -> Value:
        """Cosines and sines of each row's rotary angles, f32[n_tokens, 2 * len(frequencies)].

        Args:
            frequencies: Radians a position, one a rotated pair.
            factors: Tensor of divisors of the frequencies, used when the file has it.
            magnitude: Factor on cosine and sine.
        """
        out = self._value(2 * len(frequencies), "tokens")
        extra = {}
        if factors is not None and self.has(f"{factors}.weight"):
            extra["factors"] = self._tensor(f"{factors}.weight")
        self._emit(
            "rope_angles",
            "rope",
            frequencies=list(frequencies),
            **extra,
            magnitude=magnitude,
            out=out,
        )
        return out

    def rope(self, x: Value, angles: Value, head_dim: int, style: RopeStyle, *, label: str) -> None:
        """Rotates every head of `x` in place."""
        self._emit("rope", label, data=x, angles=angles, head_dim=head_dim, style=style)

    def attention(
        self,
        q: Value,
        k: Value,
        v: Value,
        *,
        n_head: int,
        n_head_kv: int,
        k_dim: int,
        v_dim: int,
        scale: float,
        label: str,
    ) -> Value:
        """Causal attention over the sequence's cache, f32[n_tokens, n_head * v_dim]."""
        out = self._value(n_head * v_dim, "tokens")
        self.caches.append(CacheSpec(n_head_kv, k_dim, v_dim))
        self._emit(
            "attention", label, q=q, k=k, v=v, out=out, cache=len(self.caches) - 1,
            n_head=n_head, k_dim=k_dim, v_dim=v_dim, scale=scale,
        )  # fmt: skip
        return out

    def select(self, x: Value) -> Value:
        """Only the rows whose logits are asked for, f32[n_outputs, width]."""
        out = self._value(x.width, "outputs")
        self._emit("select", "outputs", input=x, out=out)
        return out

    def add(self, a: Value, b: Value, *, label: str) -> Value:
        """`a + b`."""
        out = self._value(a.width, a.rows)
        self._emit("add", label, a=a, b=b, out=out)
        return out

    def swiglu(self, gate: Value, up: Value, *, label: str) -> Value:
        """`silu(gate) * up`."""
        out = self._value(gate.width, gate.rows)
        self._emit("swiglu", label, gate=gate, up=up, out=out)
        return out

    def _tensor(self, name: str) -> Tensor:
        try:
            return self.tensors[name]
        except KeyError:
            raise ProgramError(
                f"the architecture wires {name}, which its tensors() does not name"
            ) from None

    def _value(self, width: int, rows: Rows) -> Value:
        value = Value(len(self.values), width, rows)
        self.values.append(value)
        return value

    def _emit(self, name: str, label: str, **operands: Any) -> None:  # noqa: ANN401 - by schema
        fields = op_fields().get(name)
        if fields is None:
            raise ProgramError(f"op {name}: the engine has no such op")
        required = {key for key, spec in fields.items() if not spec["optional"]}
        if not required <= operands.keys() <= fields.keys():
            raise ProgramError(f"op {name}: fields {sorted(operands)}, expected {sorted(fields)}")
        self.ops.append(Op(name, operands, label))
