"""Finds the shards of a split GGUF file and checks that they belong together.

Holds the naming rule and the `split.*` keys. Knows nothing of tensors beyond their number. Called
by `gguf_file`.

Source: llama.cpp, `llama_split_path` and `llama_split_prefix` of src/llama.cpp; docs/gguf.md of
ggml.
"""

from __future__ import annotations

import re
from pathlib import Path

from gguf.constants import Keys

from numamirror.errors import ModelFileError
from numamirror.gguf_header import Header, read_header

_SHARD_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_MAX_SHARDS = 65535  # split.count is a u16


def read_shards(opened: Header) -> tuple[Header, ...]:
    """Reads the headers of the other shards of a file.

    Args:
        opened: The header of any shard, or of a file that is not split.

    Returns:
        The headers of all shards, first shard first; `opened` alone when the file is not split.

    Raises:
        ModelFileError: A shard is missing, or does not belong to the others.
        UnsupportedError: As of `read_header`.
    """
    count = opened.metadata.get_int(Keys.Split.LLM_KV_SPLIT_COUNT, 1, maximum=_MAX_SHARDS)
    if count <= 1:
        return (opened,)
    number = opened.metadata.get_int(Keys.Split.LLM_KV_SPLIT_NO, maximum=count - 1)
    stem = _stem(opened.path, number, count)
    paths = [
        opened.path.with_name(f"{stem}-{other + 1:05d}-of-{count:05d}.gguf")
        for other in range(count)
    ]
    _check_all_there(paths)
    headers = tuple(
        opened if other == number else read_header(path) for other, path in enumerate(paths)
    )
    for other, header in enumerate(headers):
        _check_number(header, other, count)
    _check_tensor_count(headers)
    return headers


def _stem(path: Path, number: int, count: int) -> str:
    """The part of a shard's name that is common to all."""
    match = _SHARD_NAME.fullmatch(path.name)
    ending = f"-{number + 1:05d}-of-{count:05d}.gguf"
    if match is None or not path.name.endswith(ending):
        raise ModelFileError(
            f"{path}: is shard {number + 1} of {count} by its metadata, a name that ends in "
            f"{ending} was expected",
            hint="give the shards their names back: the others are found by them",
        )
    return match["stem"]


def _check_all_there(paths: list[Path]) -> None:
    missing = [number for number, path in enumerate(paths, 1) if not path.exists()]
    if missing:
        first = paths[missing[0] - 1]
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelFileError(
            f"{first}: shard {missing[0]} of {len(paths)} is missing{others}",
            hint=f"put all {len(paths)} shards into {first.parent}",
        )


def _check_number(header: Header, number: int, count: int) -> None:
    """Refuses a shard whose metadata says that it is another."""
    wanted = ((Keys.Split.LLM_KV_SPLIT_NO, number), (Keys.Split.LLM_KV_SPLIT_COUNT, count))
    for key, value in wanted:
        found = header.metadata.get_int(key)
        if found != value:
            raise ModelFileError(
                f"{header.path}: metadata {key!r} is {found}, {value} was expected from its name",
                hint="shards of different files may have got into one directory",
            )


def _check_tensor_count(headers: tuple[Header, ...]) -> None:
    key = Keys.Split.LLM_KV_SPLIT_TENSORS_COUNT
    wanted = headers[0].metadata.get_int(key)
    found = sum(len(header.tensors) for header in headers)
    if found != wanted:
        raise ModelFileError(
            f"{headers[0].path}: the {len(headers)} shards hold {found} tensors, {wanted} were "
            f"expected from {key!r}",
            hint="shards of different files may have got into one directory",
        )
