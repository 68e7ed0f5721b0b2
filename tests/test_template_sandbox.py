"""Templates that would hang, exhaust memory or reach out end in an error, and soon.

Nothing but the sandbox's own limits stops a hostile template here: without them these tests would
not end.
"""

from __future__ import annotations

import pytest
from jinja2 import TemplateError
from numamirror import template_sandbox
from numamirror.template_sandbox import MAX_VALUE_CHARACTERS, SandboxEnvironment, weight


def render(source: str, **variables: object) -> str:
    return SandboxEnvironment().from_string(source).render(variables)


DOUBLED = "{%% set ns = namespace(x='ab', y=['ab']) %%}{%% for i in range(60) %%}%s{%% endfor %%}"

HOSTILE = {
    "nested loops": (
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    ),
    "loop condition": (
        "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}"
    ),
    "filters": "{% for i in range(99999) %}{{ range(99999)|list|length }}{% endfor %}",
    "tests": "{{ range(99999)|select('in', range(99999)|list|reverse|list)|list|length }}",
    "macro": (
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(99) }}"
    ),
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "output": "{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
    "output of text": "{% for i in range(99999) %}" + "x" * 999 + "{% endfor %}",
    "output in a set": "{% set x %}{% for i in range(99999) %}"
    + "x" * 999
    + "{% endfor %}{% endset %}",
    "times": "{{ 'x' * 10**12 }}",
    "list times": "{{ [0] * 10**12 }}",
    "power": "{{ 10**(10**10) }}",
    "large integers": "{% set ns = namespace(x=7) %}{% for i in range(99) %}"
    "{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "plus": DOUBLED % "{% set ns.x = ns.x + ns.x %}",
    "tilde": DOUBLED % "{% set ns.x = ns.x ~ ns.x %}",
    "block": DOUBLED % "{% set x %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = x %}",
    "join": DOUBLED % "{% set ns.x = [ns.x, ns.x]|join %}",
    "join method": DOUBLED % "{% set ns.x = ns.x.join([ns.x, ns.x]) %}",
    "replace": DOUBLED % "{% set ns.x = ns.x|replace('a', ns.x) %}",
    "replace method": DOUBLED % "{% set ns.x = ns.x.replace('a', ns.x) %}",
    "nested lists": DOUBLED % "{% set ns.y = [ns.y, ns.y] %}",
    "nested mappings": DOUBLED % "{% set ns.y = {'a': ns.y, 'b': ns.y} %}",
    "nested dict calls": DOUBLED % "{% set ns.y = dict(a=ns.y, b=ns.y) %}",
    "listed": DOUBLED % "{% set ns.y = ns.y + [ns.y]  + ns.y %}",
    "mapped": "{% set x = 'x' * 10**6 %}{{ ([none] * 9999)|map('default', x, true)|list }}",
    "percent": "{{ '%999999999d' % 1 }}",
    "format": "{{ '{:999999999}'.format(1) }}",
    "center": "{{ 'x'|center(10**9) }}",
    "ljust": "{{ 'x'.ljust(10**9) }}",
    "zfill": "{{ ('x'|attr('zfill'))(10**9) }}",
    "to_bytes": "{{ (1).to_bytes(10**9, 'big') }}",
    "indent": "{{ 'x\n'|indent(10**9) }}",
    "json": "{{ [[1]]|tojson(indent=10**9) }}",
    "lipsum": "{{ lipsum(10**6) }}",
    "batch": "{{ [1]|batch(10**9, 0)|list }}",
    "internals": "{{ ''.__class__.__mro__ }}",
    "import": "{% import 'os' as os %}",
    "mutation": "{% set x = [1] %}{% do x.append(2) %}{{ x.append(2) }}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_are_stopped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "MAX_SECONDS", 0.5)
    with pytest.raises((TemplateError, RecursionError, TypeError)):
        render(HOSTILE[name])


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for x in xs if x > 1 %}{{ loop.index }}{{ x }}{{ ',' if not loop.last }}{% endfor %}",
         "12,23"),
        ("{% for a, b in [(1, 2), (3, 4)] %}{{ a + b }} {% endfor %}", "3 7 "),
        ("{% for x in xs %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}", "1"),
        ("{% for x in xs recursive %}{{ x }}{% endfor %}", "123"),
        ("{% for x in [] %}x{% else %}none{% endfor %}", "none"),
        ("{% macro f(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}", "12"),
        ("{% macro f() %}[{{ caller() }}]{% endmacro %}{% call f() %}in{% endcall %}", "[in]"),
        ("{% set ns = namespace(n=0) %}{% for x in xs %}{% set ns.n = ns.n + x %}{% endfor %}"
         "{{ ns.n }}", "6"),
        ("{{ 'a' ~ 1 ~ none }}{{ 'x' + 'y' }}{{ '-' * 3 }}", "a1Nonexy---"),
        ("{{ 7 % 4 }}{{ 2 ** 5 }}{{ 6 * 7 }}", "33242"),
        ("{{ {'a': '<b>&\"é'} | tojson }}", '{"a": "<b>&\\"é"}'),
        ("{{ [1, {'b': 2}] | tojson(indent=2) }}", '[\n  1,\n  {\n    "b": 2\n  }\n]'),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}", '{"a":2,"b":1}'),
        ("{{ ['a', 'b'] | join('-') }}{{ '+'.join(['c', 'd']) }}", "a-bc+d"),
        ("{{ [{'n': 1}, {'n': 2}] | map(attribute='n') | join }}", "12"),
        ("{{ [{'n': 'x'}] | join(',', attribute='n') }}", "x"),
        ("{{ 'a-b-c' | replace('-', '+', 1) }}{{ 'a-b'.replace('-', '') }}", "a+b-cab"),
        ("{{ 'a</t>b'.split('</t>')[-1] }}{{ '  x '.strip() }}{{ ' y '|trim }}", "bxy"),
        ("{{ 'x\ny' | indent(2) }}", "x\n  y"),
        ("{{ xs[1:] }}{{ xs | length }}{{ xs | first }}", "[2, 3]31"),
        ("{% generation %}answer{% endgeneration %}", "answer"),
        ("{% if x is defined %}x{% endif %}{{ missing }}{{ none }}", "None"),
        ("  {% if true %}\n  a\n  {% endif %}\n", "  a\n"),
        ("{{ strftime_now('%%') }}", "%"),
    ],
)  # fmt: skip
def test_what_templates_use_works(source: str, expected: str) -> None:
    assert render(source, xs=[1, 2, 3]) == expected


def test_a_namespace_does_not_print_its_content() -> None:
    assert render("{% set ns = namespace(a=1) %}{{ ns }}") == "<namespace>"


def test_literals_of_the_template_are_known() -> None:
    environment = SandboxEnvironment()
    environment.from_string("text {% if '</think>' in m.content %}{{ m['role'] }}{% endif %}")
    assert environment.literals == {"</think>", "content", "role"}


def test_weight_counts_what_printing_would() -> None:
    pair = ["ab", "cd"]
    assert weight(pair, 100) == 7
    assert weight([pair, pair], 100) == 15
    assert weight({"k": (1, "v")}, 100) == 7
    assert weight(["x" * 99] * 9, 10) > 10
    assert MAX_VALUE_CHARACTERS > 1 << 20
