"""Machines as the engine reads them, the plan of workers for them, and the table of the command."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_sysfs import KIB, MAX_CPUS, FakeMachine, FakeNode, machines
from hypothesis import assume, given
from hypothesis import strategies as st
from numamirror import _core
from numamirror.cli.topology import lines, ranges
from numamirror.errors import RequestError

N_THREADS = st.integers(1, 60)
ALLOWED = st.sets(st.integers(0, MAX_CPUS), min_size=1).map(sorted)
COUNTS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8)


@contextmanager
def tree(machine: FakeMachine) -> Iterator[str]:
    """The machine's tree for as long as the context lasts."""
    with tempfile.TemporaryDirectory() as folder:
        machine.write(Path(folder))
        yield folder


def thread_plan(
    root: str,
    allowed: list[int],
    threads: int | None,
    threads_batch: int | None,
    simulate_nodes: int | None,
) -> _core.ThreadPlan:
    """The plan for the machine of a tree."""
    return _core.ThreadPlan(
        threads=threads,
        threads_batch=threads_batch,
        simulate_nodes=simulate_nodes,
        allowed_cpus=allowed,
        sysfs_root=root,
        proc_root=root,
    )


@given(machines())
def test_what_is_read_is_what_the_tree_says(machine: FakeMachine) -> None:
    with tree(machine) as root:
        known = _core.topology(root, root)
    assert [(core["node"], core["cpus"]) for core in known["cores"]] == machine.online_cores()
    ids = [node.id for node in machine.nodes]
    assert [node["id"] for node in known["nodes"]] == ids
    for node, expected in zip(known["nodes"], machine.nodes, strict=True):
        cpus = {cpu for core in expected.cores for cpu in core} - machine.offline
        assert node["cpus"] == sorted(cpus)
        assert node["total_bytes"] == expected.total_kib * KIB
        assert node["distances"] == list(zip(ids, expected.distances or [], strict=False))
    pools = [
        (p["node"], p["page_bytes"], (p["n_pages"], p["n_free_pages"])) for p in known["page_pools"]
    ]
    assert pools == [
        (node.id, page_kib * KIB, counts)
        for node in machine.nodes
        for page_kib, counts in sorted(node.pools.items())
    ]


@given(machines(), ALLOWED, N_THREADS, N_THREADS, st.none() | st.integers(1, 9))
def test_threads_have_cores_and_nodes_have_threads(
    machine: FakeMachine, allowed: list[int], threads: int, threads_batch: int, n_nodes: int | None
) -> None:
    cores = [set(cpus) & set(allowed) for _, cpus in machine.online_cores()]
    n_cores = sum(map(bool, cores))
    assume(n_cores)
    with tree(machine) as root:
        plan = thread_plan(root, allowed, threads, threads_batch, n_nodes)
        default = thread_plan(root, allowed, None, None, n_nodes)
    assert len(plan.pins) == max(threads, threads_batch)
    assert [node for _, node in plan.pins] == sorted(node for _, node in plan.pins)
    assert len(default.pins) == sum(default.node_threads) == n_cores
    assert n_nodes is None or plan.kernel_nodes == [None] * n_nodes
    phases = ((threads, plan.node_threads), (threads_batch, plan.node_threads_batch))
    for n_threads, node_threads in phases:
        cpus = first_pins(plan.pins, node_threads)
        assert len(cpus) == sum(node_threads) == n_threads
        used = [next(i for i, core in enumerate(cores) if cpu in core) for cpu in cpus]
        assert len(set(used)) == min(n_threads, n_cores), "physical cores of their own"
        if n_nodes is not None:
            assert max(node_threads) - min(node_threads) <= 1
        elif n_threads <= n_cores:
            most = max(node_threads)
            full = Counter(
                home(machine, machine.online_cores()[core][0]) for core in allowed_cores(cores)
            )
            for node, n in zip(plan.kernel_nodes, node_threads, strict=True):
                assert node is not None
                assert n >= most - 1 or n == full[node], "balanced as far as cores allow"


@given(machines(), ALLOWED)
def test_real_nodes_in_use_have_allowed_cpus_and_memory(
    machine: FakeMachine, allowed: list[int]
) -> None:
    cores = [(node, cpus) for node, cpus in machine.online_cores() if set(cpus) & set(allowed)]
    assume(cores)
    with tree(machine) as root:
        plan = thread_plan(root, allowed, None, None, None)
    assert plan.kernel_nodes == sorted({home(machine, node) for node, _ in cores})
    for cpu, index in plan.pins:
        (node,) = [node for node, cpus in cores if cpu in cpus]
        assert plan.kernel_nodes[index] == home(machine, node)


def first_pins(pins: Sequence[tuple[int, int]], node_threads: Sequence[int]) -> list[int]:
    """CPUs of the first pins of each node, as many as it has threads in a phase."""
    cpus = []
    for node, n_threads in enumerate(node_threads):
        cpus += [cpu for cpu, index in pins if index == node][:n_threads]
    return cpus


def allowed_cores(cores: Sequence[set[int]]) -> list[int]:
    """Numbers of the cores that have allowed CPUs."""
    return [number for number, cpus in enumerate(cores) if cpus]


def home(machine: FakeMachine, node_id: int) -> int:
    """The node itself if it has memory, else the nearest that has, the first of equally near."""
    by_id = {node.id: node for node in machine.nodes}
    with_memory = [node.id for node in machine.nodes if node.total_kib]
    if node_id in with_memory or not with_memory:
        return node_id
    distances = by_id[node_id].distances or [0] * len(by_id)
    to = dict(zip(by_id, distances, strict=True))
    return min(with_memory, key=lambda other: to[other])


@given(st.integers(0, 400), COUNTS)
def test_every_row_has_one_owner_and_one_worker(
    n_units: int, counts: list[tuple[int, int]]
) -> None:
    node_threads, phase_threads = [n for n, _ in counts], [n for _, n in counts]
    owned = _core.phase_rows(n_units, node_threads, node_threads)
    worked = _core.phase_rows(n_units, node_threads, phase_threads)
    for work, threads in ((owned, node_threads), (worked, phase_threads)):
        units = Counter(
            unit for of_node in work for _, first, end in of_node for unit in range(first, end)
        )
        assert units == Counter(range(n_units))
        assert not any(threads) or all(n or not w for n, w in zip(threads, work, strict=True))
    if any(node_threads):
        assert all(owner == node for node, w in enumerate(owned) for owner, _, _ in w)
    for node, of_node in enumerate(worked):
        assert all(owner == node or not phase_threads[owner] for owner, _, _ in of_node)


def test_plans_that_make_no_sense_are_refused() -> None:
    with tree(FakeMachine([FakeNode(0, [[0]])])) as root:
        for threads, batch, simulated, name in (
            (0, None, None, "threads: 0"),
            (None, 5000, None, "threads_batch: 5000"),
            (None, None, 0, "simulate_nodes: 0"),
        ):
            with pytest.raises(RequestError, match=f"^{name}; expected 1 to"):
                thread_plan(root, [0], threads, batch, simulated)
        with pytest.raises(RequestError, match=r"^cpus: none of 1 is online; expected some of 0"):
            thread_plan(root, [1], None, None, None)
    for counts in (([1], []), ([], []), ([1], [5000])):
        with pytest.raises(RequestError, match=r"^threads of the nodes"):
            _core.phase_rows(3, *counts)


# --- the command


def facts(**changes: object) -> dict[str, Any]:
    """A machine of two nodes, one without CPUs."""
    node = {"total_bytes": 3 << 29, "free_bytes": 1 << 30}
    return {
        "nodes": [
            {"id": 0, "cpus": [0, 1, 4], **node, "distances": [(0, 10), (3, 21)]},
            {"id": 3, "cpus": [], **node, "distances": []},
        ],
        "cores": [{"node": 0, "cpus": [0, 4]}, {"node": 0, "cpus": [1]}],
        "allowed_cpus": [0, 1],
        "available_bytes": None,
        "page_pools": [],
        "transparent_huge_pages": None,
        "numa_balancing": None,
        "isas": [{"name": "scalar", "detected": True}, {"name": "avx2", "detected": False}],
        "isa": "scalar",
        **changes,
    }


def test_a_node_is_a_row_and_what_is_unknown_is_said() -> None:
    assert lines(facts()) == [
        "node  cores  cpus   memory    free      distances  huge pages free",
        "0     2      0-1,4  1.50 GiB  1.00 GiB  10 21      none",
        "3     0      none   1.50 GiB  1.00 GiB  unknown    none",
        "",
        "cpus allowed            0-1",
        "cpus a core             1-2",
        "memory available        unknown",
        "huge pages              none",
        "transparent huge pages  not there",
        "numa balancing          not there",
        "instruction sets        scalar; in use: scalar",
    ]


def test_pools_stand_with_their_nodes_or_below() -> None:
    pool = {"node": 3, "page_bytes": 1 << 30, "n_pages": 8, "n_free_pages": 3}
    small = {**pool, "page_bytes": 2 << 20, "n_pages": 5}
    empty = {**pool, "node": 0, "n_pages": 0, "n_free_pages": 0}
    of_nodes = lines(facts(page_pools=[empty, small, pool]))
    assert of_nodes[1].endswith("10 21      none")
    assert of_nodes[2].endswith("unknown    3 of 5 of 2 MiB, 3 of 8 of 1 GiB")
    assert not any(line.startswith("huge pages ") for line in of_nodes)
    of_machine = {**pool, "node": None, "page_bytes": 64 << 10}
    assert "huge pages              3 of 8 of 64 KiB" in lines(facts(page_pools=[of_machine]))


@pytest.mark.parametrize(("value", "words"), [(0, "off"), (1, "on"), (2, "tiers"), (3, "tiers")])
def test_modes_of_the_kernel_are_named(value: int, words: str) -> None:
    shown = lines(facts(numa_balancing=value, transparent_huge_pages="madvise"))
    assert f"numa balancing          {words}" in shown
    assert "transparent huge pages  madvise" in shown


def test_cpu_numbers_read_as_the_kernel_writes_them() -> None:
    assert ranges([8, 0, 1, 2, 3]) == "0-3,8"
    assert ranges([5]) == "5"
