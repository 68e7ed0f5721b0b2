"""Split files: any shard opens the whole, and shards that don't belong together are refused."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import tiny_gguf
from gguf import GGUFWriter
from gguf.constants import GGUFValueType
from gguf_bytes import GgufBytes
from numamirror.errors import ModelFileError
from numamirror.gguf_file import ModelFile, open_model

T = GGUFValueType


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return tiny_gguf.write_llama(tmp_path / "m.gguf", tokenizer="bpe")


def read_tensor_bytes(model: ModelFile) -> dict[str, bytes]:
    found = {}
    for record in model.tensors.values():
        with record.path.open("rb") as file:
            file.seek(record.offset)
            found[record.name] = file.read(record.n_bytes)
    return found


@pytest.mark.parametrize("n_shards", [2, 3, 21])
@pytest.mark.parametrize("empty_first", [False, True])
def test_any_shard_opens_the_whole(whole: Path, n_shards: int, empty_first: bool) -> None:
    shards = tiny_gguf.split(whole, n_shards, empty_first=empty_first)
    wanted = open_model(whole)
    for shard in (shards[0], shards[1], shards[-1]):
        found = open_model(shard)
        assert found.paths == tuple(shards)
        assert found.complete
        assert list(found.tensors) == list(wanted.tensors)
        assert read_tensor_bytes(found) == read_tensor_bytes(wanted)
        assert found.metadata["tokenizer.ggml.tokens"] == wanted.metadata["tokenizer.ggml.tokens"]
        assert found.metadata.get_int("llama.block_count") == 2
        assert shards[-1].name in found.describe()


def test_shards_that_gguf_wrote_itself_open(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "w.gguf", "llama", split_max_tensors=2)
    for index in range(5):
        writer.add_tensor(f"t{index}", np.full((2, 32), index, np.float32))
    tiny_gguf.finish(writer)
    model = open_model(tmp_path / "w-00002-of-00003.gguf")
    assert len(model.tensors) == 5
    assert read_tensor_bytes(model)["t3"] == np.full((2, 32), 3, np.float32).tobytes()


def refuse(path: Path, message: str) -> ModelFileError:
    with pytest.raises(ModelFileError, match=message) as info:
        open_model(path)
    assert info.value.hint is not None
    return info.value


def test_a_missing_shard_is_named(whole: Path) -> None:
    shards = tiny_gguf.split(whole, 4)
    shards[2].unlink()
    error = refuse(shards[0], "m-00003-of-00004.gguf: shard 3 of 4 is missing$")
    assert str(whole.parent) in str(error.hint)
    shards[0].unlink()
    refuse(shards[1], "m-00001-of-00004.gguf: shard 1 of 4 is missing and 1 more$")


@pytest.mark.parametrize("name", ["renamed.gguf", "m-00002-of-00003.gguf", "m-00001-of-00004.gguf"])
def test_a_renamed_shard_is_refused(whole: Path, name: str) -> None:
    shard = tiny_gguf.split(whole, 3)[0]
    ending = re.escape("-00001-of-00003.gguf")
    refuse(shard.rename(whole.with_name(name)), f"is shard 1 of 3 .* ends in {ending} was expected")


def test_a_shard_of_another_number_is_refused(whole: Path) -> None:
    shards = tiny_gguf.split(whole, 3)
    shards[1].write_bytes(shards[2].read_bytes())
    refuse(shards[0], "m-00002-of-00003.gguf: metadata 'split.no' is 2, 1 was expected")


def test_a_shard_of_another_split_is_refused(whole: Path) -> None:
    shards = tiny_gguf.split(whole, 3)
    other = tiny_gguf.split(whole, 2)
    shards[1].write_bytes(other[1].read_bytes())
    refuse(shards[0], "metadata 'split.count' is 2, 3 was expected")


def test_a_shard_of_another_model_is_refused(whole: Path) -> None:
    shards = tiny_gguf.split(whole, 3)
    small = tiny_gguf.write_llama(whole.with_name("small.gguf"), n_layer=1)
    shards[1].write_bytes(tiny_gguf.split(small, 3)[1].read_bytes())
    refuse(shards[0], "the 3 shards hold 17 tensors, 20 were expected from 'split.tensors.count'")


def test_a_tensor_in_two_shards_is_refused(whole: Path) -> None:
    shards = tiny_gguf.split(whole, 2)
    raw = shards[1].read_bytes()
    assert raw.count(b"blk.1.attn_v.weight") == 1
    shards[1].write_bytes(raw.replace(b"blk.1.attn_v.weight", b"blk.0.attn_v.weight"))
    with pytest.raises(ModelFileError, match=r"'blk.0.attn_v.weight' is in m-00001-of-00002.gguf"):
        open_model(shards[0])


def test_a_damaged_shard_is_named(whole: Path) -> None:
    shards = tiny_gguf.split(whole, 3)
    shards[2].write_bytes(shards[2].read_bytes()[:-100])
    refuse(shards[0], "m-00003-of-00003.gguf: truncated")


def test_header_only_shards_are_incomplete(whole: Path) -> None:
    shards = tiny_gguf.split(whole, 2)
    tiny_gguf.write_header_only(shards[1], shards[1])
    model = open_model(shards[0])
    assert not model.complete
    assert len(model.tensors) == 20


@pytest.mark.parametrize(
    ("no", "count", "message"),
    [
        (3, 3, "'split.no' is 3, 0 to 2 was expected"),
        (0, 2**32 - 1, "'split.count' is 4294967295, 0 to 65535 was expected"),
        (0, 999, "shard 2 of 999 is missing and 997 more"),
    ],
)
def test_impossible_numbers_are_refused(tmp_path: Path, no: int, count: int, message: str) -> None:
    file = GgufBytes(
        metadata=[("split.no", T.UINT32, no), ("split.count", T.UINT32, count)],
    )
    path = file.write(tmp_path / f"m-{no + 1:05d}-of-{count:05d}.gguf")
    with pytest.raises(ModelFileError, match=message):
        open_model(path)


def test_a_count_of_one_is_a_whole_file(tmp_path: Path) -> None:
    file = GgufBytes(metadata=[("split.count", T.UINT16, 1)])
    assert open_model(file.write(tmp_path / "any name")).complete
