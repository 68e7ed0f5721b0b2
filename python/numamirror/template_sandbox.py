"""A place where a stranger's Jinja template can neither reach out nor hang nor exhaust memory.

Jinja's own sandbox keeps a template from Python's internals. This one also gives it a budget:
loops, macro calls, filters and tests count steps against a number and a clock, and every value that
is made or printed is bounded before anything large can be built from it. Filters and methods whose
result grows by an argument are missing, as are all that no chat template needs. Knows nothing of
messages or tokens. Called by `chat_template`.

Source: jinja.palletsprojects.com/en/stable/sandbox, "Security Considerations".
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes, pass_context, pass_environment
from jinja2.ext import Extension
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

MAX_SOURCE_CHARACTERS = 1 << 20
MAX_VALUE_CHARACTERS = 1 << 22
MAX_STEPS = 1_000_000
MAX_SECONDS = 10.0
_MAX_INT_BITS = 4096
_MAX_INDENT = 64

_FILTERS = (
    "abs", "attr", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first",
    "float", "groupby", "int", "items", "last", "length", "list", "lower", "map", "max", "min",
    "reject", "rejectattr", "reverse", "round", "safe", "select", "selectattr", "sort", "string",
    "title", "trim", "truncate", "unique", "upper", "urlencode", "wordcount",
)  # fmt: skip
_GROWING_METHODS = frozenset(
    ("center", "encode", "expandtabs", "format", "format_map", "ljust", "rjust", "translate",
     "zfill")
)  # fmt: skip


class TemplateLimitError(TemplateError):
    """A template wanted more than its budget."""


class RefusedMessagesError(TemplateError):
    """A template called `raise_exception`: these messages are not for it."""


class Budget:
    """What a template may still use.

    Args:
        max_characters: Of one value, and of all that is printed.
    """

    def __init__(self, max_characters: int) -> None:
        self.max_characters = max_characters
        self._characters_left = max_characters
        self._steps_left = MAX_STEPS
        self._deadline = time.monotonic() + MAX_SECONDS

    def step(self) -> None:
        """Counts a step."""
        self._steps_left -= 1
        if self._steps_left < 0:
            raise TemplateLimitError(f"took more than {MAX_STEPS} steps")
        if time.monotonic() > self._deadline:
            raise TemplateLimitError(f"took more than {MAX_SECONDS:g} seconds")

    def check_size(self, n_characters: int) -> None:
        """Refuses a value before it is made."""
        if n_characters > self.max_characters:
            raise TemplateLimitError(f"made a value of more than {self.max_characters} characters")

    def check(self, value: Any) -> Any:  # noqa: ANN401
        """Refuses a value that is too large, nested ones counted as often as they would print."""
        if isinstance(value, str):
            self.check_size(len(value))
        elif isinstance(value, list | tuple | dict):
            self.check_size(weight(value, self.max_characters))
        return value

    def print(self, value: object) -> object:
        """Counts what is printed."""
        self.check(value)
        text = str(value)
        self._characters_left -= len(text)
        if self._characters_left < 0:
            raise TemplateLimitError(f"printed more than {self.max_characters} characters")
        return text


def weight(value: object, limit: int) -> int:
    """Characters and items in a nested value; counting stops above `limit`."""
    total, stack = 0, [value]
    while stack and total <= limit:
        item = stack.pop()
        total += 1
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, Mapping):
            stack += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple):
            stack += item
    return total


class SandboxEnvironment(ImmutableSandboxedEnvironment):
    """Jinja as chat templates expect it, under a budget.

    Attributes:
        budget: Of the rendering under way.
        literals: The string constants of the templates parsed so far.
    """

    intercepted_binops = frozenset(("*", "**", "+", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # nothing is evaluated before a budget is set
            finalize=_print,
            extensions=["jinja2.ext.loopcontrols", GenerationTag],
        )
        self.budget = Budget(MAX_VALUE_CHARACTERS)
        self.literals: set[str] = set()
        own: dict[str, Callable[..., Any]] = {
            "indent": _indent, "join": _join, "replace": _replace, "tojson": _tojson,
        }  # fmt: skip
        used: dict[str, Callable[..., Any]] = {name: FILTERS[name] for name in _FILTERS}
        used |= own
        self.filters = {name: self._counted(function) for name, function in used.items()}
        self.filters[_STEP] = self._step
        self.filters[_CHECK] = lambda value: self.budget.check(value)
        tests: dict[str, Any] = dict(TESTS)
        self.tests = {name: self._counted(function) for name, function in tests.items()}
        del self.globals["lipsum"]
        self.globals |= {
            "namespace": _OpaqueNamespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:  # noqa: ANN401
        """Whether a template may use an attribute."""
        if isinstance(obj, int | float) or (isinstance(obj, str) and attr in _GROWING_METHODS):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:  # noqa: ANN401
        """Leaves `str.format` to `is_safe_attribute`, which refuses it: its result can be huge."""

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # noqa: ANN401
        """An arithmetic operator, its result bounded before it is computed."""
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        if operator == "*":
            self.budget.check_size(_product_size(left, right))
        elif operator != "+" and not numbers:
            raise TemplateError(f"can't use {operator} here: only numbers are supported")
        elif operator == "**" and _power_bits(left, right) > _MAX_INT_BITS:
            raise TemplateLimitError(f"made a number of more than {_MAX_INT_BITS} bits")
        return self.budget.check(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """A call from a template."""
        __self.budget.step()
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, str) and name == "replace" and len(args) >= 2:
            _check_replace(__self.budget, owner, args[0], args[1])
        elif isinstance(owner, str) and name == "join" and len(args) == 1:
            args = (_checked_items(__self.budget, owner, args[0]),)
        return __self.budget.check(super().call(__context, __obj, *args, **kwargs))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template: nodes.Template = _Instrument(self).visit(super()._parse(source, name, filename))
        return template

    def _step(self, value: bool) -> bool:
        self.budget.step()
        return value

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            self.budget.step()
            return self.budget.check(function(*args, **kwargs))

        return counted


class GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}`, which marks answers for training: the body alone."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The nodes between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


_STEP, _CHECK = "_step", "_check"


class _Instrument(NodeTransformer):
    """Puts steps into loops and macros, and checks around values that expressions make."""

    def __init__(self, environment: SandboxEnvironment) -> None:
        self._environment = environment

    def _filter(self, node: nodes.Expr, name: str) -> nodes.Filter:
        return nodes.Filter(
            node, name, [], [], None, None, lineno=node.lineno, environment=self._environment
        )

    def _true(self, lineno: int) -> nodes.Filter:
        return self._filter(nodes.Const(True, lineno=lineno, environment=self._environment), _STEP)

    def _with_step(self, node: Any) -> nodes.Node:  # noqa: ANN401
        self.generic_visit(node)
        step = nodes.ExprStmt(
            self._true(node.lineno), lineno=node.lineno, environment=self._environment
        )
        node.body.insert(0, step)
        return node  # type: ignore[no-any-return]

    visit_Macro = visit_CallBlock = visit_Block = _with_step

    def visit_For(self, node: nodes.For) -> nodes.Node:
        """A step an item, also for items that the loop's condition drops."""
        self._with_step(node)
        if node.test is not None:
            node.test = nodes.And(
                self._true(node.lineno),
                node.test,
                lineno=node.lineno,
                environment=self._environment,
            )
        return node

    def _checked(self, node: Any) -> nodes.Node:  # noqa: ANN401
        self.generic_visit(node)
        if getattr(node, "ctx", "load") != "load":  # the names that a loop sets
            return node  # type: ignore[no-any-return]
        return self._filter(node, _CHECK)

    visit_Concat = visit_List = visit_Tuple = visit_Dict = _checked

    def visit_Const(self, node: nodes.Const) -> nodes.Node:
        """Remembers string constants."""
        if isinstance(node.value, str):
            self._environment.literals.add(node.value)
        return node

    def visit_Getattr(self, node: nodes.Getattr) -> nodes.Node:
        """Remembers names of keys."""
        self.generic_visit(node)
        self._environment.literals.add(node.attr)
        return node

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:
        """As a constant, so that it is counted when it is printed."""
        return nodes.Const(node.data, lineno=node.lineno, environment=self._environment)


class _OpaqueNamespace(Namespace):
    """A namespace that does not print what it holds: that could be itself, many times."""

    def __repr__(self) -> str:
        return "<namespace>"


@pass_context
def _print(context: Context, value: object) -> object:
    environment = context.environment
    assert isinstance(environment, SandboxEnvironment)
    return environment.budget.print(value)


def _raise_exception(message: object) -> NoReturn:
    raise RefusedMessagesError(str(message))


def _strftime_now(template: str) -> str:
    return datetime.now().strftime(str(template)[:1000])


def _product_size(left: Any, right: Any) -> int:  # noqa: ANN401
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() + right.bit_length()
        return 0 if bits <= _MAX_INT_BITS else MAX_VALUE_CHARACTERS << 10
    for value, times in ((left, right), (right, left)):
        if isinstance(value, str | list | tuple) and isinstance(times, int):
            return weight(value, MAX_VALUE_CHARACTERS) * max(times, 0)
    return 0


def _power_bits(left: float, right: float) -> float:
    return left.bit_length() * abs(right) if isinstance(left, int) else 0


def _check_replace(budget: Budget, text: str, old: object, new: object) -> None:
    found = text.count(str(old)) if old else len(text) + 1
    budget.check_size(len(text) + found * len(str(new)))


def _checked_items(budget: Budget, between: str, items: Iterable[object]) -> list[str]:
    texts: list[str] = []
    total = 0
    for item in items:
        budget.check(item)
        texts.append(str(item))
        total += len(texts[-1]) + len(between)
        budget.check_size(total)
    return texts


@pass_environment
def _replace(
    environment: SandboxEnvironment, text: object, old: str, new: str, count: int | None = None
) -> str:
    whole = str(text)
    _check_replace(environment.budget, whole, old, new)
    return whole.replace(str(old), str(new), -1 if count is None else count)


@pass_environment
def _join(
    environment: SandboxEnvironment,
    items: Iterable[Any],
    d: str = "",
    attribute: str | int | None = None,
) -> str:
    if attribute is not None:
        items = (environment.getitem(item, attribute) for item in items)
    return str(d).join(_checked_items(environment.budget, str(d), items))


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    if (len(width) if isinstance(width, str) else width) > _MAX_INDENT:
        raise TemplateLimitError(f"indented by more than {_MAX_INDENT} characters")
    indented: str = FILTERS["indent"](text, width, first, blank)
    return indented


@pass_environment
def _tojson(
    environment: SandboxEnvironment,
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without HTML escapes, as Hugging Face's templates expect it."""
    if indent is not None and indent > _MAX_INDENT:
        raise TemplateLimitError(f"indented by more than {_MAX_INDENT} characters")
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return "".join(_checked_items(environment.budget, "", encoder.iterencode(value)))
