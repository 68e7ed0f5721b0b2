"""The compiled engine, as Python sees it.

Errors are the classes of `numamirror.errors`. Everything that takes time releases the GIL, and
Ctrl-C stops it between two ops.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypedDict, final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Engine",
    "ThreadPlan",
    "buffers",
    "dequantize",
    "isa",
    "isas",
    "memory_needs",
    "op_schema",
    "packed_bytes",
    "packed_forms",
    "phase_rows",
    "quant_types",
    "token_reads",
    "topology",
    "verify_program",
]

class _QuantType(TypedDict):
    name: str
    ggml_id: int
    block_elems: int
    block_bytes: int
    form: str | None

class _Node(TypedDict):
    id: int
    cpus: list[int]
    total_bytes: int
    free_bytes: int
    distances: list[tuple[int, int]]

class _Core(TypedDict):
    node: int
    cpus: list[int]

class _PagePool(TypedDict):
    node: int | None
    page_bytes: int
    n_pages: int
    n_free_pages: int

class _Topology(TypedDict):
    nodes: list[_Node]
    cores: list[_Core]
    allowed_cpus: list[int]
    available_bytes: int | None
    page_pools: list[_PagePool]
    transparent_huge_pages: str | None
    numa_balancing: int | None

def quant_types() -> list[_QuantType]:
    """Every quantization type that weights may have, with its packed form."""

def packed_forms() -> list[str]:
    """Names of the packed forms."""

def isas() -> list[tuple[str, bool]]:
    """Instruction sets, the better ones later, and whether this CPU has them."""

def isa() -> str:
    """The instruction set that an engine would use now.

    Raises:
        UnsupportedError: `NUMAMIRROR_ISA` or `NUMAMIRROR_REQUIRE_ISA` names one that is not there.
    """

def op_schema() -> dict[str, list[dict[str, Any]]]:
    """Ops and their fields, in the order of their declaration.

    A field has `name`, `kind`, `optional` and, for kinds `list` and `records`, `fields`.
    """

def dequantize(type_name: str, data: bytes) -> bytes:
    """Exact values of whole blocks, as the bytes of a float32 array.

    Raises:
        RequestError: `data` is not whole blocks.
        UnsupportedError: There is no such type.
    """

def topology(sysfs_root: str = "/sys", proc_root: str = "/proc") -> _Topology:
    """Nodes, cores, memory, large pages and the CPUs of this process.

    Pools of huge pages have node None where the kernel does not tell nodes apart. The mode of
    transparent huge pages is `always`, `madvise` or `never`; `numa_balancing` is 0 when off.

    Raises:
        EngineError: A file below the roots can't be read.
        RequestError: A file holds nonsense.
    """

def phase_rows(
    n_units: int, node_threads: Sequence[int], phase_threads: Sequence[int]
) -> list[list[tuple[int, int, int]]]:
    """What each node's threads work on in a phase: (owner, first unit, end).

    Units (panels of rows) are owned in proportion to `node_threads`. A node with threads in the
    phase works on its own, and the others share what nodes without any own.

    Raises:
        RequestError: The lists differ in length, or a count is out of range.
    """

def verify_program(program: str) -> None:
    """Does what the engine does before it trusts a program.

    Raises:
        ProgramError: Names the op, slot or tensor at fault.
    """

def packed_bytes(type_name: str, n_rows: int, n_cols: int, role: str) -> int:
    """Bytes of one tensor in memory for the instruction set in use; `role` as in a program."""

def memory_needs(
    program: str,
    buffers: Sequence[str],
    threads: ThreadPlan,
    n_ubatch: int,
    n_ctx: int,
    n_parallel: int,
    cache_type_k: str,
    cache_type_v: str,
) -> tuple[list[int], list[int], int]:
    """Bytes of packed weights and of the cache on each node in use, and of activations.

    Raises:
        UnsupportedError: There is no such buffer with so many nodes.
    """

def token_reads(program: str, buffers: Sequence[str], threads: ThreadPlan) -> list[list[int]]:
    """Weight bytes that a token's products read, [reader][home], by nodes in use."""

def buffers(n_nodes: int) -> list[str]:
    """Names of the buffers that there are with so many nodes."""

@final
class ThreadPlan:
    """Nodes in use and the workers on them."""

    def __new__(
        cls,
        *,
        threads: int | None = None,
        threads_batch: int | None = None,
        cpu_range: str | None = None,
        simulate_nodes: int | None = None,
        allowed_cpus: Sequence[int] | None = None,
        sysfs_root: str = "/sys",
        proc_root: str = "/proc",
    ) -> ThreadPlan:
        """Plans workers, and starts none.

        Args:
            threads: Workers in a pass of one token; None: one a physical core.
            threads_batch: Workers in a pass of more; None: as many.
            cpu_range: CPUs to use, `LO-HI[,…]`; None: all allowed.
            simulate_nodes: Deal the cores to this many pretended nodes.
            allowed_cpus: CPUs that workers may use; None: those of this process.
            sysfs_root: `/sys` or a copy.
            proc_root: `/proc` or a copy.

        Raises:
            EngineError: A file below the roots can't be read.
            RequestError: The counts or the CPUs can't be had, or a file holds nonsense.
        """

    @property
    def pins(self) -> list[tuple[int, int]]:
        """CPU of each worker, and the index of its node among those in use; contiguous by node."""

    @property
    def n_threads(self) -> int:
        """Workers in a pass of one token."""

    @property
    def n_threads_batch(self) -> int:
        """Workers in a pass of more."""

    @property
    def kernel_nodes(self) -> list[int | None]:
        """The kernel's node of each node in use; None for a pretended one."""

    @property
    def node_threads(self) -> list[int]:
        """Workers of each node in use in a pass of one token: what rows are dealt by."""

    @property
    def node_threads_batch(self) -> list[int]:
        """Workers of each node in use in a pass of more."""

@final
class Engine:
    """A model in memory, its workers and its sequences. One call runs at a time."""

    def __new__(
        cls,
        program: str,
        sources: Sequence[tuple[str, int]],
        buffers: Sequence[str],
        threads: ThreadPlan,
        *,
        n_ubatch: int,
        n_ctx: int,
        n_parallel: int,
        cache_type_k: str,
        cache_type_v: str,
        progress: Callable[[int], Any] | None,
    ) -> Engine:
        """Reads and packs the weights.

        Args:
            program: JSON of a program.
            sources: Path and offset of each of the program's tensors.
            buffers: Buffer of each tensor.
            threads: Nodes and workers.
            n_ubatch: Most tokens a pass.
            n_ctx: Longest sequence.
            n_parallel: Sequences of that length that fit.
            cache_type_k: `f16` or `f32`.
            cache_type_v: `f16` or `f32`.
            progress: Receives the file bytes read so far.

        Raises:
            NumaMirrorError: By what is wrong; NonFiniteError names a tensor with a bad scale.
        """

    @property
    def isa(self) -> str:
        """The instruction set in use."""

    def page_kind(self) -> tuple[str, str | None, bool]:
        """Pages of the weights, why not better ones, and whether binding to nodes was refused."""

    def weight_pages(self) -> list[tuple[int, int, list[tuple[int, int]]]]:
        """Of each node's weights: bytes in memory, in huge pages, sampled pages by kernel node."""

    def forward(self, batch: Sequence[tuple[int, int, int, bool]]) -> None:
        """One pass over (sequence, position, token, wants logits).

        Of each sequence the last logits asked for are kept for `best`, whatever passes follow.

        Raises:
            ContextFullError: The cache has no room; nothing is computed.
            NonFiniteError: Names the op and layer that first gave a value that is not finite.
            RequestError: A position or token is out of range; nothing is computed.
        """

    def logits(
        self, batch: Sequence[tuple[int, int, int, bool]], into: NDArray[np.float32]
    ) -> None:
        """One pass whose logits go into float32[n_wanted, n_vocab], in the batch's order.

        Raises:
            NumaMirrorError: As `forward`; RequestError for an array of another size.
        """

    def best(
        self,
        sequence: int,
        n_candidates: int,
        recent: Sequence[int],
        penalties: tuple[float, float, float],
    ) -> tuple[bytes, bytes]:
        """Ids and logits of the best next tokens of a sequence, best first.

        Args:
            sequence: One whose last `forward` asked for logits.
            n_candidates: How many; more than the vocabulary means all.
            recent: Tokens that the penalties apply to.
            penalties: Repeat, frequency and presence penalty.

        Returns:
            The bytes of a uint32 and of a float32 array.
        """

    def n_past(self, sequence: int) -> int:
        """Positions that a sequence holds; 0 for an unknown one."""

    def remove(self, sequence: int) -> None:
        """Forgets a sequence and frees its part of the cache."""
