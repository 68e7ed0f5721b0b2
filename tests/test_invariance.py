"""Promise 1: logits have the same bits however the work is cut.

Threads, prompt chunks, company in the batch, one token at a time: every combination on tiny
models of every weight type, each value at least once on the real one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import feeding
import numamirror
import numpy as np
import pytest
import tiny_gguf
from numamirror import _core, default_model
from numpy.typing import NDArray

THREADS = (1, 2, 3, 4)
CHUNK_TOKENS = (1, 7, 64, 512)
CACHE_TYPES = ("f16", "f32")
QUANTS = [quant["name"] for quant in _core.quant_types()]

SHORT_TOKENS = 150
"""Crosses two borders of 64-position cache blocks."""

LONG_TOKENS = 1300
"""Crosses the border of a 1,024-position attention chunk."""

COMPANY_TOKENS = (70, 33)
"""The two other sequences of a batch of three."""


def write_tiny(folder: Path, quant: str) -> Path:
    """A model with odd row counts, grouped heads and a context for the long sequence."""
    return tiny_gguf.write_llama(
        folder / f"{quant}.gguf",
        quant=quant,
        n_embd=96,
        n_ff=160,
        n_head=6,
        n_head_kv=2,
        n_vocab=331,
        n_ctx=2048,
        tied=False,
        seed=3,
    )


def load(path: Path, threads: int, chunk_tokens: int, cache_type: str = "f16") -> numamirror.Model:
    """Load with room for three sequences of the longest kind."""
    return numamirror.load(
        path,
        threads=threads,
        threads_batch=threads,
        ubatch_size=chunk_tokens,
        parallel=3,
        ctx_size=1344,
        cache_type_k=cache_type,
        cache_type_v=cache_type,
    )


def assert_same_bits(found: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    """Equality of bits, so that -0.0 is not 0.0."""
    assert found.dtype == expected.dtype == np.float32
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


def in_company(model: numamirror.Model, ids: list[int], chunk_tokens: int) -> NDArray[np.float32]:
    """Logits of `ids` as the middle one of three sequences fed together, in batches of a chunk."""
    first, last = (feeding.random_ids(model.n_vocab, n, seed=n) for n in COMPANY_TOKENS)
    return feeding.forward(model, feeding.dealt([first, ids, last]), chunk_tokens)[1]


@pytest.mark.parametrize("quant", QUANTS)
@pytest.mark.parametrize("cache_type", CACHE_TYPES)
def test_every_combination_on_a_tiny_model(tmp_path: Path, quant: str, cache_type: str) -> None:
    path = write_tiny(tmp_path, quant)
    with load(path, 1, 512, cache_type) as model:
        ids = feeding.random_ids(model.n_vocab, SHORT_TOKENS)
        expected = model.logits(ids)
    for threads, chunk_tokens in product(THREADS, CHUNK_TOKENS):
        with load(path, threads, chunk_tokens, cache_type) as model:
            assert_same_bits(model.logits(ids), expected)
            assert_same_bits(in_company(model, ids, chunk_tokens), expected)


@pytest.fixture(scope="module", params=["F16", "Q4_1"])
def long_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("long"), request.param)


@pytest.fixture(scope="module")
def long_expected(long_path: Path) -> tuple[list[int], NDArray[np.float32]]:
    with load(long_path, 1, 512) as model:
        ids = feeding.random_ids(model.n_vocab, LONG_TOKENS)
        return ids, model.logits(ids)


@pytest.mark.parametrize(("threads", "chunk_tokens"), [(1, 1), (2, 7), (3, 64), (4, 512)])
def test_past_the_border_of_an_attention_chunk(
    long_path: Path,
    long_expected: tuple[list[int], NDArray[np.float32]],
    threads: int,
    chunk_tokens: int,
) -> None:
    ids, expected = long_expected
    with load(long_path, threads, chunk_tokens) as model:
        assert_same_bits(model.logits(ids), expected)
        assert_same_bits(in_company(model, ids, chunk_tokens), expected)


@pytest.fixture
def tiny_model(tmp_path: Path) -> Iterator[numamirror.Model]:
    with load(write_tiny(tmp_path, "Q4_0"), 2, 64) as model:
        yield model


def test_which_logits_are_wanted_changes_none(tiny_model: numamirror.Model) -> None:
    ids = feeding.random_ids(tiny_model.n_vocab, SHORT_TOKENS)
    expected = tiny_model.logits(ids)
    for sequence_id, wanted_every in enumerate((1, 3, SHORT_TOKENS)):
        items = feeding.sequence(sequence_id, ids, wanted_every)
        found = feeding.forward(tiny_model, items, 64)[sequence_id]
        assert_same_bits(found, expected[(SHORT_TOKENS - 1) % wanted_every :: wanted_every])


def test_order_inside_a_batch_changes_none(tiny_model: numamirror.Model) -> None:
    ids = feeding.random_ids(tiny_model.n_vocab, 20)
    expected = tiny_model.logits(ids)
    items = feeding.dealt([ids, ids[:9], ids])
    found = tiny_model.forward(items)
    for item, row in zip(items, found, strict=True):
        assert_same_bits(row, expected[item[1]])


def test_prompt_then_tokens_is_one_sequence(tiny_model: numamirror.Model) -> None:
    ids = feeding.random_ids(tiny_model.n_vocab, SHORT_TOKENS)
    expected = tiny_model.logits(ids)
    items = feeding.sequence(0, ids)
    prompt = feeding.forward(tiny_model, items[:61], 61)[0]
    tokens = feeding.forward(tiny_model, items[61:], 1)[0]
    assert_same_bits(np.concatenate([prompt, tokens]), expected)


def test_decode_and_prompt_threads_may_differ(tmp_path: Path) -> None:
    path = write_tiny(tmp_path, "Q8_0")
    with load(path, 1, 64) as model:
        ids = feeding.random_ids(model.n_vocab, SHORT_TOKENS)
        expected = model.logits(ids)
    with numamirror.load(path, threads=3, threads_batch=2, ubatch_size=64) as model:
        items = feeding.sequence(0, ids)
        found = feeding.forward(model, items[:64], 64)[0]
        assert_same_bits(found, expected[:64])
        assert_same_bits(feeding.forward(model, items[64:], 1)[0], expected[64:])


def test_a_second_load_gives_the_same_bits(tmp_path: Path) -> None:
    path = write_tiny(tmp_path, "Q4_1")
    with load(path, 2, 64) as one, load(path, 2, 64) as two:
        ids = feeding.random_ids(one.n_vocab, SHORT_TOKENS)
        expected = one.logits(ids)
        assert_same_bits(two.logits(ids), expected)
        assert_same_bits(one.logits(ids), expected)


REAL_TOKENS = 80
"""Crosses one cache block; long enough for chunks of 1, 7 and 64 to differ."""


@pytest.fixture(scope="module")
def real_expected() -> dict[str, NDArray[np.float32]]:
    expected = {}
    for cache_type in CACHE_TYPES:
        with load(default_model.find(), 1, 512, cache_type) as model:
            expected[cache_type] = model.logits(feeding.random_ids(model.n_vocab, REAL_TOKENS))
    return expected


@pytest.mark.parametrize(
    ("threads", "chunk_tokens", "cache_type"),
    [(1, 64, "f16"), (2, 7, "f32"), (3, 512, "f16"), (4, 1, "f16")],
)
def test_the_real_model(
    real_expected: dict[str, NDArray[np.float32]], threads: int, chunk_tokens: int, cache_type: str
) -> None:
    with load(default_model.find(), threads, chunk_tokens, cache_type) as model:
        ids = feeding.random_ids(model.n_vocab, REAL_TOKENS)
        assert_same_bits(model.logits(ids), real_expected[cache_type])
        assert_same_bits(in_company(model, ids, chunk_tokens), real_expected[cache_type])
