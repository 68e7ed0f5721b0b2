"""Import direction: a stage sees only earlier stages, in both languages.

The tables below are the order of `docs/architecture.md`. A new module is put where it belongs;
an edge upward is not allowed, not even for types.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "python" / "numamirror"
CRATE = ROOT / "rust" / "core" / "src"

PYTHON_ORDER = (
    ("errors", "_core", "units"),
    ("bounds", "token_ids"),
    ("report", "default_model", "file_kind"),
    ("gguf_metadata", "gguf_strings"),
    ("gguf_values",),
    ("gguf_header",),
    ("gguf_split",),
    ("gguf_file",),
    ("vocabulary", "content_marks", "template_sandbox", "stop_strings"),
    ("pre_tokenizer",),
    ("tokenizer", "chat_template", "sampling"),
    ("prompt", "text"),
    ("generation_request",),
    ("program",),
    ("blocks",),
    ("archs",),
    ("plan",),
    ("overrides",),
    ("placement",),
    ("compile",),
    ("load_options", "sequence"),
    ("engine",),
    ("generate",),
    ("server",),
    ("__init__",),
    ("cli",),
    ("__main__",),
)
"""Modules and packages of `numamirror`; each may import those of earlier lines."""

RUST_ORDER = (
    ("error",),
    ("sys",),
    ("topology",),
    ("workers",),
    ("memory",),
    ("quant",),
    ("packed",),
    ("isa",),
    ("mapped",),
    ("buffer",),
    ("weights",),
    ("load",),
    ("batch",),
    ("arena",),
    ("state",),
    ("ops",),
    ("program",),
    ("traffic",),
    ("candidates",),
    ("exec",),
)
"""Modules of the core crate; each may use those of earlier lines."""

Edge = tuple[str, str]
"""(who imports, what)."""


def ranks(order: Sequence[Sequence[str]]) -> dict[str, int]:
    """Line number by module."""
    return {module: rank for rank, line in enumerate(order) for module in line}


def upward(edges: set[Edge], rank: Mapping[str, int]) -> list[str]:
    """Edges that do not point to an earlier line, in words."""
    return [
        f"{who} imports {what}"
        for who, what in sorted(edges)
        if who != what and rank[what] >= rank[who]
    ]


def python_edges(package: Path = PACKAGE) -> set[Edge]:
    """All imports of one top-level module of the package by another."""
    edges: set[Edge] = set()
    for path in package.rglob("*.py"):
        who = path.relative_to(package).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text())):
            edges |= {(who, what) for what in _imported(node)}
    return edges


def _imported(node: ast.AST) -> Iterator[str]:
    """Top-level modules of the package that one statement imports; `__init__` for its own names."""
    names: list[str] = []
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module == "numamirror":
        modules = {module for line in PYTHON_ORDER for module in line}
        for alias in node.names:
            yield alias.name if alias.name in modules else "__init__"
    elif isinstance(node, ast.ImportFrom):
        names = [node.module or ""]
    for name in names:
        package, _, rest = name.partition(".")
        if package == "numamirror":
            yield rest.partition(".")[0] or "__init__"


def rust_edges(crate: Path = CRATE) -> set[Edge]:
    """All uses of one module of the crate by another; comments do not count."""
    edges: set[Edge] = set()
    for path in crate.rglob("*.rs"):
        who = path.relative_to(crate).parts[0].removesuffix(".rs")
        if who == "lib":
            continue
        code = re.sub(r"//[^\n]*", "", path.read_text())
        for group, single in re.findall(r"\bcrate::(?:\{([^;]*)\};|(\w+))", code):
            names = re.findall(r"(?:^|,)\s*(\w+)", _without_inner(group)) if group else [single]
            edges |= {(who, what) for what in names}
    return edges


def _without_inner(group: str) -> str:
    """A `use` group with nested groups cut out."""
    while (shorter := re.sub(r"\{[^{}]*\}", "", group)) != group:
        group = shorter
    return group


def test_python_imports_point_to_earlier_stages() -> None:
    edges, rank = python_edges(), ranks(PYTHON_ORDER)
    unplaced = {module for edge in edges for module in edge} - rank.keys()
    assert not unplaced, f"say in PYTHON_ORDER where these belong: {sorted(unplaced)}"
    assert not upward(edges, rank)


def test_every_python_module_has_a_place() -> None:
    found = {path.stem for path in PACKAGE.glob("*.py")}
    found |= {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert found <= ranks(PYTHON_ORDER).keys()


def test_rust_uses_point_to_earlier_modules() -> None:
    edges, rank = rust_edges(), ranks(RUST_ORDER)
    unplaced = {module for edge in edges for module in edge} - rank.keys()
    assert not unplaced, f"say in RUST_ORDER where these belong: {sorted(unplaced)}"
    assert edges, "no uses found: the pattern is broken"
    assert not upward(edges, rank)


def test_the_core_crate_knows_no_python() -> None:
    manifest = (ROOT / "rust" / "core" / "Cargo.toml").read_text()
    assert "pyo3" not in manifest


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("use crate::quant;", {"quant"}),
        ("use crate::{\n    error::{Error, Result},\n    exec,\n};", {"error", "exec"}),
        ("let x = crate::ops::add();", {"ops"}),
        ("// use crate::exec;", set()),
    ],
)
def test_rust_uses_are_found(tmp_path: Path, source: str, expected: set[str]) -> None:
    (tmp_path / "isa").mkdir()
    (tmp_path / "isa" / "mod.rs").write_text(source)
    assert rust_edges(tmp_path) == {("isa", what) for what in expected}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from numamirror.errors import RequestError", {"errors"}),
        ("from numamirror import errors", {"errors"}),
        ("from numamirror import load", {"__init__"}),
        ("import numamirror.archs.llama", {"archs"}),
        ("def f():\n    from numamirror._core import Engine", {"_core"}),
        ("import numpy", set()),
    ],
)
def test_python_imports_are_found(tmp_path: Path, source: str, expected: set[str]) -> None:
    (tmp_path / "plan.py").write_text(source)
    assert python_edges(tmp_path) == {("plan", what) for what in expected}


def test_an_upward_edge_is_reported() -> None:
    assert upward({("quant", "exec"), ("exec", "quant")}, ranks(RUST_ORDER)) == [
        "quant imports exec"
    ]
