"""Committed documents against what they are made from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from numamirror.cli.flags import COMMANDS, FLAGS
from numamirror.cli.reference import command_help, markdown, overview


def test_the_committed_reference_is_the_generated_one(repository: Path) -> None:
    committed = (repository / "docs" / "cli.md").read_text(encoding="utf-8")
    assert committed == markdown(), "run `make docs`"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_every_flag_of_a_command_and_no_other(command: str) -> None:
    text = command_help(command)
    for flag in FLAGS:
        is_named = re.search(rf"--{flag.long}\b(?!-)", text) is not None
        takers = {c for other in FLAGS if other.long == flag.long for c in other.commands}
        mentioned_by_default = f"as --{flag.long}" in text
        assert is_named == (command in takers) or mentioned_by_default, flag.long


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_a_screen_of_100_columns(command: str) -> None:
    assert max(map(len, command_help(command).splitlines())) <= 100


def test_the_overview_names_every_command() -> None:
    assert all(re.search(rf"^  {command} ", overview(), re.MULTILINE) for command in COMMANDS)


def test_every_command_of_the_table_has_its_module(repository: Path) -> None:
    folder = repository / "python" / "numamirror" / "cli"
    assert all((folder / f"{command}.py").is_file() for command in COMMANDS)


def test_links_between_documents_lead_somewhere(repository: Path) -> None:
    documents = [*repository.glob("*.md"), *(repository / "docs").glob("*.md")]
    assert documents
    for document in documents:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text("utf-8")):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_flags_in_the_readme_exist(repository: Path) -> None:
    names = {name for flag in FLAGS for name in flag.names} | {"--no-deps", "--rounds", "--cap-add"}
    text = (repository / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) <= names
