"""The table of flags, and how a command line is read against it."""

from __future__ import annotations

import dataclasses

import pytest
from numamirror.cli.flags import (
    COMMANDS,
    FLAGS,
    IGNORED_FLAGS,
    Arity,
    Destination,
    Flag,
    IgnoredFlag,
    flags_of,
)
from numamirror.cli.parsing import Arguments, parse, wants_traceback
from numamirror.errors import RequestError
from numamirror.load_options import LoadOptions
from numamirror.sampling import SAMPLING_BOUNDS, SamplingSettings


def parsed(command: str, *words: str, **environ: str) -> Arguments:
    arguments = parse(command, words, environ)
    assert arguments is not None
    return arguments


def value_of(arguments: Arguments, flag: Flag) -> object:
    places = {
        Destination.COMMAND: vars(arguments.own),
        Destination.LOAD: arguments.load,
        Destination.GENERATE: arguments.generate,
    }
    return places[flag.destination][flag.option]


# --- the table itself


@pytest.mark.parametrize("command", COMMANDS)
def test_names_are_unique_in_a_command(command: str) -> None:
    names = [name for flag in flags_of(command) for name in flag.names]
    names += [name for ignored in IGNORED_FLAGS for name in ignored.names]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: f"{flag.long}-{flag.commands[0]}")
def test_an_entry_is_well_formed(flag: Flag) -> None:
    assert set(flag.commands) <= set(COMMANDS)
    assert flag.commands
    assert flag.long == flag.long.lower().strip("-")
    assert all(name.startswith("-") for name in flag.names)
    assert not flag.help.endswith(".")
    assert flag.help[:1].islower() or flag.help.startswith(("GGUF", "Jinja"))


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: f"{flag.long}-{flag.commands[0]}")
def test_a_default_is_a_value_of_its_kind(flag: Flag) -> None:
    if flag.default is None or flag.is_repeatable:
        return
    default = flag.default
    text = ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
    assert flag.kind.parse(text) == default


def test_load_flags_are_options_of_load_with_the_same_defaults() -> None:
    fields = {field.name: field.default for field in dataclasses.fields(LoadOptions)}
    flags = [flag for flag in FLAGS if flag.destination is Destination.LOAD]
    assert {flag.option for flag in flags} <= set(fields)
    for flag in flags:
        if "generate" in flag.commands:
            assert flag.default == fields[flag.option], flag.long


def test_sampling_flags_have_the_defaults_and_bounds_of_sampling() -> None:
    flags = {flag.option: flag for flag in FLAGS if flag.destination is Destination.GENERATE}
    for field in dataclasses.fields(SamplingSettings):
        assert flags[field.name].default == field.default, field.name
        expected = SAMPLING_BOUNDS[field.name].expected
        assert flags[field.name].kind.expected.startswith(expected), field.name


# --- reading words


@pytest.mark.parametrize("flag", flags_of("generate"), ids=lambda flag: flag.long)
def test_every_name_and_the_variable_set_the_flag(flag: Flag) -> None:
    samples = ["on", "7", "f32", "mirror", "0.5", "0-1", '{"a": 1}']
    text = next(sample for sample in samples if _accepts(flag, sample))
    spellings = [[name] if flag.kind.is_switch else [name, text] for name in flag.names]
    if not flag.kind.is_switch:
        spellings += [[f"{name}={text}"] for name in flag.names]
    values = [value_of(parsed("generate", *words), flag) for words in spellings]
    values.append(value_of(parsed("generate", **{flag.variable: text}), flag))
    assert all(value == values[0] for value in values)
    assert values[0] != flag.default


def _accepts(flag: Flag, text: str) -> bool:
    try:
        value = flag.kind.parse(text)
    except ValueError:
        return False
    return value != flag.default


def test_the_command_line_comes_before_the_environment() -> None:
    arguments = parsed("generate", "-n", "3", NUMAMIRROR_MAX_TOKENS="5")
    assert arguments.generate["max_tokens"] == 3
    assert parsed("generate", NUMAMIRROR_MAX_TOKENS="5").generate["max_tokens"] == 5


def test_a_switch_can_be_turned_off_where_the_environment_turns_it_on() -> None:
    assert parsed("generate", NUMAMIRROR_RAW="1").generate["raw"] is True
    assert parsed("generate", "--raw=off", NUMAMIRROR_RAW="1").generate["raw"] is False


@pytest.mark.parametrize("words", [("m.gguf", "-p", "x"), ("-p", "x", "m.gguf"), ("-m", "m.gguf")])
def test_the_model_may_stand_anywhere(words: tuple[str, ...]) -> None:
    assert parsed("generate", *words).own.model == "m.gguf"


@pytest.mark.parametrize("text", ["-5 degrees", "- item", "-", "", "--", "-foo", "a=b", "--x=y"])
def test_a_value_may_begin_with_a_dash(text: str) -> None:
    assert parsed("generate", "-p", text).own.prompt == text


def test_long_names_with_one_dash_are_not_prefixes_of_others() -> None:
    arguments = parsed("generate", "-t", "2", "-tb", "3", "-s", "4", "-sys", "five", "-c", "6")
    assert (arguments.load["threads"], arguments.load["threads_batch"]) == (2, 3)
    assert (arguments.generate["seed"], arguments.generate["system_prompt"]) == (4, "five")


@pytest.mark.parametrize(
    ("words", "environ", "option", "expected"),
    [
        (("-f", "x"), {"NUMAMIRROR_PROMPT": "y"}, "prompt", None),
        (("-p", "x"), {"NUMAMIRROR_FILE": "y"}, "file", None),
        (("--raw",), {"NUMAMIRROR_SYSTEM_PROMPT": "y"}, "system_prompt", None),
        (("--raw=off",), {"NUMAMIRROR_SYSTEM_PROMPT": "y"}, "system_prompt", "y"),
        (("-sys", "x"), {"NUMAMIRROR_RAW": "1"}, "raw", False),
        ((), {"NUMAMIRROR_PROMPT": ""}, "prompt", None),
        ((), {"NUMAMIRROR_TOP_K": ""}, "top_k", 40),
    ],
)
def test_the_command_line_rules_out_variables_it_excludes_and_empty_ones_do_not_count(
    words: tuple[str, ...], environ: dict[str, str], option: str, expected: object
) -> None:
    arguments = parsed("generate", *words, **environ)
    assert {**vars(arguments.own), **arguments.generate}[option] == expected


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: f"{flag.long}-{flag.commands[0]}")
def test_exclusion_is_mutual(flag: Flag) -> None:
    for name in flag.excludes:
        others = [other for other in FLAGS if other.long == name]
        assert others
        assert all(flag.long in other.excludes for other in others)


@pytest.mark.parametrize(
    ("words", "environ", "expected"),
    [
        ([], {}, False),
        (["-v"], {}, True),
        (["--verbose"], {}, True),
        ([], {"NUMAMIRROR_VERBOSE": "1"}, True),
        ([], {"NUMAMIRROR_VERBOSE": ""}, False),
        ([], {"NUMAMIRROR_VERBOSE": "nonsense"}, False),
        (["--verbose=off"], {"NUMAMIRROR_VERBOSE": "1"}, False),
    ],
)
def test_tracebacks_are_asked_for_as_any_flag_is(
    words: list[str], environ: dict[str, str], expected: bool
) -> None:
    assert wants_traceback(words, environ) is expected


def test_stop_texts_add_up() -> None:
    assert parsed("generate", "--stop", "a", "-r", "b").generate["stop"] == ("a", "b")


@pytest.mark.parametrize(("text", "n_tokens"), [("32k", 32768), ("2K", 2048), ("0", 0), ("7", 7)])
def test_context_sizes(text: str, n_tokens: int) -> None:
    assert parsed("generate", "-c", text).load["ctx_size"] == n_tokens


def test_minus_one_thread_means_automatic() -> None:
    assert parsed("generate", "-t", "-1").load["threads"] is None


def test_bench_has_its_own_meaning_of_p_n_r_t() -> None:
    own = parsed("bench", "-p", "16,32", "-n", "8", "-r", "2", "-t", "1,2").own
    assert (own.n_prompt, own.n_gen, own.repetitions, own.threads) == ((16, 32), (8,), 2, (1, 2))


# --- refusals


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-t", "0"], "--threads: found '0', expected a whole number from 1"),
        (["-t", "two"], "--threads: found 'two', expected"),
        (["-c", "12z"], "--ctx-size: found '12z', expected a number of tokens"),
        (["-c", "-1"], "--ctx-size: found '-1', expected"),
        (["--temp", "-1"], "--temperature: found '-1', expected a number from 0"),
        (["--temp", "nan"], "--temperature: found 'nan', expected"),
        (["--top-p", "1.5"], "--top-p: found '1.5', expected a number from 0 to 1"),
        (["--top-k", "1_0"], "--top-k: found '1_0', expected"),
        (["-n", "-2"], "--max-tokens: found '-2', expected a whole number from -1"),
        (["-ctk", "q8"], "--cache-type-k: found 'q8', expected one of f16, f32"),
        (["--cpu-range", "3-1"], "--cpu-range: found '3-1', expected ranges of CPU numbers"),
        (["--repeat-penalty", "0"], "--repeat-penalty: found '0', expected a number from 0.01"),
        (["--presence-penalty", "101"], "--presence-penalty: found '101', expected a number from"),
        (["--chat-template-kwargs", "[1]"], "--chat-template-kwargs: found '[1]', expected a JSON"),
        (["--chat-template-kwargs", "[" * 99999], "--chat-template-kwargs: found '[[[["),
        (["-p", "\udcff"], "--prompt: found '\\udcff', expected UTF-8 text"),
        (["-p"], "-p: found no value, expected UTF-8 text"),
        (["-p", "--raw"], "-p: found no value, expected UTF-8 text"),
        (["-ngl"], "-ngl: found no value"),
        (["a.gguf", "b.gguf"], "generate: unexpected word 'b.gguf'"),
        (["--tempera", "1"], "generate: unknown flag '--tempera'"),
        (["-temp", "1"], "generate: unknown flag '-temp'"),
        (["-t4"], "generate: unknown flag '-t4'"),
    ],
)
def test_refusals_name_flag_found_and_expected(words: list[str], message: str) -> None:
    with pytest.raises(RequestError) as refusal:
        parse("generate", words, {})
    assert str(refusal.value).startswith(message)


def test_a_refused_variable_is_named() -> None:
    with pytest.raises(RequestError, match="NUMAMIRROR_TOP_K: found 'x', expected"):
        parse("generate", [], {"NUMAMIRROR_TOP_K": "x"})


def test_an_unknown_flag_gets_the_nearest_as_a_hint() -> None:
    with pytest.raises(RequestError) as refusal:
        parse("generate", ["--temprature", "1"], {})
    assert refusal.value.hint == "did you mean --temperature?"


def test_a_flag_of_another_command_is_said_to_be_one() -> None:
    with pytest.raises(RequestError) as refusal:
        parse("bench", ["--temp", "1"], {})
    assert refusal.value.hint == "--temp is a flag of generate"


# --- flags that are accepted without effect


@pytest.mark.parametrize("ignored", IGNORED_FLAGS, ids=lambda ignored: ignored.names[0])
def test_ignored_flags_take_their_value_and_get_one_note(ignored: IgnoredFlag) -> None:
    for name in ignored.names:
        value = [] if ignored.arity is Arity.NONE else ["1"]
        for words in ([name, *value, "m.gguf"], ["m.gguf", name, *value, name, *value]):
            arguments = parsed("generate", *words)
            assert arguments.own.model == "m.gguf"
            assert arguments.notes == (f"{name} has no effect: {ignored.reason}",)


@pytest.mark.parametrize("word", ["on", "off", "auto", "0", "1"])
def test_a_switch_word_belongs_to_the_ignored_flag(word: str) -> None:
    assert parsed("generate", "-fa", word, "-rtr", "m.gguf").own.model == "m.gguf"
    assert parsed("generate", f"-fa={word}").own.model is None


def test_help_is_found_among_other_flags() -> None:
    assert parse("generate", ["-p", "x", "--help"], {}) is None
    assert parse("bench", ["-h"], {}) is None
