"""Stage 1: opens a GGUF file, whole or split, and says what is in it.

Holds the frozen value that all later stages start from, and the check of every tensor against the
end of its file. Reads no weight, knows no architecture. Called by `engine` and by `plan` of the
command line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from numamirror.bounds import wrong
from numamirror.errors import ModelFileError
from numamirror.gguf_header import Header, TensorInfo, read_header
from numamirror.gguf_metadata import Metadata, describe_value, shown
from numamirror.gguf_split import read_shards
from numamirror.gguf_values import FETCH_AGAIN
from numamirror.units import GIB


@dataclass(frozen=True)
class TensorRecord:
    """Where a tensor lies and what it is.

    Attributes:
        name: Its name.
        shape: Rows first, the contiguous axis last (GGUF's `ne` reversed).
        type: The name of its GGML type, e.g. "Q4_1".
        path: The file it is in.
        offset: Its first byte in that file.
        n_bytes: Its size there.
    """

    name: str
    shape: tuple[int, ...]
    type: str
    path: Path
    offset: int
    n_bytes: int


@dataclass(frozen=True, eq=False)
class ModelFile:
    """A model's file, or all its shards.

    Attributes:
        paths: The files, first shard first.
        version: GGUF version of the first.
        metadata: That of the first; the others only say which shard they are.
        tensors: Name to record, in file order.
        complete: False when a file ends with its header: good for planning, not for running.
    """

    paths: tuple[Path, ...]
    version: int
    metadata: Metadata
    tensors: Mapping[str, TensorRecord]
    complete: bool

    def require_complete(self) -> None:
        """Refuses a file without its tensor data.

        Raises:
            ModelFileError: The file is header-only.
        """
        if not self.complete:
            raise ModelFileError(
                f"{self.paths[0]}: has a header but no tensor data, so it can be planned, not run",
                hint=FETCH_AGAIN,
            )

    def describe(self) -> str:
        """The file as text: paths, metadata with long values cut short, one line a tensor."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield from (f"file {path}" for path in self.paths)
        data_gib = sum(tensor.n_bytes for tensor in self.tensors.values()) / GIB
        state = "complete" if self.complete else "header only"
        yield f"GGUF version {self.version}, {data_gib:.2f} GiB of tensors, {state}"
        yield f"metadata ({len(self.metadata)} keys)"
        for key, value in self.metadata.items():
            yield f"  {shown(key)[1:-1]}: {describe_value(value)}"
        yield f"tensors ({len(self.tensors)})"
        for tensor in self.tensors.values():
            shape = " x ".join(map(str, tensor.shape))
            place = f"{tensor.n_bytes} bytes at {tensor.offset}"
            if len(self.paths) > 1:
                place += f" of {tensor.path.name}"
            yield f"  {shown(tensor.name)[1:-1]}: {tensor.type} {shape}, {place}"


def open_model(path: str | Path) -> ModelFile:
    """Opens a model's file; of a split one any shard will do.

    Every count, length and offset is checked, so what is returned lies inside the files.

    Args:
        path: A GGUF file of version 2 or 3, little-endian.

    Returns:
        What is in it.

    Raises:
        ModelFileError: A file is missing, can't be read, is no GGUF, truncated or damaged.
        UnsupportedError: A version, byte order or tensor type that is not read here.
        RequestError: `path` is none.
    """
    if not isinstance(path, str | Path):
        raise wrong("path", path, "the path of a .gguf file")
    headers = read_shards(read_header(Path(path)))
    tensors: dict[str, TensorRecord] = {}
    for header in headers:
        for record in _records(header):
            if record.name in tensors:
                raise ModelFileError(
                    f"{header.path}: tensor {shown(record.name)} is in "
                    f"{tensors[record.name].path.name} as well"
                )
            tensors[record.name] = record
    return ModelFile(
        paths=tuple(header.path for header in headers),
        version=headers[0].version,
        metadata=headers[0].metadata,
        tensors=MappingProxyType(tensors),
        complete=not any(map(_is_header_only, headers)),
    )


def _is_header_only(header: Header) -> bool:
    """Whether tensor data is due and the file ends before its first byte."""
    return bool(header.tensors) and header.file_bytes <= header.data_start


def _records(header: Header) -> Iterator[TensorRecord]:
    """The tensors of one file; refuses one that ends past the end of the file."""
    if not _is_header_only(header):
        _check_extent(header)
    for tensor in header.tensors:
        yield TensorRecord(
            name=tensor.name,
            shape=tensor.dims[::-1],
            type=tensor.type,
            path=header.path,
            offset=header.data_start + tensor.offset,
            n_bytes=tensor.n_bytes,
        )


def _check_extent(header: Header) -> None:
    def end(tensor: TensorInfo) -> int:
        return header.data_start + tensor.offset + tensor.n_bytes

    past = [tensor for tensor in header.tensors if end(tensor) > header.file_bytes]
    if past:
        first = min(past, key=end)
        raise ModelFileError(
            f"{header.path}: truncated: tensor {shown(first.name)} takes bytes "
            f"{end(first) - first.n_bytes} to {end(first)}, the file has {header.file_bytes} "
            f"of at least {max(map(end, past))}",
            hint=FETCH_AGAIN,
        )
