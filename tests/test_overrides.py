"""Rules `-ot PATTERN=BUFFER`: reading, printing, matching, and every message.

Long for its tables: where rules split, what bad ones are answered with, what people paste.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numamirror.errors import RequestError
from numamirror.overrides import (
    EXPERTS_PATTERN,
    Rule,
    cpu_moe_rules,
    match,
    n_cpu_moe_rules,
    parse_rules,
)

BUFFERS = ("SPLIT", "MIRROR", "INTERLEAVE", "NODEn", "MMAP")
KNOWN = "expected one of SPLIT, MIRROR, INTERLEAVE, NODEn, MMAP, CPU"
NO_GPU = "no GPU here: write CPU or leave the rule out"
REGEXES = "patterns are Python regexes, see docs/override-tensor.md"
COMMA = r"rules are separated by commas; write \, for a comma of the pattern"

NAMES = (
    "token_embd.weight",
    "output_norm.weight",
    *(
        f"blk.{layer}.{part}.weight"
        for layer in (0, 1, 9, 10, 17, 20, 60, 100)
        for part in (
            *("attn_q", "attn_norm", "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps"),
            *("ffn_down_exps", "ffn_gate_up_exps", "ffn_up_chexps", "ffn_up_shexp"),
        )
    ),
)
SIZES_BYTES = {name: 1 << number % 40 for number, name in enumerate(NAMES)}

PATTERN_PARTS = (
    *("blk", r"\.", ".", ".*", "ffn_", "exps", "attn", "(up|down)", "[0-9]", "[2-5][0-9]"),
    *(r"\d{1,2}", "[,=]", "(?=.*q)", "(?!.*exps)", "=", r"\,", r"\\", "[^]]", "[])}]", "(?:a|b,c)"),
    *(r"[\],]", "^", "$", r"\(", "[({]", "1?", r"\{", "}", "a{,2}"),
)
patterns = st.lists(st.sampled_from(PATTERN_PARTS), min_size=1, max_size=6).map("".join)
buffers = st.sampled_from(["SPLIT", "MIRROR", "INTERLEAVE", "MMAP", "CPU", "NODE0", "NODE17"])
rules = st.builds(Rule, patterns, buffers).filter(
    lambda rule: is_regex(rule.pattern) and not rule.pattern[0].isspace()
)
rule_texts = st.lists(
    st.builds(
        "{1}{0}{2}={1}{3}{2}".format,
        patterns,
        st.sampled_from(["", " ", "\n "]),
        st.sampled_from(["", " "]),
        st.sampled_from(["split", "Mirror", "INTERLEAVE", "node3", "cpu"]),
    ),
    min_size=1,
    max_size=4,
).map(",".join)


def is_regex(pattern: str) -> bool:
    """Whether Python takes `pattern`."""
    try:
        _ = Rule(pattern, "CPU").regex
    except re.error:
        return False
    return True


def parse(*texts: str) -> tuple[Rule, ...]:
    return parse_rules(texts, BUFFERS)


def printed(parsed: Sequence[Rule]) -> str:
    return ",".join(map(str, parsed))


def naive_assignment(
    parsed: Sequence[Rule], sizes_bytes: Mapping[str, int], default: str
) -> dict[str, str]:
    """The reference: for each name, the first rule whose regex is found in it."""
    result = {}
    for name in sizes_bytes:
        result[name] = default
        for rule in parsed:
            if re.search(rule.pattern, name, re.ASCII) is not None:
                if rule.buffer != "CPU":
                    result[name] = rule.buffer
                break
    return result


# Reading and printing


@given(st.lists(rules, max_size=5))
@example([Rule(r"blk\.\d{1,2}", "NODE1"), Rule("a=b", "CPU"), Rule(r"[,]\,(,)", "SPLIT")])
def test_printed_rules_parse_to_the_same_rules(made: list[Rule]) -> None:
    assert parse(*map(str, made)) == tuple(made)
    assert not made or parse(printed(made)) == tuple(made)


@given(st.one_of(rule_texts, st.text(alphabet=" \\()[]{}=,ab:.CPU?*\n", max_size=40), st.text()))
@example(r"a\ =CPU")
@example(r"[[]],a=CPU")
def test_parse_print_parse_gives_the_same_rules_or_an_error_of_ours(text: str) -> None:
    try:
        parsed = parse(text)
    except RequestError:
        return
    assert parsed
    assert parse(printed(parsed)) == parsed
    assert parse(*map(str, parsed)) == parsed


@given(st.text(alphabet="ab\\()[]^|?*=-.", min_size=1, max_size=12).filter(is_regex))
def test_every_regex_without_comma_and_brace_is_one_rule(pattern: str) -> None:
    if re.search(r"\[[.=].*[.=]\]", pattern) is None:
        assert parse(f"{pattern}=CPU,a=MIRROR") == (Rule(pattern, "CPU"), Rule("a", "MIRROR"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("exps=CPU", ["exps=CPU"]),
        ("a=CPU,b=MIRROR", ["a=CPU", "b=MIRROR"]),
        (r"blk\.\d{1,2}\.ffn=CPU,b=CPU", [r"blk\.\d{1,2}\.ffn=CPU", "b=CPU"]),
        (r"a\,b=CPU", [r"a\,b=CPU"]),
        (r"a\\,b=CPU", None),
        (r"a\\=CPU,b=CPU", [r"a\\=CPU", "b=CPU"]),
        ("(a,(b,c),[,)]),d=CPU,e=CPU", None),
        ("(a,(b,c),[,)]d)=CPU,e=CPU", ["(a,(b,c),[,)]d)=CPU", "e=CPU"]),
        ("[],]a=CPU,b=CPU", ["[],]a=CPU", "b=CPU"]),
        ("[^],]a=CPU,b=CPU", ["[^],]a=CPU", "b=CPU"]),
        (r"[\],]a=CPU,b=CPU", [r"[\],]a=CPU", "b=CPU"]),
        ("[(]=CPU,b=CPU", ["[(]=CPU", "b=CPU"]),
        (r"\(=CPU,b=CPU", [r"\(=CPU", "b=CPU"]),
        (r"\[=CPU,b=CPU", [r"\[=CPU", "b=CPU"]),
        ("(})=CPU,b=CPU", ["(})=CPU", "b=CPU"]),
        ("]=CPU,b=CPU", ["]=CPU", "b=CPU"]),
        ("a=b=CPU", ["a=b=CPU"]),
        ("(?=.*up)exps=CPU", ["(?=.*up)exps=CPU"]),
        ("[=]=CPU", ["[=]=CPU"]),
        (" a = cpu , b=Node12\n", ["a=CPU", "b=NODE12"]),
        (r"a\ =CPU", [r"a\ =CPU"]),
        (r"a\\ =CPU", [r"a\\=CPU"]),
        ("(ch|)exps=mmap", ["(ch|)exps=MMAP"]),
    ],
)
def test_where_rules_split(text: str, expected: list[str] | None) -> None:
    if expected is None:
        with pytest.raises(RequestError, match="found no ="):
            parse(text)
    else:
        assert [str(rule) for rule in parse(text)] == expected


def test_the_flag_may_be_given_many_times() -> None:
    assert parse("a=CPU,b=SPLIT", "c=MMAP") == (
        Rule("a", "CPU"),
        Rule("b", "SPLIT"),
        Rule("c", "MMAP"),
    )
    assert parse() == ()


def test_a_rule_is_compared_by_its_text_alone() -> None:
    used, fresh = Rule("a", "CPU"), Rule("a", "CPU")
    assert used.regex.search("bab")
    assert used == fresh
    assert hash(used) == hash(fresh)


@pytest.mark.parametrize("name", ["NODE0", "node7", "Node1023"])
def test_a_family_has_a_buffer_for_every_number(name: str) -> None:
    assert parse(f"a={name}") == (Rule("a", name.upper()),)


@pytest.mark.parametrize(
    "name", ["NODE", "NODEn", "NODE01", "NODE-1", "NODE99999", "NODE1x", "NODE²"]
)
def test_a_family_takes_nothing_but_plain_numbers(name: str) -> None:
    with pytest.raises(RequestError, match=f"unknown buffer '{re.escape(name)}'"):
        parse(f"a={name}")


def test_the_caller_may_name_each_node() -> None:
    assert parse_rules(["a=node1"], ["NODE0", "NODE1"]) == (Rule("a", "NODE1"),)
    with pytest.raises(RequestError, match=r"expected one of NODE0, NODE1, CPU$"):
        parse_rules(["a=NODE2"], ["NODE0", "NODE1"])


def test_the_default_is_listed_once_when_the_engine_lists_it_too() -> None:
    with pytest.raises(RequestError, match=r"expected one of SPLIT, CPU$"):
        parse_rules(["a=X"], ["CPU", "SPLIT"])


# Messages


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("ffn=NOWHERE", f"rule 'ffn=NOWHERE': unknown buffer 'NOWHERE', {KNOWN}", None),
        ("a=CPU, ffn=", f"rule 'ffn=': unknown buffer '', {KNOWN}", None),
        ("exps", "rule 'exps': found no =, expected PATTERN=BUFFER", COMMA),
        ("", "rule '': found no =, expected PATTERN=BUFFER", COMMA),
        ("a=CPU,", "rule '': found no =, expected PATTERN=BUFFER", COMMA),
        ("a=CPU,,b=CPU", "rule '': found no =, expected PATTERN=BUFFER", COMMA),
        ("a,b=CPU", "rule 'a': found no =, expected PATTERN=BUFFER", COMMA),
        (
            " =CPU",
            "rule '=CPU': found no pattern, expected PATTERN=BUFFER",
            "write . to match every tensor",
        ),
        (
            "a=CPU,b(c=CPU,d=CPU",
            "rule 'b(c=CPU,d=CPU': ( is not closed",
            r"write \( for the character itself",
        ),
        ("a[b=CPU", "rule 'a[b=CPU': [ is not closed", r"write \[ for the character itself"),
        ("[^]=CPU", "rule '[^]=CPU': [ is not closed", r"write \[ for the character itself"),
        ("[]=CPU", "rule '[]=CPU': [ is not closed", r"write \[ for the character itself"),
        (
            "a{=CPU,b=CPU",
            "rule 'a{=CPU,b=CPU': { is not closed",
            r"write \{ for the character itself",
        ),
        ("({)=CPU", "rule '({)=CPU': { is not closed", r"write \{ for the character itself"),
        ("a)=CPU", "rule 'a)=CPU': bad pattern: unbalanced parenthesis at position 1", REGEXES),
        ("*a=cpu", "rule '*a=CPU': bad pattern: nothing to repeat at position 0", REGEXES),
        (
            r"a\=CPU",
            r"rule 'a\=CPU': bad pattern: bad escape (end of pattern) at position 1",
            REGEXES,
        ),
        (r"(?u)\d=CPU", None, REGEXES),
        ("a{99999999999999999999}=CPU", None, REGEXES),
        ("(" * 5000 + ")" * 5000 + "=CPU", None, REGEXES),
    ],
)
def test_what_a_bad_rule_is_answered_with(text: str, message: str | None, hint: str | None) -> None:
    with pytest.raises(RequestError) as caught:
        parse(text)
    assert caught.value.hint == hint
    if message is not None:
        assert str(caught.value) == f"override-tensor {message}"
    else:
        assert ": bad pattern: " in str(caught.value)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"blk\.[[:digit:]]+\.ffn=CPU", "[:digit:]"),
        ("blk.[^[:alpha:]_]=CPU", "[:alpha:]"),
        ("[:digit:]=CPU", "[:digit:]"),
        ("a[0[.-.]]=CPU", "[.-.]"),
        ("[[=e=]]=CPU", "[=e=]"),
        ("a=CPU,b[[:ALNUM:],]=CPU", "[:ALNUM:]"),
    ],
)
def test_posix_classes_are_refused_with_what_to_write(text: str, found: str) -> None:
    with pytest.raises(RequestError, match=re.escape(f"found the POSIX class {found}")) as caught:
        parse(text)
    assert caught.value.hint is not None
    assert r"write \d for [[:digit:]]" in caught.value.hint


@pytest.mark.parametrize(
    "text", ["[[a]=CPU", "[:a]=CPU", r"\[:digit:]=CPU", "[a.b]=CPU", "[a||b]=CPU"]
)
def test_sets_that_only_look_like_posix_classes_are_taken(text: str) -> None:
    assert str(*parse(text)) == text


@pytest.mark.parametrize(
    "name",
    [
        "CUDA0",
        "cuda1",
        "CUDA_Host",
        "Metal",
        "MTL0",
        "ROCm0",
        "Vulkan0",
        "SYCL1",
        "MUSA0",
        "OpenCL",
    ],
)
def test_a_gpu_gets_its_own_hint(name: str) -> None:
    with pytest.raises(RequestError, match=f"unknown buffer '{name}', {KNOWN}$") as caught:
        parse(f"exps={name}")
    assert caught.value.hint == NO_GPU


def test_other_machines_and_repacking_get_their_own_hints() -> None:
    text = r"blk\.([3-8])\..*_exps\.=RPC[192.168.1.112:50050]"
    with pytest.raises(
        RequestError, match=r"unknown buffer 'RPC\[192.168.1.112:50050\]'"
    ) as caught:
        parse(text)
    assert caught.value.hint == "no other machine here: write CPU or leave the rule out"
    with pytest.raises(RequestError) as caught:
        parse("exps=CPU_REPACK")
    assert caught.value.hint == (
        "weights are always repacked for this CPU: write CPU or leave the rule out"
    )


# Matching


@given(st.lists(rules, max_size=6), st.sampled_from(["SPLIT", "MIRROR", "CPU"]))
@example([Rule("ffn_.*=", "MMAP"), Rule("ffn", "CPU"), Rule(".", "NODE1")], "SPLIT")
def test_matching_equals_the_naive_matcher(made: list[Rule], default: str) -> None:
    matches = match(made, SIZES_BYTES, default)
    assert matches.assignment == naive_assignment(made, SIZES_BYTES, default)
    assert list(matches.assignment) == list(NAMES)
    assert [use.rule for use in matches.uses] == made
    assert sum(use.n_tensors for use in matches.uses) == len(matches.deciding)
    assert sum(use.n_bytes for use in matches.uses) == sum(
        map(SIZES_BYTES.__getitem__, matches.deciding)
    )
    for number, use in enumerate(matches.uses):
        alone = match([use.rule], SIZES_BYTES, default)
        before = match(made[:number], SIZES_BYTES, default)
        assert use.n_matched == len(alone.deciding)
        assert use.n_tensors == len(alone.deciding.keys() - before.deciding.keys())
        assert (use in matches.unused) == (not alone.deciding)
        assert (use in matches.shadowed) == (0 == use.n_tensors < use.n_matched)
        hidden = {before.deciding[name] for name in alone.deciding.keys() & before.deciding.keys()}
        assert set(use.hidden_by) == hidden


def test_the_first_match_wins_and_each_rule_is_counted() -> None:
    sizes_bytes = {"blk.0.attn_q": 1, "blk.0.ffn_up": 20, "blk.1.ffn_up": 300, "output": 4000}
    made = parse(r"blk\.1\.=NODE1,ffn=MIRROR", "blk=CPU")
    matches = match(made, sizes_bytes, "SPLIT")
    assert matches.assignment == {
        "blk.0.attn_q": "SPLIT",
        "blk.0.ffn_up": "MIRROR",
        "blk.1.ffn_up": "NODE1",
        "output": "SPLIT",
    }
    assert matches.deciding == {
        "blk.0.attn_q": made[2],
        "blk.0.ffn_up": made[1],
        "blk.1.ffn_up": made[0],
    }
    assert [(use.n_matched, use.n_tensors, use.n_bytes) for use in matches.uses] == [
        (1, 1, 300),
        (2, 1, 20),
        (3, 1, 1),
    ]
    assert matches.uses[2].hidden_by == made[:2]
    assert matches.warning_lines() == ()


def test_rules_without_effect_are_told_apart() -> None:
    made = parse("attn_q=MMAP,attn_k=MMAP,attn=MIRROR,attn_[qk]=SPLIT,exps=CPU,attn_q=MMAP")
    matches = match(made, {"attn_q": 1, "attn_k": 2, "attn_v": 4}, "SPLIT")
    assert [use.rule for use in matches.unused] == [made[4]]
    assert [use.rule for use in matches.shadowed] == [made[3], made[5]]
    assert matches.warning_lines() == (
        "override-tensor rule 'exps=CPU' matches no tensor",
        "override-tensor rule 'attn_[qk]=SPLIT' has no effect: what it matches goes by the earlier "
        "'attn_q=MMAP' and 'attn_k=MMAP'",
        "override-tensor rule 'attn_q=MMAP' has no effect: what it matches goes by the earlier "
        "'attn_q=MMAP'",
    )


def test_a_match_prints_one_line_a_rule() -> None:
    matches = match(parse("a=MMAP,b=CPU"), {"aa": 1 << 29, "a": 1 << 29, "c": 7}, "SPLIT")
    assert matches.describe() == "a=MMAP: 2 tensors, 1.000 GiB\nb=CPU: 0 tensors, 0.000 GiB"


def test_a_result_can_not_be_changed() -> None:
    matches = match((), {"a": 1}, "SPLIT")
    with pytest.raises(TypeError):
        matches.assignment["a"] = "MIRROR"  # type: ignore[index]


def test_digits_are_ascii_as_in_llama_cpp() -> None:
    matches = match(parse(r"blk\.\d=MIRROR"), {"blk.1": 1, "blk.\u0661": 1}, "SPLIT")
    assert list(matches.deciding) == ["blk.1"]


# What people paste


@pytest.mark.parametrize(
    ("text", "n_rules", "matched", "not_matched"),
    [
        ("exps=CPU", 1, "blk.3.ffn_up_exps.weight", "blk.3.ffn_up_shexp.weight"),
        (
            r"[2-9][0-9]\.ffn_.*_exps\.=CPU",
            1,
            "blk.20.ffn_up_exps.weight",
            "blk.9.ffn_up_exps.weight",
        ),
        (
            r"blk\.(1[7-9]|[2-5][0-9]|6[0-1])\..*_exps\.=CPU",
            1,
            "blk.17.ffn_down_exps.weight",
            "blk.16.ffn_down_exps.weight",
        ),
        (
            r"^(?!.*exps).*blk\.[0-2][0-9]=NODE0",
            1,
            "blk.20.attn_q.weight",
            "blk.20.ffn_up_exps.weight",
        ),
        (
            r"^(?!.*exps).*blk\.([3-5][0-9]|60)=node1",
            1,
            "blk.60.attn_q.weight",
            "blk.20.attn_q.weight",
        ),
        (
            r"blk\.(2[7-9]|[3-5][0-9]|60)\..*_exps\.=CPU",
            1,
            "blk.60.ffn_up_exps.weight",
            "blk.6.ffn_up_exps.weight",
        ),
        (
            "ffn_gate_exps=CPU,ffn_up_exps=CPU",
            2,
            "blk.0.ffn_gate_exps.weight",
            "blk.0.ffn_down_exps.weight",
        ),
        (
            r"blk\.([9]|1[0-4])\..*_exps\.=CPU",
            1,
            "blk.9.ffn_up_exps.weight",
            "blk.0.ffn_up_exps.weight",
        ),
        (r"blk\.\d{1,2}\.ffn_.*=NODE1,attn=MIRROR", 2, "blk.9.attn_q.weight", "output.weight"),
    ],
)
def test_pasted_rules_do_what_they_do_in_llama_cpp(
    text: str, n_rules: int, matched: str, not_matched: str
) -> None:
    parsed = parse(text)
    assert len(parsed) == n_rules
    assert list(match(parsed, {matched: 1, not_matched: 1}, "SPLIT").deciding) == [matched]


def test_the_documented_rules_are_good(repository: Path) -> None:
    text = (repository / "docs" / "override-tensor.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    words = shlex.split(block, comments=True)
    given = [word for word in words if word != "-ot"]
    assert len(given) == words.count("-ot") > 5
    assert len(parse(*given)) == len(given) + 1
    assert f"`{printed(cpu_moe_rules())}`" in text


def test_cmoe_takes_routed_experts_and_no_others() -> None:
    made = cpu_moe_rules()
    assert parse(printed(made)) == made == (Rule(EXPERTS_PATTERN, "CPU"),)
    decided = match(made, SIZES_BYTES, "SPLIT").deciding
    parts = ("gate_exps", "up_exps", "down_exps", "gate_up_exps", "up_chexps")
    assert set(decided) == {name for name in NAMES if any(f"ffn_{part}." in name for part in parts)}


@given(st.integers(0, 1200), st.integers(0, 1200))
@example(10, 9)
@example(10, 10)
@example(1, 0)
@example(100, 109)
def test_ncmoe_takes_the_first_layers(n_layers: int, layer: int) -> None:
    made = n_cpu_moe_rules(n_layers)
    assert len(made) == min(n_layers, 1)
    assert not made or parse(printed(made)) == made
    sizes_bytes = {f"blk.{layer}.ffn_up_exps.weight": 1, f"blk.{layer}.attn_q.weight": 1}
    decided = list(match(made, sizes_bytes, "SPLIT").deciding)
    assert decided == (list(sizes_bytes)[:1] if layer < n_layers else [])


def test_ncmoe_counts_every_layer_once() -> None:
    for n_layers in (1, 2, 9, 10, 11, 99, 100, 101, 230, 1000):
        (rule,) = n_cpu_moe_rules(n_layers)
        taken = [n for n in range(1500) if rule.regex.search(f"blk.{n}.ffn_up_exps.weight")]
        assert taken == list(range(n_layers))


def test_ncmoe_of_more_layers_than_there_are_is_no_long_rule() -> None:
    (rule,) = n_cpu_moe_rules(10**18 - 1)
    assert len(rule.pattern) < 5000
    assert rule.regex.search("blk.61.ffn_up_exps.weight")


def test_a_negative_ncmoe_is_refused() -> None:
    with pytest.raises(
        RequestError, match=r"^n-cpu-moe: found -1, expected a whole number from 0$"
    ):
        n_cpu_moe_rules(-1)
