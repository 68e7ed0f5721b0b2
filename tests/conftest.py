"""Fixtures and rules for all tests.

Holds where models come from, how the command is run, and two rules: under `make test` the package
under test is the installed wheel, and with `CI=true` a skipped test is a failed one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import hypothesis
import numamirror
import pytest
import tiny_gguf
from numamirror import _core, default_model

REPOSITORY = Path(__file__).resolve().parent.parent
IS_CI = os.environ.get("CI") == "true"
_HANG_SECONDS = 300  # guards against a hang; asserts nothing about speed

RunCli = Callable[..., subprocess.CompletedProcess[str]]

hypothesis.settings.register_profile("numamirror", deadline=None, derandomize=IS_CI)
hypothesis.settings.load_profile("numamirror")


def pytest_configure() -> None:
    """Refuse to test the source tree where the wheel was meant."""
    package = Path(numamirror.__file__)
    if os.environ.get("NUMAMIRROR_TEST_WHEEL") and package.is_relative_to(REPOSITORY / "python"):
        raise pytest.UsageError(f"the tests found {package}, expected the installed wheel")


def pytest_report_header() -> list[str]:
    """Say what is tested, and which instruction sets this CPU leaves untested."""
    lines = [f"numamirror: {Path(numamirror.__file__).parent}"]
    missing = [name for name, detected in _core.isas() if not detected]
    if missing:
        lines.append(f"no tests are generated for {', '.join(missing)}: this cpu lacks them")
    return lines


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With CI=true, make a skipped test a failed one."""
    report = yield
    if IS_CI and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, and CI=true: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """With CI=true, make a skipped module a failed one."""
    report = yield
    if IS_CI and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"skipped, and CI=true: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the source tree."""
    return REPOSITORY


@pytest.fixture(scope="session")
def real_model_path() -> Path:
    """SmolLM2-135M-Instruct, from the installed package."""
    return default_model.find()


@pytest.fixture(scope="session")
def tiny_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama of a few small layers with random weights and a vocabulary."""
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    tiny_gguf.write_llama(path, tokenizer="bpe")
    return path


@pytest.fixture
def run_cli(tmp_path: Path) -> RunCli:
    """Run `numamirror WORDS...` as a process: `run_cli("plan", path, stdin="", env={...})`."""

    def run(
        *words: str | Path, stdin: str = "", env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("NUMAMIRROR_") or name == "NUMAMIRROR_REQUIRE_ISA"
        }
        return subprocess.run(
            [sys.executable, "-m", "numamirror", *map(str, words)],
            input=stdin,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=inherited | {"NO_COLOR": "1"} | (env or {}),
            timeout=_HANG_SECONDS,
            check=False,
        )

    return run
