"""Whole model files: the real one and tiny ones as GGUFReader reads them, and bad ones by name."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest
import tiny_gguf
from gguf import GGUFReader
from gguf.constants import GGUFValueType
from gguf_bytes import ArrayValue, GgufBytes
from numamirror import default_model
from numamirror.errors import ModelFileError
from numamirror.gguf_file import open_model

T = GGUFValueType
N_VOCAB = 262_144
N_MERGES = 500_000
OPEN_SECONDS = 0.5  # what is promised for N_VOCAB tokens; the tests only guard against a hang


def assert_same_as_gguf(path: Path) -> None:
    model = open_model(path)
    reader = GGUFReader(path)
    assert model.complete
    assert model.paths == (path,)
    assert model.version == 3
    fields = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert list(model.metadata) == list(fields)
    for key, field in fields.items():
        found = model.metadata[key]
        plain = found.tolist() if isinstance(found, np.ndarray) else found
        wanted = field.contents()
        assert plain == wanted, key
        assert type(plain) is type(wanted), key
    assert list(model.tensors) == [tensor.name for tensor in reader.tensors]
    for record, tensor in zip(model.tensors.values(), reader.tensors, strict=True):
        assert record.shape == tuple(reversed(tensor.shape.tolist()))
        assert record.type == tensor.tensor_type.name
        assert (record.offset, record.n_bytes) == (tensor.data_offset, tensor.n_bytes)
        assert record.path == path


def test_the_real_model_as_gguf_reads_it() -> None:
    assert_same_as_gguf(default_model.find())


@pytest.mark.parametrize("quant", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
@pytest.mark.parametrize("tokenizer", [None, "bpe"])
def test_tiny_models_as_gguf_reads_them(tmp_path: Path, quant: str, tokenizer: str | None) -> None:
    path = tmp_path / "m.gguf"
    tiny_gguf.write_llama(path, quant=quant, tokenizer=tokenizer, tied=False, head_dim=32)
    assert_same_as_gguf(path)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return tiny_gguf.write_llama(tmp_path / "tiny.gguf")


def test_a_header_only_file_opens_as_incomplete(tiny: Path, tmp_path: Path) -> None:
    path = tiny_gguf.write_header_only(tiny, tmp_path / "header.gguf")
    model = open_model(path)
    assert not model.complete
    assert list(model.tensors) == list(open_model(tiny).tensors)
    assert "header only" in model.describe()
    with pytest.raises(ModelFileError, match="no tensor data, so it can be planned, not run"):
        model.require_complete()
    open_model(tiny).require_complete()


def test_a_padded_header_only_file_opens_as_incomplete(tiny: Path) -> None:
    data_start = GGUFReader(tiny).data_offset
    tiny.write_bytes(tiny.read_bytes()[:data_start])
    assert not open_model(tiny).complete


def test_a_file_without_tensors_is_complete(tmp_path: Path) -> None:
    assert open_model(GgufBytes().write(tmp_path / "m.gguf")).complete


@pytest.mark.parametrize("n_kept", [1, 1000, 20_000])
def test_a_file_cut_in_its_data_names_the_first_tensor_past_the_end(
    tiny: Path, n_kept: int
) -> None:
    reader = GGUFReader(tiny)
    size = reader.data_offset + n_kept
    first = next(t for t in reader.tensors if t.data_offset + t.n_bytes > size)
    end = first.data_offset + first.n_bytes
    tiny.write_bytes(tiny.read_bytes()[:size])
    with pytest.raises(ModelFileError) as info:
        open_model(tiny)
    assert f"{tiny}: truncated: tensor '{first.name}' takes bytes" in str(info.value)
    assert f"to {end}, the file has {size} of at least" in str(info.value)
    assert info.value.hint is not None
    assert "fetch the file again" in info.value.hint


def test_a_file_one_byte_short_of_its_last_tensor_is_truncated(tiny: Path) -> None:
    end = max(record.offset + record.n_bytes for record in open_model(tiny).tensors.values())
    raw = tiny.read_bytes()
    tiny.write_bytes(raw[:end])
    assert open_model(tiny).complete
    tiny.write_bytes(raw[: end - 1])
    with pytest.raises(ModelFileError, match="truncated"):
        open_model(tiny)


def refuse(path: Path | str, message: str) -> ModelFileError:
    with pytest.raises(ModelFileError, match=message) as info:
        open_model(path)
    assert "\n" not in str(info.value)
    return info.value


def test_a_directory_is_refused_with_the_model_in_it(tiny: Path) -> None:
    error = refuse(tiny.parent, r"is a directory, a \.gguf file was expected$")
    assert str(tiny) in str(error.hint)


def test_a_missing_file_is_refused(tmp_path: Path, tiny: Path) -> None:
    error = refuse(tmp_path / "absent.gguf", r"absent\.gguf: no such file$")
    assert str(tiny) in str(error.hint)
    assert refuse(tmp_path / "no" / "absent.gguf", "no such file$").hint is None


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").touch()
    assert "fetch" in str(refuse(tmp_path / "m.gguf", "the file is empty$").hint)


def test_a_file_that_may_not_be_read_is_refused(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", deny)  # the tests may run as root, who may read anything
    refuse(tiny, "can't be read: permission denied$")


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refuse(tmp_path / "pipe", "not a regular file")


def test_a_path_with_a_nul_is_refused() -> None:
    refuse("a\0b", r"'a\\x00b': not a path")


def test_a_path_that_is_too_long_is_refused() -> None:
    refuse("x" * 5000, "can't be read: file name too long$")


def test_another_kind_of_file_is_recognized(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"\x20\0\0\0\0\0\0\0" + b'{"__metadata__":{}}             ')
    error = refuse(path, "not a GGUF file: it looks like a safetensors file$")
    assert "convert_hf_to_gguf" in str(error.hint)


def test_an_unknown_kind_of_file_shows_its_first_bytes(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"what\nis this")
    refuse(tmp_path / "m.gguf", "it starts with b'what', b'GGUF' was expected$")


def test_describe_says_what_is_in_the_file(tiny: Path) -> None:
    text = open_model(tiny).describe()
    assert f"file {tiny}" in text
    assert "llama.block_count: the integer 2" in text
    assert "blk.0.ffn_down.weight: Q8_0 64 x 160, 10880 bytes at" in text


@pytest.mark.parametrize("n_merges", [0, N_MERGES])
def test_a_large_vocabulary_opens_without_a_hang(tmp_path: Path, n_merges: int) -> None:
    tokens = [f"Ġtoken{index:x}é" for index in range(N_VOCAB)]
    merges = [f"Ġa{index:x} b{index}" for index in range(n_merges)]
    strings = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": merges}
    file = GgufBytes(
        metadata=[
            *((key, T.ARRAY, ArrayValue(T.STRING, items)) for key, items in strings.items()),
            ("tokenizer.ggml.scores", T.ARRAY, ArrayValue(T.FLOAT32, range(N_VOCAB))),
            ("tokenizer.ggml.token_type", T.ARRAY, ArrayValue(T.INT32, [1] * N_VOCAB)),
        ]
    )
    path = file.write(tmp_path / "m.gguf")
    start = time.perf_counter()
    model = open_model(path)
    seconds = time.perf_counter() - start
    assert model.metadata["tokenizer.ggml.tokens"] == tokens
    assert model.metadata["tokenizer.ggml.merges"] == merges
    assert model.metadata.get_ints("tokenizer.ggml.token_type", N_VOCAB) == (1,) * N_VOCAB
    assert seconds < 10 * OPEN_SECONDS
