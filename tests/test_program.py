"""Programs with anything wrong in them: the engine's verifier refuses them, and never falls over.

Starts from the valid program of a tiny model and breaks it, field by field in every place and at
random in several. What must be refused is listed; whatever else is tried may be refused or still be
a valid program, but nothing else may happen.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import numpy as np
import pytest
import tiny_gguf
from gguf import GGUFWriter
from hypothesis import given
from hypothesis import strategies as st
from numamirror import _core
from numamirror.compile import compile_program
from numamirror.errors import NumaMirrorError, ProgramError, UnsupportedError
from numamirror.gguf_file import open_model
from numamirror.plan import make_plan

Json: TypeAlias = Any
Place: TypeAlias = tuple[str | int, ...]
"""Keys and indices from the root of a program."""

ID_KINDS = {
    "read": "slots",
    "write": "slots",
    "update": "slots",
    "vector": "tensors",
    "matrix": "tensors",
    "cache": "caches",
}
"""List that an operand's number points into, by the kind of operand in `_core.op_schema()`."""

WRONG_NUMBERS: tuple[Json, ...] = (
    -1,
    0,
    1,
    1.5,
    31,
    2**31,
    2**32 - 1,
    2**32,
    2**63,
    2**64,
    10**30,
    1e39,
    -1e39,
    1e-46,
    float("nan"),
    float("inf"),
    -float("inf"),
)
WRONG_VALUES: tuple[Json, ...] = (
    *WRONG_NUMBERS,
    None,
    True,
    "",
    "tokens",
    "outputs",
    "vector",
    "matrix",
    "Q8_0",
    "Q9_9",
    "\0",
    [],
    [0],
    {},
    {"linear": {}},
    [[[[]]]],
)


def write_model(path: Path) -> Path:
    """A tiny model that has every optional part of a program."""

    def add_biases(writer: GGUFWriter) -> None:
        for part, n_rows in {"q": 64, "k": 32, "v": 32}.items():
            writer.add_tensor(f"blk.0.attn_{part}.bias", np.ones(n_rows, np.float32))

    factors = np.ones(8, np.float32)
    return tiny_gguf.write_llama(path, n_layer=1, edit=add_biases, rope_freqs=factors)


MOST_BYTES = 64 << 20
"""Accepted programs that ask for more memory are not run."""


@cache
def valid_program() -> str:
    """The program of that model."""
    with TemporaryDirectory() as folder:
        path = write_model(Path(folder) / "m.gguf")
        return compile_program(make_plan(open_model(path))).to_json()


def program() -> dict[str, Json]:
    """A copy to break."""
    parsed: dict[str, Json] = json.loads(valid_program())
    return parsed


def is_refused(broken: Json) -> bool:
    """Whether the verifier refuses a program; any other exception, or a crash, is a failure."""
    try:
        _core.verify_program(json.dumps(broken))
    except (ProgramError, UnsupportedError):  # the second: a quantization type that is not known
        return True
    return False


def places(value: Json, at: Place = ()) -> Iterator[Place]:
    """Every place in a program, the root excepted."""
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in inner:
        yield (*at, key)
        yield from places(item, (*at, key))


def value_at(value: Json, place: Place) -> Json:
    """What stands at a place."""
    for key in place:
        value = value[key]
    return value


def changed(place: Place, change: Callable[[Json, str | int], None]) -> Json:
    """A copy of the valid program after `change(container, key)` at a place."""
    broken = program()
    change(value_at(broken, place[:-1]), place[-1])
    return broken


def with_value(place: Place, value: Json) -> Json:
    """A copy of the valid program with another value at a place."""
    return changed(place, lambda container, key: container.__setitem__(key, value))


def operands() -> Iterator[tuple[Place, Mapping[str, Json]]]:
    """Every operand of every op with its entry in the schema, operands of records included."""
    schema = _core.op_schema()
    for index, step in enumerate(program()["steps"]):
        ((name, fields),) = step["op"].items()
        yield from _operands(("steps", index, "op", name), fields, schema[name])


def _operands(
    at: Place, fields: dict[str, Json], schema: Sequence[Mapping[str, Json]]
) -> Iterator[tuple[Place, Mapping[str, Json]]]:
    for entry in schema:
        place = (*at, entry["name"])
        if entry["name"] not in fields:
            continue
        yield place, entry
        if entry["kind"] == "records":
            for index, record in enumerate(fields[entry["name"]]):
                yield from _operands((*place, index), record, entry["fields"])


def survivors(broken: Iterator[tuple[Place, Json, Json]]) -> list[tuple[Place, Json]]:
    """Places and values whose programs were not refused."""
    return [(place, value) for place, value, mutant in broken if not is_refused(mutant)]


def test_the_program_itself_is_accepted() -> None:
    assert not is_refused(program())


def test_every_field_that_is_not_optional_is_needed() -> None:
    optional = {place for place, entry in operands() if entry["optional"]}

    def mutants() -> Iterator[tuple[Place, Json, Json]]:
        for place in places(program()):
            if isinstance(place[-1], str) and place not in optional:
                yield place, "deleted", changed(place, lambda c, k: c.__delitem__(k))

    assert not survivors(mutants())


def test_every_unknown_field_is_refused() -> None:
    def mutants() -> Iterator[tuple[Place, Json, Json]]:
        yield (), "added", program() | {"unknown": 0}
        for place in places(program()):
            if isinstance(value_at(program(), place), dict):
                yield place, "added", with_value((*place, "unknown"), 0)

    assert not survivors(mutants())


def test_every_value_of_another_json_type_is_refused() -> None:
    optional = {place for place, entry in operands() if entry["optional"]}

    def mutants() -> Iterator[tuple[Place, Json, Json]]:
        for place in places(program()):
            found = value_at(program(), place)
            for wrong in (None, True, 1, "x", [], [None], {}, {"x": 1}):
                is_absence = wrong is None and place in optional
                if not is_absence and _json_type(wrong) != _json_type(found):
                    yield place, wrong, with_value(place, wrong)

    # An empty list may be a valid one (no frequencies, no products) only where a list stood.
    assert not survivors(mutants())


def _json_type(value: Json) -> str:
    return "number" if type(value) in (int, float) else type(value).__name__


def test_every_id_out_of_range_is_refused() -> None:
    lengths = {name: len(entries) for name, entries in program().items() if name != "logits"}

    def mutants() -> Iterator[tuple[Place, Json, Json]]:
        targets = [(place, ID_KINDS[e["kind"]]) for place, e in operands() if e["kind"] in ID_KINDS]
        for place, target in [(("logits",), "slots"), *targets]:
            for wrong in (lengths[target], -1, 0.5, 2**31, 2**32 - 1, 2**32, 2**64):
                yield place, wrong, with_value(place, wrong)

    assert not survivors(mutants())


def test_every_number_that_is_not_finite_is_refused() -> None:
    def mutants() -> Iterator[tuple[Place, Json, Json]]:
        for place in places(program()):
            if _json_type(value_at(program(), place)) == "number":
                for wrong in (float("nan"), float("inf"), -float("inf")):
                    yield place, wrong, with_value(place, wrong)

    assert not survivors(mutants())


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ("tensors", "n_cols"), ("slots", "width"), ("caches", "n_head_kv"), ("caches", "k_dim"),
        ("caches", "v_dim"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("by", [-1, 1, 32])
def test_every_shape_that_disagrees_is_refused(part: str, field: str, by: int) -> None:
    def mutants() -> Iterator[tuple[Place, Json, Json]]:
        for index, entry in enumerate(program()[part]):
            place = (part, index, field)
            yield place, entry[field] + by, with_value(place, entry[field] + by)

    assert not survivors(mutants())


@pytest.mark.parametrize(
    ("part", "field", "values"),
    [
        ("slots", "rows", ("tokens", "outputs")),
        ("tensors", "role", ("vector", "matrix")),
        ("tensors", "type", ("Q9_9", "q8_0", "")),
    ],
)
def test_every_other_kind_is_refused(part: str, field: str, values: tuple[str, ...]) -> None:
    def mutants() -> Iterator[tuple[Place, Json, Json]]:
        for index, entry in enumerate(program()[part]):
            for value in values:
                if value != entry[field]:
                    yield (part, index, field), value, with_value((part, index, field), value)

    assert not survivors(mutants())


def test_every_step_that_writes_what_it_reads_is_refused() -> None:
    def mutants() -> Iterator[tuple[Place, Json, Json]]:
        reads = {p[:4]: value_at(program(), p) for p, e in operands() if e["kind"] == "read"}
        for place, entry in operands():
            if entry["kind"] == "write" and place[:4] in reads:
                slot = reads[place[:4]]
                yield place, slot, with_value(place, slot)

    assert not survivors(mutants())


def test_an_op_before_what_it_needs_is_refused() -> None:
    broken = program()
    broken["steps"].reverse()
    assert is_refused(broken)


@pytest.mark.parametrize(
    "text", ["", "{", "null", "[]", "{}", "[" * 100_000, '{"tensors":' * 1000, "\0", "1e999999"]
)
def test_what_is_not_a_program_is_refused(text: str) -> None:
    with pytest.raises(ProgramError):
        _core.verify_program(text)


@st.composite
def broken_programs(draw: st.DrawFn) -> Json:
    """The valid program after one to four random changes of any kind."""
    broken = program()
    for _ in range(draw(st.integers(1, 4))):
        all_places = list(places(broken))
        place = draw(st.sampled_from(all_places))
        container, key = value_at(broken, place[:-1]), place[-1]
        match draw(st.sampled_from(["delete", "replace", "swap", "nudge", "repeat"])):
            case "delete":
                del container[key]
            case "replace":
                container[key] = copy.deepcopy(draw(st.sampled_from(WRONG_VALUES)))
            case "swap":
                container[key] = copy.deepcopy(value_at(broken, draw(st.sampled_from(all_places))))
            case "nudge" if _json_type(container[key]) == "number":
                container[key] += draw(st.integers(-70, 70))
            case "repeat" if isinstance(container, list):
                container.insert(int(key), copy.deepcopy(container[int(key)]))
    return broken


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("program") / "m.gguf")


def run(text: str, path: Path) -> None:
    """Load the weights that a program names and run it, as a model's load does.

    Raises:
        NumaMirrorError: Anything that the engine refuses on the way.
    """
    records = open_model(path).tensors
    names = [tensor["name"] for tensor in json.loads(text)["tensors"]]
    first = next(iter(records.values()))
    sources = [(str(path), records.get(name, first).offset) for name in names]
    threads = _core.ThreadPlan(threads=2, simulate_nodes=2)
    buffers = ["SPLIT", "MIRROR", "NODE1"] * len(names)
    buffers = buffers[: len(names)]
    weights, cache, rest = _core.memory_needs(text, buffers, threads, 8, 64, 1, "f16", "f16")
    if sum(weights) + sum(cache) + rest > MOST_BYTES:
        return
    engine = _core.Engine(
        text, sources, buffers, threads, n_ubatch=8, n_ctx=64, n_parallel=1, cache_type_k="f16",
        cache_type_v="f16", progress=None,
    )  # fmt: skip
    for start in (0, 4):
        engine.forward([(0, start + i, 3 * i, i == 3) for i in range(4)])


def test_the_program_itself_runs(model_path: Path) -> None:
    run(valid_program(), model_path)


@given(broken=broken_programs())
def test_random_changes_are_refused_or_harmless(model_path: Path, broken: Json) -> None:
    if not is_refused(broken):
        with suppress(NumaMirrorError):
            run(json.dumps(broken), model_path)


@pytest.mark.parametrize("value", [0, 1, 2, 3, 8, 15, 17, 32, 64, 1 << 16, 1e-30, 1e30, 1e300])
def test_a_program_with_another_number_is_refused_or_harmless(
    model_path: Path, value: float
) -> None:
    for place in places(program()):
        if _json_type(value_at(program(), place)) == "number":
            broken = with_value(place, value)
            if not is_refused(broken):
                with suppress(NumaMirrorError):
                    run(json.dumps(broken), model_path)
