"""The command line: finds the command, runs it, and puts every failure into words.

Holds `main` and the mapping from failures to exit codes; knows no flag and no command but by name.
A command is the module of that name in this package, imported when it is called for, with a
function `run(arguments) -> int`. stdout is data; everything else goes to stderr.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from io import TextIOWrapper

from numamirror import report
from numamirror.cli.flags import COMMANDS
from numamirror.cli.parsing import HELP_NAMES, parse, wants_traceback
from numamirror.errors import NumaMirrorError, RequestError

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE


def main_and_exit() -> None:
    """The console script: run `main` on the process's own arguments and exit with its code."""
    sys.exit(main(sys.argv[1:]))


def main(argv: Sequence[str]) -> int:
    """Run one command line.

    Args:
        argv: The words after the program's name.

    Returns:
        The exit code: 0, or 1 for a failure, 2 for a command line that can't be used, 130 after
        Ctrl-C, 141 when the reader of stdout has gone.
    """
    if sys.stdout is None:  # closed by the caller, as with >&-
        report.error("standard output is closed, expected somewhere to write to")
        return EXIT_ERROR
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that can't show a character shows ?
    try:
        code = _dispatch(argv)
        sys.stdout.flush()
    except KeyboardInterrupt:
        report.line("interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # what the interpreter still flushes at exit has no reader: send it nowhere, quietly
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return EXIT_BROKEN_PIPE
    except Exception as failure:  # the last stop: a failure becomes words
        if wants_traceback(argv, os.environ):
            report.line(traceback.format_exc().rstrip())
        report.error(*_in_words(failure))
        return EXIT_USAGE if isinstance(failure, RequestError) else EXIT_ERROR
    return code


def _dispatch(argv: Sequence[str]) -> int:
    # imported here, for `python -m numamirror.cli.reference` to be the first to import it
    from numamirror.cli.reference import command_help, overview

    if not argv:
        report.line(overview().rstrip())
        return EXIT_USAGE
    command, words = argv[0], argv[1:]
    if command in HELP_NAMES:
        sys.stdout.write(overview())
        return 0
    if command == "--version":
        import numamirror

        sys.stdout.write(f"numamirror {numamirror.__version__}\n")
        return 0
    if command not in COMMANDS:
        raise RequestError(
            f"unknown command {command!r}, expected one of {', '.join(COMMANDS)}",
            hint="numamirror --help says what they do",
        )
    arguments = parse(command, words, os.environ)
    if arguments is None:
        sys.stdout.write(command_help(command))
        return 0
    if not arguments.own.quiet:
        for note in arguments.notes:
            report.note(note)
    run: Callable[..., int] = import_module(f"numamirror.cli.{command}").run
    return run(arguments)


def _in_words(failure: Exception) -> tuple[str, str | None]:
    """Message and hint of a failure of any kind."""
    if isinstance(failure, NumaMirrorError):
        return str(failure), failure.hint
    if isinstance(failure, OSError) and failure.strerror:
        what = f"{failure.filename}: " if failure.filename is not None else ""
        return what + failure.strerror.lower(), None
    if isinstance(failure, MemoryError):
        return "not enough memory", "a smaller --ctx-size or model needs less"
    if isinstance(failure, UnicodeError):
        return f"text is not utf-8: {failure}", None
    name = type(failure).__name__
    return (
        f"internal error: {name}: {failure}",
        "the same command with -v shows where; please report it",
    )
