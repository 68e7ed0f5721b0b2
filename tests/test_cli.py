"""The command as a user meets it: a process with stdout, stderr and an exit code."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pytest
import tiny_gguf
from conftest import RunCli
from numamirror import cli
from numamirror.cli import plan as plan_command
from numamirror.cli.flags import COMMANDS
from numamirror.cli.json_output import plain
from numamirror.errors import ModelFileError, NumaMirrorError, RequestError


def assert_refused(
    result: subprocess.CompletedProcess[str], code: int, *words: str, has_hint: bool = False
) -> None:
    """One line that names the cause, nothing on stdout, the right code, no traceback."""
    assert result.stdout == ""
    assert result.returncode == code, result.stderr
    lines = [line for line in result.stderr.splitlines() if not line.startswith("hint: ")]
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    assert all(word in lines[0] for word in words), lines[0]
    if has_hint:
        assert "\nhint: " in result.stderr


# --- help, version, usage


def test_help_and_version_go_to_stdout(run_cli: RunCli) -> None:
    for words in (["--help"], ["-h"], ["--version"], ["generate", "--help"]):
        result = run_cli(*words)
        assert (result.returncode, result.stderr) == (0, "")
        assert "numamirror" in result.stdout


def test_no_command_is_a_usage_error_with_the_overview(run_cli: RunCli) -> None:
    result = run_cli()
    assert (result.returncode, result.stdout) == (2, "")
    assert "commands:" in result.stderr


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (["frobnicate"], "unknown command 'frobnicate'"),
        (["generate", "-p", "x", "-t", "0"], "--threads: found '0'"),
        (["generate"], "found no text"),
        (["generate", "-p", "x", "-f", "y"], "--prompt and --file: found both"),
        (["generate", "--nonsense"], "unknown flag '--nonsense'"),
        (["bench", "-p", "0", "-n", "0"], "nothing to measure"),
        (["topology", "extra"], "unexpected word 'extra'"),
    ],
)
def test_usage_errors_are_one_line_and_exit_2(
    run_cli: RunCli, words: Sequence[str], cause: str
) -> None:
    assert_refused(run_cli(*words), 2, cause)


@pytest.mark.parametrize("command", ["generate", "plan", "tokenize", "bench", "perplexity"])
def test_bad_files_are_one_line_and_exit_1(run_cli: RunCli, command: str, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("some text", encoding="utf-8")
    words = {"bench": ["-p", "4", "-n", "0"], "plan": []}.get(command, ["-f", text])
    bad_magic = tmp_path / "bad.gguf"
    bad_magic.write_bytes(b"GGUX" + bytes(60))
    assert_refused(run_cli(command, tmp_path / "gone.gguf", *words), 1, "gone.gguf")
    assert_refused(run_cli(command, tmp_path, *words), 1, tmp_path.name)
    assert_refused(run_cli(command, bad_magic, *words), 1, "bad.gguf")


def test_a_truncated_model_is_refused(
    run_cli: RunCli, tiny_model_path: Path, tmp_path: Path
) -> None:
    data = tiny_model_path.read_bytes()
    for n_bytes in (0, 3, 20, len(data) // 2, len(data) - 1):
        path = tmp_path / f"cut-{n_bytes}.gguf"
        path.write_bytes(data[:n_bytes])
        assert_refused(run_cli("generate", path, "--raw", "-p", "x"), 1, path.name)


def test_a_traceback_comes_with_v_only(run_cli: RunCli, tmp_path: Path) -> None:
    words = ["plan", str(tmp_path / "gone.gguf")]
    assert "Traceback" not in run_cli(*words).stderr
    assert "Traceback" in run_cli(*words, "-v").stderr
    assert "Traceback" in run_cli(*words, env={"NUMAMIRROR_VERBOSE": "1"}).stderr


def test_text_that_is_not_utf8_is_named(run_cli: RunCli, tmp_path: Path) -> None:
    path = tmp_path / "latin1"
    path.write_bytes(b"caf\xe9")
    assert_refused(run_cli("tokenize", "-f", path), 2, "latin1: found byte 0xe9 at offset 3")


def test_ignored_flags_get_a_note_and_quiet_silences_it(
    run_cli: RunCli, tiny_model_path: Path
) -> None:
    words = ["generate", tiny_model_path, "--raw", "-p", "a", "-n", "1", "-ngl", "99", "-fa"]
    noted = run_cli(*words)
    assert noted.returncode == 0, noted.stderr
    assert noted.stderr.count("note: -ngl has no effect") == 1
    assert noted.stderr.count("note: -fa has no effect") == 1
    assert run_cli(*words, "-q").stderr == ""


# --- failures of every kind become words (in this process)


@pytest.mark.parametrize(
    ("failure", "code", "message", "hint"),
    [
        (ModelFileError("m.gguf: bad", hint="fetch it"), 1, "m.gguf: bad", "fetch it"),
        (RequestError("--x: found 1, expected 2"), 2, "--x: found 1, expected 2", None),
        (NumaMirrorError("two\nlines"), 1, "two\\nlines", None),
        (FileNotFoundError(2, "No such file or directory", "p"), 1, "p: no such file", None),
        (MemoryError(), 1, "not enough memory", "a smaller --ctx-size"),
        (ZeroDivisionError("x"), 1, "internal error: ZeroDivisionError: x", "the same command"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), 1, "text is not utf-8", None),
    ],
)
def test_failures_become_one_line(
    failure: Exception,
    code: int,
    message: str,
    hint: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(_arguments: object) -> NoReturn:
        raise failure

    monkeypatch.setattr(plan_command, "run", fail)
    assert cli.main(["plan"]) == code
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == ""
    assert lines[0].startswith(f"error: {message}")
    assert len(lines) == (1 if hint is None else 2)
    assert hint is None or lines[1].startswith(f"hint: {hint}")


def test_ctrl_c_is_one_line_and_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(_arguments: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(plan_command, "run", interrupt)
    assert cli.main(["plan"]) == 128 + signal.SIGINT
    assert capsys.readouterr() == ("", "interrupted\n")


def test_a_reader_that_has_gone_is_no_error(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with (tmp_path / "err").open("wb") as errors:
        code = subprocess.run(
            [sys.executable, "-m", "numamirror", "--help"],
            stdout=writer,
            stderr=errors,
            check=False,
        ).returncode
    os.close(writer)
    assert code == 128 + signal.SIGPIPE
    assert (tmp_path / "err").read_bytes() == b""


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_modules_have_a_run(command: str) -> None:
    module = __import__(f"numamirror.cli.{command}", fromlist=["run"])
    assert callable(module.run)


# --- the commands on a tiny model


def test_generate_puts_the_text_alone_on_stdout(run_cli: RunCli, tiny_model_path: Path) -> None:
    words = ["generate", tiny_model_path, "--raw", "--temp", "0", "-p", "a", "-n", "4"]
    loud, quiet = run_cli(*words), run_cli(*words, "-q")
    assert loud.returncode == 0, loud.stderr
    assert loud.stdout == quiet.stdout
    assert loud.stdout.endswith("\n")
    assert quiet.stderr == ""
    for part in ("model ", "seed ", "prompt eval time =", "       eval time =", "total time ="):
        assert part in loud.stderr
    assert "eval time" not in run_cli(*words, "--no-perf").stderr


def test_the_printed_seed_repeats_the_text(run_cli: RunCli, tiny_model_path: Path) -> None:
    words = ["generate", tiny_model_path, "--raw", "-p", "a", "-n", "8"]
    first = run_cli(*words)
    seed = next(line.split()[1] for line in first.stderr.splitlines() if line.startswith("seed"))
    assert run_cli(*words, "-s", seed).stdout == first.stdout


def test_the_end_of_the_context_is_stated(run_cli: RunCli, tiny_model_path: Path) -> None:
    words = ["generate", tiny_model_path, "--raw", "--ignore-eos", "-p", "a", "-n", "-1"]
    result = run_cli(*words, "-c", "16")
    assert result.returncode == 0, result.stderr
    assert "the context of 16 tokens is full" in result.stderr


def test_a_prompt_longer_than_the_context_is_refused(
    run_cli: RunCli, tiny_model_path: Path
) -> None:
    result = run_cli("generate", tiny_model_path, "--raw", "-c", "8", "-q", "-p", "a b " * 40)
    assert_refused(result, 1, "context", has_hint=True)


@pytest.mark.parametrize(
    ("words", "code", "cause"),
    [
        (["-sys", "x", "--raw"], 2, "a system prompt can't be used with raw"),
        (["-c", "10"], 1, "the context holds 10"),
        (["--chat-template-kwargs", '{"messages": 1}'], 2, "can't be set"),
        (["--chat-template-file", "broken"], 1, "chat template, line 1"),
        (["--chat-template-file", "failing"], 1, "chat template: "),
        (["--chat-template-file", "gone"], 2, "chat-template-file gone: no such file"),
        (["-s", "18446744073709551616"], 2, "--seed: found"),
    ],
)
def test_what_the_header_tells_is_refused_before_loading(
    run_cli: RunCli,
    tiny_model_path: Path,
    tmp_path: Path,
    words: Sequence[str],
    code: int,
    cause: str,
) -> None:
    (tmp_path / "broken").write_text("{% if %}", encoding="utf-8")
    (tmp_path / "failing").write_text("{{ 1 + 'x' }}", encoding="utf-8")
    result = run_cli("generate", poisoned(tiny_model_path, tmp_path), "-p", "hello", *words)
    assert_refused(result, code, cause)


def poisoned(model_path: Path, folder: Path) -> Path:
    """A copy whose weights can't be loaded: what is refused for another reason was not loaded."""
    path = folder / "poisoned.gguf"
    data = bytearray(model_path.read_bytes())
    data[-64:] = b"\xff" * 64
    path.write_bytes(data)
    return path


def test_a_poisoned_copy_cannot_be_loaded(
    run_cli: RunCli, tiny_model_path: Path, tmp_path: Path
) -> None:
    result = run_cli("generate", poisoned(tiny_model_path, tmp_path), "-p", "hello")
    assert_refused(result, 1, "finite")


@pytest.mark.parametrize(
    ("words", "code", "cause"),
    [
        (["--chunks", "0"], 2, "--chunks: found 0"),
        ([], 1, "expected at least 1024 for chunks of 512"),
        (["-c", "2"], 2, "--ctx-size: found '2', expected a whole number from 4"),
    ],
)
def test_perplexity_refuses_before_loading(
    run_cli: RunCli,
    tiny_model_path: Path,
    tmp_path: Path,
    words: Sequence[str],
    code: int,
    cause: str,
) -> None:
    path = poisoned(tiny_model_path, tmp_path)
    assert_refused(run_cli("perplexity", path, "-f", "-", *words, stdin="a b c"), code, cause)


@pytest.mark.parametrize("command", ["generate", "perplexity", "tokenize"])
def test_a_file_without_vocabulary_is_refused_where_text_is_needed(
    run_cli: RunCli, tmp_path: Path, command: str
) -> None:
    path = tiny_gguf.write_llama(tmp_path / "no_vocab.gguf")
    assert_refused(run_cli(command, path, "-f", "-", stdin="hello"), 1, "tokenizer")


@pytest.mark.parametrize(
    ("redirection", "words", "code", "cause"),
    [
        (">&-", ["generate", "-q", "-p", "hi"], 1, "standard output is closed"),
        (">&-", ["--help"], 1, "standard output is closed"),
        ("<&-", ["generate", "-p", "-"], 2, "standard input is closed"),
        ("<&-", ["tokenize", "-f", "-"], 2, "standard input is closed"),
    ],
)
def test_closed_streams_are_one_line(
    redirection: str, words: Sequence[str], code: int, cause: str
) -> None:
    script = f'exec "$0" -m numamirror "$@" {redirection}'
    result = subprocess.run(
        ["sh", "-c", script, sys.executable, *words], capture_output=True, text=True, check=False
    )
    assert_refused(result, code, cause)


def test_every_command_can_be_quiet(run_cli: RunCli, tiny_model_path: Path) -> None:
    text = ["-p", "a"]
    for words in (["plan", tiny_model_path], ["tokenize", tiny_model_path, *text], ["topology"]):
        result = run_cli(*words, "-q", "--mlock")
        assert (result.returncode, result.stderr) == (0, "")


def test_more_threads_than_cpus_are_noted(run_cli: RunCli, tiny_model_path: Path) -> None:
    words = ["generate", tiny_model_path, "-p", "a", "-n", "1", "-t", "2", "-Cr"]
    first_cpu = str(min(os.sched_getaffinity(0)))
    assert "note: threads: 2, cpus allowed: 1" in run_cli(*words, first_cpu).stderr


def test_the_prompt_comes_from_stdin_or_a_file_alike(
    run_cli: RunCli, tiny_model_path: Path, tmp_path: Path
) -> None:
    path = tmp_path / "prompt"
    path.write_text("hello\n", encoding="utf-8")
    words = ["tokenize", "-m", tiny_model_path]
    expected = run_cli(*words, "-p", "hello").stdout
    assert expected != ""
    assert run_cli(*words, "-f", path).stdout == expected
    assert run_cli(*words, "-p", "-", stdin="hello").stdout == expected
    assert run_cli(*words, env={"NUMAMIRROR_PROMPT": "hello"}).stdout == expected


def test_tokenize_json_has_the_shape_of_llama_server(
    run_cli: RunCli, tiny_model_path: Path
) -> None:
    result = run_cli("tokenize", tiny_model_path, "-p", "hi", "--no-bos", "--json")
    tokens = json.loads(result.stdout)["tokens"]
    assert "".join(token["piece"] for token in tokens) == "hi"


def test_plan_prints_the_stages_alone_or_together(run_cli: RunCli, tiny_model_path: Path) -> None:
    together = run_cli("plan", tiny_model_path)
    assert together.returncode == 0, together.stderr
    for stage in ("file", "plan", "placement", "program", "memory"):
        alone = run_cli("plan", tiny_model_path, "--show", stage)
        assert alone.returncode == 0, alone.stderr
        assert f"== {stage} ==\n{alone.stdout}" in together.stdout
    assert set(json.loads(run_cli("plan", tiny_model_path, "--json").stdout)) == {
        "file",
        "plan",
        "placement",
        "program",
        "memory",
    }


def test_topology_prints_and_is_json(run_cli: RunCli) -> None:
    result = run_cli("topology")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("node")
    known = json.loads(run_cli("topology", "--json").stdout)
    assert {"nodes", "cores", "allowed_cpus", "page_pools", "isas", "isa"} <= set(known)
    assert f"in use: {known['isa']}" in result.stdout


def test_bench_measures_what_was_asked(run_cli: RunCli, tiny_model_path: Path) -> None:
    words = ["-p", "4,8", "-n", "2", "-r", "2", "-t", "1", "-o", "json"]
    result = run_cli("bench", tiny_model_path, *words)
    assert result.returncode == 0, result.stderr
    rows = json.loads(result.stdout)
    assert [(row["n_prompt"], row["n_gen"]) for row in rows] == [(4, 0), (8, 0), (0, 2)]
    assert all(row["n_threads"] == 1 and row["avg_ts"] > 0 for row in rows)
    assert all(len(row["samples_ns"]) == 2 for row in rows)


def test_perplexity_prints_llama_perplexitys_lines(run_cli: RunCli, tiny_model_path: Path) -> None:
    words = ["perplexity", tiny_model_path, "-f", "-", "-c", "16", "--chunks", "2"]
    result = run_cli(*words, stdin="the quick brown fox " * 40)
    assert result.returncode == 0, result.stderr
    running, final = result.stdout.splitlines()
    assert running.startswith("[1]")
    assert running.endswith(",")
    assert "[2]" in running
    assert final.startswith("Final estimate: PPL = ")
    assert " +/- " in final


def test_the_real_model_knows_the_capital_of_france(run_cli: RunCli, real_model_path: Path) -> None:
    words = ["--raw", "--temp", "0", "-n", "4", "-q", "-p", "The capital of France is"]
    result = run_cli("generate", real_model_path, *words)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(" Paris.")
    assert run_cli("generate", *words).stdout == result.stdout  # the model used without -m


# --- small parts


def test_plain_values_of_every_kind() -> None:
    assert plain({"a": (1, 2.5, None, True), "b": frozenset({2, 1})}) == {
        "a": [1, 2.5, None, True],
        "b": [1, 2],
    }
    assert plain(float("nan")) == "nan"
    assert plain(["x"] * 1000) == {"n_values": 1000}
    assert plain(Path("/a")) == "/a"


def test_stdout_that_cannot_show_a_character_does_not_end_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", ascii_only)
    monkeypatch.setattr(plan_command, "run", lambda _arguments: print("é") or 0)
    assert cli.main(["plan"]) == 0


# --- nodes and buffers


def test_an_unknown_buffer_is_refused_with_the_list(run_cli: RunCli, tiny_model_path: Path) -> None:
    words = ("-p", "hi", "-ot", "ffn=NOWHERE", "--simulate-nodes", "2")
    result = run_cli("generate", tiny_model_path, *words)
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: override-tensor rule 'ffn=NOWHERE': unknown buffer 'NOWHERE'")
    assert all(name in line for name in ("SPLIT", "MIRROR", "NODE0", "NODE1", "CPU"))


def test_rules_nodes_and_their_memory_are_told(run_cli: RunCli, tiny_model_path: Path) -> None:
    rules = r"blk\.\d{1,2}\.ffn_.*=NODE1,attn=MIRROR,nothing=NODE0"
    words = ("-p", "hi", "-n", "2", "-t", "2", "--simulate-nodes", "2", "-ot", rules, "-v")
    plain = run_cli("generate", tiny_model_path, "-p", "hi", "-n", "2", "-s", "7")
    result = run_cli("generate", tiny_model_path, *words, "-s", "7")
    assert (result.returncode, result.stdout) == (0, plain.stdout)
    for text in (
        "node 1 (pretended)",
        "note: 2 nodes are pretended",
        "note: override-tensor rule 'nothing=NODE0' matches no tensor",
        "NODE1 F32: ",
        "a token reads on node 1: ",
    ):
        assert text in result.stderr


def test_words_of_other_programs_for_numa_are_taken_with_a_note(
    run_cli: RunCli, tiny_model_path: Path
) -> None:
    words = ("-p", "hi", "-n", "1", "--numa", "duplicate", "-cmoe", "-ncmoe", "3")
    result = run_cli("generate", tiny_model_path, *words)
    assert result.returncode == 0, result.stderr
    assert "note: --numa duplicate is mirror here" in result.stderr
