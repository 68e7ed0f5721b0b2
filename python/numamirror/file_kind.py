"""Says what a file that is no GGUF seems to be, from its first bytes.

Holds the marks of the files that people most often have instead. Knows nothing of models. Called by
`gguf_header` for the error about a wrong magic.
"""

from __future__ import annotations

from typing import NamedTuple

N_FIRST_BYTES = 512  # what `recognize` wants to see

_CONVERT = "convert it with llama.cpp's convert_hf_to_gguf.py"
_CONVERT_AGAIN = "convert the original model again with a current llama.cpp"
_FETCH = "fetch the file again"


class FileKind(NamedTuple):
    """What a file seems to be, with its article, and what to do about it."""

    name: str
    hint: str | None


_MAGICS: tuple[tuple[bytes, FileKind], ...] = (
    (b"lmgg", FileKind("a GGML file of before GGUF (ggml)", _CONVERT_AGAIN)),
    (b"fmgg", FileKind("a GGML file of before GGUF (ggmf)", _CONVERT_AGAIN)),
    (b"tjgg", FileKind("a GGML file of before GGUF (ggjt)", _CONVERT_AGAIN)),
    (b"algg", FileKind("a LoRA adapter of before GGUF (ggla)", _CONVERT_AGAIN)),
    (b"PK\x03\x04", FileKind("a zip archive, as PyTorch checkpoints are", _CONVERT)),
    (b"\x80\x02", FileKind("a Python pickle, as old PyTorch checkpoints are", _CONVERT)),
    (b"\x89HDF", FileKind("an HDF5 file", _CONVERT)),
    (b"\x1f\x8b", FileKind("a gzip archive", "unpack it with gunzip")),
    (b"\x28\xb5\x2f\xfd", FileKind("a zstd archive", "unpack it with unzstd")),
    (b"\xfd7zXZ\x00", FileKind("an xz archive", "unpack it with unxz")),
    (
        b"version https://git-lfs",
        FileKind("a Git LFS pointer", "fetch the file itself with git lfs pull"),
    ),
)


def recognize(first_bytes: bytes) -> FileKind | None:
    """What a file seems to be.

    Args:
        first_bytes: The first `N_FIRST_BYTES` bytes, or all of a shorter file.

    Returns:
        Its kind, or None when nothing fits.
    """
    for magic, kind in _MAGICS:
        if first_bytes.startswith(magic):
            return kind
    if first_bytes[8:10] == b'{"':
        return FileKind("a safetensors file", _CONVERT)
    text = first_bytes.lstrip().lower()
    if text.startswith((b"<!doctype html", b"<html")):
        return FileKind("a web page", "fetch the file itself: on Hugging Face from /resolve/")
    if text.startswith(b"{"):
        return FileKind("a JSON text", None)
    if first_bytes and not any(first_bytes):
        return FileKind("zeros at its start, as an unfinished download is", _FETCH)
    return None
