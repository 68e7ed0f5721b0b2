r"""Rules that put tensors elsewhere than the default does: `-ot PATTERN=BUFFER`.

Holds how rules are read, printed and matched against tensor names, and the rules that `-cmoe` and
`-ncmoe N` stand for. Knows no buffer but by the names it is given, and no machine. The engine reads
rules before it opens a file; `numamirror.placement` matches them.

A pattern is a Python regex that is searched in the tensor's name. llama.cpp's are C++'s, in the
grammar of ECMAScript; docs/override-tensor.md has the differences. Two are handled here: `\d`,
`\w`, `\s` and `\b` mean ASCII as in C++, and POSIX classes such as `[[:digit:]]`, which Python
would take for a set of other characters, are refused. A pattern comes from the user, so nothing
guards against one that takes exponential time.

Source: parse_tensor_buffer_overrides in llama.cpp's common/arg.cpp.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from numamirror.errors import RequestError
from numamirror.units import GIB

DEFAULT_ALIAS = "CPU"
"""The buffer name that stands for the default, whatever that is."""

EXPERTS_PATTERN = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
"""Routed experts, not shared ones. Source: LLM_FFN_EXPS_REGEX in llama.cpp's common/common.h."""

_EXPECTED = "expected PATTERN=BUFFER"
_NO_GPU_HINT = "no GPU here: write CPU or leave the rule out"
_FOREIGN_HINTS = (
    # ggml's names of its buffer types: device, then perhaps a number, then perhaps a kind
    (r"(cuda|rocm|hip|musa|metal|mtl|vulkan|sycl|cann|(gpu)?opencl|kompute|webgpu)", _NO_GPU_HINT),
    (r"rpc\d*\[", "no other machine here: write CPU or leave the rule out"),
    (r"cpu_", "weights are always repacked for this CPU: write CPU or leave the rule out"),
)
_FAMILY_MARK = "n"  # NODEn in a list of buffers: NODE0, NODE1, ...

_OPENING = str.maketrans(")}", "({")
_SET = r"\[\^?+\]?+(?:[^\]\\]|\\.)*+\]"  # as Python reads it: a ] that comes first is a member
_TOKEN = re.compile(rf"\\.|{_SET}|[\[(){{}},]", re.DOTALL)
_POSIX_CLASS = re.compile(r"\[:\^?[a-z]+:\]|(?<=.)\[([.=]).+?\1\]", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Rule:
    """One rule. `str(rule)` is its text, which parses to an equal rule.

    Args:
        pattern: Regex to search in a tensor's name.
        buffer: Name of a buffer type as the engine spells it, or `CPU`.
    """

    pattern: str
    buffer: str

    def __str__(self) -> str:
        return f"{self.pattern}={self.buffer}"

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """The compiled pattern; a bad one raises, for which see `parse_rules`."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's plans for sets such as [[a] are not ours
            return re.compile(self.pattern, re.ASCII)


@dataclass(frozen=True)
class RuleUse:
    """What became of one rule.

    Args:
        rule: The rule.
        n_matched: Tensors whose name it matches.
        n_tensors: Tensors that it decides: those that no earlier rule matches.
        n_bytes: Their bytes.
        hidden_by: The earlier rules that decide the tensors that it matches but does not decide.
    """

    rule: Rule
    n_matched: int
    n_tensors: int
    n_bytes: int
    hidden_by: tuple[Rule, ...]


@dataclass(frozen=True)
class Matches:
    """What rules make of a model's tensors.

    Args:
        assignment: Every tensor's buffer, `CPU` replaced by the default.
        deciding: The rule that decided, by tensor; tensors that no rule matches are left out.
        uses: One entry a rule, in the order of the rules.
    """

    assignment: Mapping[str, str]
    deciding: Mapping[str, Rule]
    uses: tuple[RuleUse, ...]

    @property
    def unused(self) -> tuple[RuleUse, ...]:
        """Rules that match no tensor."""
        return tuple(use for use in self.uses if not use.n_matched)

    @property
    def shadowed(self) -> tuple[RuleUse, ...]:
        """Rules that match tensors, all of which earlier rules decide."""
        return tuple(use for use in self.uses if use.n_matched and not use.n_tensors)

    def describe(self) -> str:
        """Tensors and bytes by rule, one line a rule."""
        return "\n".join(
            f"{use.rule}: {use.n_tensors} tensors, {use.n_bytes / GIB:.3f} GiB" for use in self.uses
        )

    def warning_lines(self) -> tuple[str, ...]:
        """One line for each rule without effect: the unused ones first, then the shadowed."""
        unused = [f"override-tensor rule '{use.rule}' matches no tensor" for use in self.unused]
        shadowed = [
            f"override-tensor rule '{use.rule}' has no effect: what it matches goes by the earlier "
            + " and ".join(f"'{rule}'" for rule in use.hidden_by)
            for use in self.shadowed
        ]
        return (*unused, *shadowed)


def parse_rules(texts: Sequence[str], buffers: Collection[str]) -> tuple[Rule, ...]:
    r"""Reads rules.

    A comma separates rules unless it is inside (), [] or {} or follows a backslash, which stays in
    the pattern. A rule splits at its last `=`. Blanks around pattern and buffer do not count.

    Args:
        texts: Values of `-ot`, each one or more rules `PATTERN=BUFFER`.
        buffers: Names of the buffer types, of which `NODEn` stands for NODE0, NODE1 and so on;
            `CPU` need not be among them. Rules may spell them in upper or lower case.

    Returns:
        The rules in their order, their buffers spelled as in `buffers`.

    Raises:
        RequestError: A text is not of that form, names no buffer, or has a bad pattern.
    """
    return tuple(_rule(piece, buffers) for text in texts for piece in _split(text))


def cpu_moe_rules() -> tuple[Rule, ...]:
    """The rules of `-cmoe`: the routed experts of all layers to `CPU`."""
    return (Rule(EXPERTS_PATTERN, DEFAULT_ALIAS),)


def n_cpu_moe_rules(n_layers: int) -> tuple[Rule, ...]:
    """The rules of `-ncmoe N`: the routed experts of the first `n_layers` layers to `CPU`.

    It is one rule where llama.cpp makes one a layer, so that a number above the model's is no
    reason for a warning.

    Raises:
        RequestError: `n_layers` is negative.
    """
    if n_layers < 0:
        raise RequestError(f"n-cpu-moe: found {n_layers}, expected a whole number from 0")
    if n_layers == 0:
        return ()
    layers = "|".join(_numbers_below(n_layers))
    return (Rule(rf"blk\.({layers}){EXPERTS_PATTERN}", DEFAULT_ALIAS),)


def match(rules: Sequence[Rule], sizes_bytes: Mapping[str, int], default: str) -> Matches:
    """Finds the rule that decides each tensor: the first that matches its name.

    Args:
        rules: The rules, their patterns known to be good (`parse_rules`).
        sizes_bytes: Bytes by tensor name.
        default: Buffer of tensors that no rule matches or that a rule sends to `CPU`.
    """
    matched = [[name for name in sizes_bytes if rule.regex.search(name)] for rule in rules]
    winners: dict[str, int] = {}
    for number, names in enumerate(matched):
        for name in names:
            winners.setdefault(name, number)
    deciding = {name: rules[winners[name]] for name in sizes_bytes if name in winners}
    assignment = dict.fromkeys(sizes_bytes, default)
    for name, rule in deciding.items():
        if rule.buffer != DEFAULT_ALIAS:
            assignment[name] = rule.buffer
    uses = []
    for number, names in enumerate(matched):
        own = [name for name in names if winners[name] == number]
        earlier = sorted({winners[name] for name in names} - {number})
        n_bytes = sum(sizes_bytes[name] for name in own)
        hidden_by = tuple(rules[other] for other in earlier)
        uses.append(RuleUse(rules[number], len(names), len(own), n_bytes, hidden_by))
    return Matches(MappingProxyType(assignment), MappingProxyType(deciding), tuple(uses))


def _split(text: str) -> Iterator[str]:
    """The pieces of a text between the commas that separate rules."""
    start, open_brackets = 0, ""
    for token in _TOKEN.finditer(text):
        what = token[0]
        if len(what) > 1:
            _refuse_posix_class(what, text[start:])
        elif what == "," and not open_brackets:
            yield text[start : token.start()]
            start = token.end()
        elif what in "([{":
            if what == "[":  # a whole set would have been one token
                raise _not_closed(what, text[start:])
            open_brackets += what
        elif open_brackets.endswith(what.translate(_OPENING)):
            open_brackets = open_brackets[:-1]
    if open_brackets:
        raise _not_closed(open_brackets[-1], text[start:])
    yield text[start:]


def _not_closed(bracket: str, piece: str) -> RequestError:
    return RequestError(
        f"override-tensor rule '{piece.strip()}': {bracket} is not closed",
        hint=f"write \\{bracket} for the character itself",
    )


def _refuse_posix_class(token: str, piece: str) -> None:
    found = _POSIX_CLASS.search(token) if token.startswith("[") else None
    if found is not None:
        raise RequestError(
            f"override-tensor rule '{piece.strip()}': found the POSIX class {found[0]}, "
            "expected a Python regex",
            hint=r"write \d for [[:digit:]], \w for [[:alnum:]_], [A-Za-z] for [[:alpha:]]",
        )


def _rule(piece: str, buffers: Collection[str]) -> Rule:
    pattern, equals, name = piece.rpartition("=")
    if not equals:
        raise RequestError(
            f"override-tensor rule '{piece.strip()}': found no =, {_EXPECTED}",
            hint=r"rules are separated by commas; write \, for a comma of the pattern",
        )
    pattern = _without_blanks(pattern)
    if not pattern:
        raise RequestError(
            f"override-tensor rule '{piece.strip()}': found no pattern, {_EXPECTED}",
            hint="write . to match every tensor",
        )
    rule = Rule(pattern, _buffer(name.strip(), piece.strip(), buffers))
    try:
        _ = rule.regex
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        raise RequestError(
            f"override-tensor rule '{rule}': bad pattern: {error}",
            hint="patterns are Python regexes, see docs/override-tensor.md",
        ) from error
    return rule


def _without_blanks(pattern: str) -> str:
    """`pattern` without blanks around it; one that is escaped at the end is part of it."""
    pattern = pattern.lstrip()
    stripped = pattern.rstrip()
    n_backslashes = len(stripped) - len(stripped.rstrip("\\"))
    return pattern[: len(stripped) + n_backslashes % 2]


def _buffer(name: str, piece: str, buffers: Collection[str]) -> str:
    """The buffer that `name` means, as the engine spells it."""
    known = [*(buffer for buffer in buffers if buffer != DEFAULT_ALIAS), DEFAULT_ALIAS]
    for buffer in known:
        if buffer.lower() == name.lower() and not buffer.endswith(_FAMILY_MARK):
            return buffer
        family = buffer.removesuffix(_FAMILY_MARK)
        if family != buffer and re.fullmatch(
            rf"{re.escape(family)}(0|[1-9][0-9]{{0,3}})", name, re.IGNORECASE
        ):
            return family + name[len(family) :]
    foreign = (hint for regex, hint in _FOREIGN_HINTS if re.match(regex, name, re.IGNORECASE))
    raise RequestError(
        f"override-tensor rule '{piece}': unknown buffer '{name}', "
        f"expected one of {', '.join(known)}",
        hint=next(foreign, None),
    )


def _numbers_below(limit: int) -> Iterator[str]:
    """Regexes that together match the decimal numbers from 0 to `limit` - 1, and no others."""
    digits = str(limit)
    for n_digits in range(1, len(digits)):
        first = "[0-9]" if n_digits == 1 else "[1-9]"
        yield first + "[0-9]" * (n_digits - 1)
    for position, digit in enumerate(digits):
        lowest = 1 if position == 0 and len(digits) > 1 else 0
        highest = int(digit) - 1
        if highest >= lowest:
            rest = "[0-9]" * (len(digits) - position - 1)
            yield f"{digits[:position]}[{lowest}-{highest}]{rest}"
