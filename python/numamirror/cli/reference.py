"""Help texts and docs/cli.md, both made from the table of flags.

Knows how flags read on a page; knows no flag by name. Used by `numamirror.cli.main` for `--help`;
`python -m numamirror.cli.reference` prints docs/cli.md (`make docs`).
"""

from __future__ import annotations

import sys
import textwrap
from itertools import groupby

from numamirror.cli.flags import COMMANDS, IGNORED_FLAGS, Destination, Flag, flags_of

_NAMES_WIDTH = 36
_HELP_WIDTH = 100
_MARKDOWN_HEAD = """\
# Commands and flags

<!-- Made by `make docs` from python/numamirror/cli/flags.py: do not edit. -->

`numamirror COMMAND [MODEL] [flags]`, or `python -m numamirror` in its place.

| command | what it does |
| --- | --- |"""
_MARKDOWN_RULES = """
The command line comes before the environment, the environment before the default; an empty variable
counts as unset, and so does one whose flag can't go with one on the command line. `-h` and `--help`
work everywhere; `numamirror --version` prints the version. A flag marked *load* is an
option of `numamirror.load` under its long name with underscores, one marked *generate* an argument
of `numamirror.generate` and `numamirror.stream_generate`."""
_MARKDOWN_COLUMNS = """\
| flag | value | default | meaning | environment |
| --- | --- | --- | --- | --- |"""
_MARKDOWN_IGNORED = """
## Accepted without effect

Flags of llama.cpp and ik_llama.cpp that have no meaning here; each gets a note on stderr.

| flag | takes | why it does nothing |
| --- | --- | --- |"""
_ENVIRONMENT_NOTE = "NUMAMIRROR_ and its long name in capitals, such as NUMAMIRROR_MODEL."


def overview() -> str:
    """The text of `numamirror --help`."""
    width = max(map(len, COMMANDS))
    lines = ["usage: numamirror COMMAND [MODEL] [flags]", "", "commands:"]
    lines += [f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items()]
    lines += ["", "flags:", "  -h, --help  print this, or the flags of a command"]
    lines += ["  --version   print the version", ""]
    lines += ["numamirror COMMAND --help lists the flags of a command."]
    return "\n".join(lines) + "\n"


def command_help(command: str) -> str:
    """The text of `numamirror COMMAND --help`."""
    flags = flags_of(command)
    model = " [MODEL]" if any(flag.is_positional for flag in flags) else ""
    lines = [f"usage: numamirror {command}{model} [flags]", "", COMMANDS[command]]
    for group, members in groupby(flags, key=lambda flag: flag.group):
        lines += ["", f"{group}:"]
        for flag in members:
            lines += _help_lines(flag)
    lines += ["", "Each flag can be set by a variable of the environment too:", _ENVIRONMENT_NOTE]
    return "\n".join(lines) + "\n"


def default_text(flag: Flag) -> str:
    """What happens when `flag` is not given, in words; empty when that is nothing."""
    if flag.default_note is not None:
        return flag.default_note
    if flag.default is None or flag.kind.is_switch:
        return ""
    if isinstance(flag.default, tuple):
        return ",".join(map(str, flag.default))
    return str(flag.default)


def markdown() -> str:
    """The text of docs/cli.md."""
    lines = [_MARKDOWN_HEAD]
    lines += [f"| [`{name}`](#{name}) | {summary} |" for name, summary in COMMANDS.items()]
    lines += [_MARKDOWN_RULES]
    for command in COMMANDS:
        lines += _markdown_table(command)
    lines += [_MARKDOWN_IGNORED]
    for ignored in IGNORED_FLAGS:
        names = ", ".join(f"`{name}`" for name in ignored.names)
        lines.append(f"| {names} | {ignored.arity.value} | {ignored.reason} |")
    return "\n".join(lines) + "\n"


def _help_lines(flag: Flag) -> list[str]:
    metavar = f" {flag.kind.metavar}" if flag.kind.metavar else ""
    names = f"  {', '.join(flag.names)}{metavar}"
    default = default_text(flag)
    text = f"{flag.help} (default: {default})" if default else flag.help
    indent = " " * _NAMES_WIDTH
    wrapped = textwrap.wrap(text, _HELP_WIDTH, initial_indent=indent, subsequent_indent=indent)
    if len(names) >= _NAMES_WIDTH:
        return [names, *wrapped]
    return [names + wrapped[0][len(names) :], *wrapped[1:]]


def _markdown_table(command: str) -> list[str]:
    marks = {Destination.LOAD: " *load*", Destination.GENERATE: " *generate*"}
    lines = ["", f"## {command}", "", COMMANDS[command].capitalize() + ".", ""]
    lines += [_MARKDOWN_COLUMNS]
    for flag in flags_of(command):
        names = ", ".join(f"`{name}`" for name in flag.names)
        metavar = f"`{flag.kind.metavar}`".replace("|", "\\|") if flag.kind.metavar else ""
        meaning = flag.help + marks.get(flag.destination, "")
        cells = (names, metavar, default_text(flag), meaning, f"`{flag.variable}`")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


if __name__ == "__main__":
    sys.stdout.write(markdown())
