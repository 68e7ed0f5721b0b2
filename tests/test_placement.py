"""Placement: buffers of tensors, rules, and logits that do not depend on any of it.

Every combination of pretended nodes, modes, rules and threads on tiny models; on the real model
each value at least once.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import feeding
import numamirror
import numpy as np
import pytest
import tiny_gguf
from numamirror import default_model
from numamirror.engine import prepare
from numamirror.errors import OutOfNodeMemoryError, RequestError
from numamirror.gguf_file import open_model
from numamirror.placement import MATRIX_DEFAULTS, MemoryNeeds, check_fits
from numpy.typing import NDArray

NODES = (1, 2, 4, 8)
THREADS = (1, 2, 3, 5, 8)
RULES: tuple[tuple[str, ...], ...] = (
    (),
    (r"ffn=NODE0,attn=MIRROR,token_embd=SPLIT",),
    (r"blk\.0\..*=MIRROR", r"norm=NODE0", r"down=CPU"),
    (r"ffn=MMAP,attn=INTERLEAVE",),
)
CHUNK_TOKENS = (1, 7, 64, 512)
N_TOKENS = 66
PAGE_BYTES = 4096


@pytest.fixture(scope="module", params=["Q8_0", "F16"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("placement")
    return tiny_gguf.write_llama(
        folder / "tiny.gguf", quant=request.param, n_embd=96, n_ff=160, n_head=6, n_head_kv=2,
        n_vocab=331, n_ctx=256, tied=False, seed=3,
    )  # fmt: skip


@pytest.fixture(scope="module")
def expected(path: Path) -> Iterator[tuple[list[int], NDArray[np.float32]]]:
    with numamirror.load(path, threads=1, numa="off") as model:
        ids = feeding.random_ids(model.n_vocab, N_TOKENS)
        yield ids, model.logits(ids)


def in_chunks(model: numamirror.Model, ids: list[int], size: int) -> NDArray[np.float32]:
    """Logits of a sequence that is fed `size` tokens at a time."""
    items = [(0, i, token, True) for i, token in enumerate(ids)]
    chunks = (items[start : start + size] for start in range(0, len(items), size))
    return np.concatenate([model.forward(chunk) for chunk in chunks])


def same_bits(found: NDArray[np.float32], expected: NDArray[np.float32]) -> bool:
    return np.array_equal(found.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("numa", MATRIX_DEFAULTS)
@pytest.mark.parametrize("nodes", NODES)
def test_bits_do_not_depend_on_nodes_modes_rules_threads_or_chunks(
    path: Path, expected: tuple[list[int], NDArray[np.float32]], numa: str, nodes: int
) -> None:
    ids, bits = expected
    for threads, rules in product(THREADS, RULES):
        options: dict[str, Any] = {
            "numa": numa,
            "simulate_nodes": nodes,
            "override_tensor": rules,
        }
        with numamirror.load(path, threads=threads, **options) as model:
            for size in CHUNK_TOKENS:
                where = f"{threads} threads, {rules}, {size} at a time"
                assert same_bits(in_chunks(model, ids, size), bits), where


@pytest.mark.parametrize(
    ("nodes", "numa", "threads", "batch", "rules"),
    [
        (2, "split", 2, 4, ()),
        (4, "mirror", 4, 4, ()),
        (8, "auto", 8, 2, (r"ffn=NODE7,attn_[qk]=MIRROR",)),
        (2, "off", 3, 1, ()),
        (4, "split", 1, 8, (r"token_embd=NODE2",)),
        (2, "interleave", 2, 2, (r"ffn_(up|gate)=MMAP",)),
    ],
)
def test_the_real_model_has_the_same_bits(
    nodes: int, numa: str, threads: int, batch: int, rules: tuple[str, ...]
) -> None:
    path = default_model.find()
    ids = feeding.random_ids(49152, 40)
    with numamirror.load(path, threads=1, numa="off") as model:
        bits = model.logits(ids)
    options: dict[str, Any] = {
        "simulate_nodes": nodes,
        "numa": numa,
        "override_tensor": rules,
    }
    with numamirror.load(path, threads=threads, threads_batch=batch, **options) as model:
        for size in (1, 7, 64):
            assert same_bits(in_chunks(model, ids, size), bits), f"{size} at a time"


def test_defaults_and_rules_give_buffers(path: Path) -> None:
    options = {"simulate_nodes": 2, "threads": 2}
    rules = (r"ffn_(up|gate)=NODE1,attn_norm=NODE0", r"ffn_up=MIRROR", r"nothing=CPU")
    placement = prepare(open_model(path), override_tensor=rules, **options).placement
    buffers = {tensor.name: tensor.buffer for tensor in placement.tensors}
    assert buffers["blk.0.ffn_up.weight"] == buffers["blk.0.ffn_gate.weight"] == "NODE1"
    assert buffers["blk.0.attn_norm.weight"] == "NODE0"
    assert buffers["blk.0.ffn_norm.weight"] == "MIRROR"
    assert buffers["blk.0.attn_q.weight"] == "SPLIT"
    lines = placement.rules.warning_lines()
    assert [line.split("'")[1] for line in lines] == ["nothing=CPU", "ffn_up=MIRROR"]
    mirrored = prepare(open_model(path), numa="mirror", **options).placement
    assert {tensor.buffer for tensor in mirrored.tensors} == {"MIRROR"}


def test_memory_is_once_split_and_once_a_node_mirrored(path: Path) -> None:
    n_tensors = len(open_model(path).tensors)

    def weights(**options: Any) -> tuple[int, ...]:  # noqa: ANN401
        return prepare(open_model(path), threads=4, **options).needs.weights_bytes

    (once,) = weights(numa="off")
    for nodes in (2, 4):
        assert weights(numa="mirror", simulate_nodes=nodes) == (once,) * nodes
        split = weights(numa="split", simulate_nodes=nodes)
        assert len(split) == nodes
        # vectors are mirrored, and each tensor's part starts at a page
        assert once < sum(split) <= once + nodes * n_tensors * PAGE_BYTES


def test_a_buffer_that_is_not_there_is_refused_with_the_list(path: Path) -> None:
    with pytest.raises(RequestError, match=r"unknown buffer 'NODE2', expected one of .*NODE1"):
        prepare(open_model(path), simulate_nodes=2, override_tensor=["ffn=NODE2"])


def test_what_does_not_fit_is_refused_with_its_parts() -> None:
    needs = MemoryNeeds((3 << 30, 2 << 30), (1 << 30, 0), 1 << 30)
    check_fits(needs, 7 << 30)
    check_fits(needs, None)
    with pytest.raises(OutOfNodeMemoryError, match=r"6\.00 GiB available, needed 7\.00 GiB"):
        check_fits(needs, 6 << 30)
