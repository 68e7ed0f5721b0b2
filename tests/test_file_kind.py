"""Files that are no GGUF are recognized by their first bytes."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path

import pytest
from numamirror.file_kind import recognize


@pytest.mark.parametrize(
    ("first_bytes", "word"),
    [
        (b"lmgg\x01\0\0\0", "ggml"),
        (b"tjgg\x03\0\0\0", "ggjt"),
        (b"fmgg\x01\0\0\0", "ggmf"),
        (b"algg\x01\0\0\0", "ggla"),
        (b"\x40\x01\0\0\0\0\0\0" + b'{"__metadata__":{}}', "safetensors"),
        (b"\n<!DOCTYPE html><html>", "web page"),
        (b"<html lang=en>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:", "Git LFS"),
        (b'{"model_type": "llama"}', "JSON"),
        (b"\x1f\x8b\x08\0", "gzip"),
        (b"\0" * 512, "unfinished download"),
        (pickle.dumps({"a": 1}, protocol=2), "pickle"),
    ],
)
def test_is_recognized(first_bytes: bytes, word: str) -> None:
    kind = recognize(first_bytes)
    assert kind is not None
    assert word in kind.name


def test_a_zip_is_recognized(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.pt", "w") as archive:
        archive.writestr("archive/data.pkl", b"")
    kind = recognize((tmp_path / "model.pt").read_bytes())
    assert kind is not None
    assert "zip" in kind.name


@pytest.mark.parametrize("first_bytes", [b"", b"abcdef", b"\x07", b"GGUX\3\0\0\0"])
def test_anything_else_is_not(first_bytes: bytes) -> None:
    assert recognize(first_bytes) is None
