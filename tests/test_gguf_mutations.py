"""Structured but wrong files: each opens or is refused by an error of ours, in little memory."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_gguf
from gguf.constants import GGMLQuantizationType
from gguf_bytes import GgufBytes, TensorEntry
from gguf_strategies import FLAT_VALUES, MUTATIONS, NESTED_VALUES, keyed, mutate
from hypothesis import given, settings
from hypothesis import strategies as st
from numamirror.errors import NumaMirrorError
from numamirror.gguf_file import open_model

GOOD = GgufBytes(
    tensors=[TensorEntry("t", [32, 2], int(GGMLQuantizationType.Q8_0), 0)], data=bytes(96)
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf_mutations")


@pytest.fixture(scope="module")
def tiny_bytes(folder: Path) -> bytes:
    path = folder / "tiny.gguf"
    tiny_gguf.write_llama(path, tokenizer="bpe", quant={"attn": "Q4_1", "ffn": "Q8_0"})
    return path.read_bytes()


def open_or_refuse(path: Path) -> None:
    """Opens a file that may be wrong: any error must be ours, and little memory be used."""
    message = f"{path}: opened"
    tracemalloc.start()
    try:
        model = open_model(path)
        model.describe()
        size = path.stat().st_size if model.complete else 2**63
        assert all(t.offset + t.n_bytes <= size for t in model.tensors.values())
    except NumaMirrorError as error:
        message = str(error)
    finally:
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert len(message) < 1000
    assert peak_bytes < 2_000_000


@settings(deadline=None, max_examples=300)
@given(st.lists(MUTATIONS, min_size=1, max_size=3))
def test_a_mutated_model_opens_or_is_refused(
    folder: Path, tiny_bytes: bytes, mutations: list[tuple[str, int, int]]
) -> None:
    raw = tiny_bytes
    for kind, position, value in mutations:
        raw = mutate(raw, kind, position, value) or b"G"
    path = folder / "mutated.gguf"
    path.write_bytes(raw)
    open_or_refuse(path)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(FLAT_VALUES | NESTED_VALUES, max_size=4), st.lists(MUTATIONS, min_size=1, max_size=2)
)
def test_mutated_metadata_of_all_types_opens_or_is_refused(
    folder: Path, values: list[tuple[int, object]], mutations: list[tuple[str, int, int]]
) -> None:
    raw = replace(GOOD, metadata=keyed(values)).encode()
    for kind, position, value in mutations:
        raw = mutate(raw, kind, position, value) or b"G"
    path = folder / "mutated.gguf"
    path.write_bytes(raw)
    open_or_refuse(path)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_noise_after_a_magic_and_a_version_is_refused(folder: Path, noise: bytes) -> None:
    path = folder / "noise.gguf"
    path.write_bytes(b"GGUF\3\0\0\0" + noise)
    open_or_refuse(path)
