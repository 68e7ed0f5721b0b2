"""Writes `/sys` and `/proc` trees of machines that nobody has.

Holds the tree writer and a Hypothesis strategy; knows nothing of the engine. Used by the tests of
topology and of whatever follows from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import strategies as st

KIB = 1 << 10
MAX_CPUS = 48


@dataclass(frozen=True)
class FakeNode:
    """A memory node.

    Args:
        id: The kernel's number.
        cores: CPUs of each physical core, offline ones too.
        total_kib: Its memory, half of it free; 0 for none.
        distances: To each node, in order; None where the kernel does not tell.
        pools: Pages and free pages by page size in KiB.
    """

    id: int
    cores: Sequence[Sequence[int]]
    total_kib: int = 1 << 20
    distances: Sequence[int] | None = None
    pools: Mapping[int, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class FakeMachine:
    """Nodes by ascending id, and the CPUs that are switched off."""

    nodes: Sequence[FakeNode]
    offline: frozenset[int] = frozenset()

    def online_cores(self) -> list[tuple[int, list[int]]]:
        """Node and CPUs, ascending, of each core that has any online, by node and first CPU."""
        cores = [
            (node.id, sorted(set(core) - self.offline))
            for node in self.nodes
            for core in node.cores
        ]
        return sorted(core for core in cores if core[1])

    def write(self, root: Path) -> None:
        """Write the tree: `root` is both the sysfs and the proc root."""
        online = [cpu for _, cpus in self.online_cores() for cpu in cpus]
        _write(root / "devices/system/cpu/online", cpu_list(online))
        for node in self.nodes:
            _write_node(root / f"devices/system/node/node{node.id}", node)
            for core in node.cores:
                for cpu in core:
                    topology = root / f"devices/system/cpu/cpu{cpu}/topology"
                    _write(topology / "thread_siblings_list", cpu_list(core))


def cpu_list(cpus: Sequence[int]) -> str:
    """CPUs one by one, which the kernel's readers take as well as ranges."""
    return ",".join(map(str, sorted(cpus)))


def _write_node(folder: Path, node: FakeNode) -> None:
    _write(folder / "cpulist", cpu_list([cpu for core in node.cores for cpu in core]))
    memory = {"MemTotal": node.total_kib, "MemFree": node.total_kib // 2}
    lines = [f"Node {node.id} {name}: {kib:8d} kB" for name, kib in memory.items()]
    _write(folder / "meminfo", "\n".join(lines))
    if node.distances is not None:
        _write(folder / "distance", " ".join(map(str, node.distances)))
    for page_kib, (n_pages, n_free) in node.pools.items():
        pool = folder / f"hugepages/hugepages-{page_kib}kB"
        _write(pool / "nr_hugepages", str(n_pages))
        _write(pool / "free_hugepages", str(n_free))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


@st.composite
def machines(draw: st.DrawFn) -> FakeMachine:
    """Machines with gaps in ids, nodes without memory or CPUs, offline CPUs, siblings anywhere.

    At least one CPU is online; CPUs are numbered below `MAX_CPUS`.
    """
    numbers = iter(draw(st.permutations(range(MAX_CPUS))))
    core_sizes = st.lists(st.integers(1, 3), max_size=4)
    sizes = draw(st.lists(core_sizes, min_size=1, max_size=4).filter(any))
    n_nodes = len(sizes)
    ids = sorted(draw(st.sets(st.integers(0, 12), min_size=n_nodes, max_size=n_nodes)))
    distances = st.none() | st.lists(st.integers(10, 40), min_size=n_nodes, max_size=n_nodes)
    nodes = [
        FakeNode(
            node_id,
            [[next(numbers) for _ in range(size)] for size in of_node],
            draw(st.sampled_from([0, 1 << 20, 3 << 20])),
            draw(distances),
            draw(st.dictionaries(st.sampled_from([2048, 1048576]), st.just((4, 3)))),
        )
        for node_id, of_node in zip(ids, sizes, strict=True)
    ]
    cpus = [cpu for node in nodes for core in node.cores for cpu in core]
    offline = draw(st.sets(st.sampled_from(cpus), max_size=len(cpus) - 1))
    return FakeMachine(nodes, frozenset(offline))
