"""The condition language: its grammar, its three-valued logic, and that odd values never raise."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from camshaft.diagnostics.compat.facts.unknown import Unknown, unknown
from camshaft.diagnostics.compat.rules.conditions import ConditionError, compile_condition, evaluate, names

FACTS: dict[str, Any] = {
    "one": 1, "two": 2, "yes": True, "no": False, "word": "fp8_e4m3", "items": [1, 2, 4], "nothing": None,
}  # fmt: skip


def value(text: str, **facts: Any) -> Any:
    known = FACTS | facts
    return evaluate(compile_condition(text), lambda name: known.get(name, unknown(name)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one < two and two <= 2 and two > one and two >= 2", True),
        ("one == 1 and one != 2", True),
        ("one < two < 3", True),
        ("two * 3 + 1 == 7 and 7 // 2 == 3 and 7 % 4 == 3 and 3 - 1 == 2 and 3 / 2 == 1.5", True),
        ("two in items and 3 not in items", True),
        ("nothing == null and one != null", True),
        ("yes == true and no == false and not no", True),
        ("one == true", False),
        ("-1 == 0 - one", True),
        ("'a' if yes else 'b'", "a"),
        ("startswith(word, 'fp8') and endswith(word, 'e4m3') and contains(word, '8_')", True),
        ("containsany(word, ['int8', 'fp8'])", True),
        ("coalesce(nothing, one)", 1),
        ("max(items, 9)", 9),
        ("least(items)", 1),
        ("ceil_div(7, 2)", 4),
        ("count(items)", 3),
        ("overlap(items, [4, 5])", True),
        ("lower('ABC')", "abc"),
    ],
)
def test_known_values(text: str, expected: Any) -> None:
    assert value(text) == expected


ITEMS = {"list": ["a-b", "c"], "pairs": {"x": 1, "y": "2"}, "word": "0-3,7"}


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (["each", "each.i", ["name", "list"], ["call", "tail", ["name", "each.i"], ["lit", 1]], ["lit", True]], ["-b", ""]),
        (["each", "each.i", ["name", "list"], ["name", "each.i"], ["call", "within", ["lit", "-"], ["name", "each.i"]]], ["a-b"]),
        (["each", "each.k", ["name", "pairs"], ["name", "each.k"], ["lit", True]], ["x", "y"]),
        (["call", "split", ["name", "word"], ["lit", ","]], ["0-3", "7"]),
        (["call", "int", ["call", "item", ["lit", "73"], ["lit", 0]]], 7),
        (["call", "item", ["lit", "7"], ["lit", 4]], None),
        (["call", "distinct", ["list", ["lit", 1], ["lit", 1], ["lit", True]]], 2),
        (["call", "common", ["name", "list"], ["list", ["lit", "c"]]], ["c"]),
        (["call", "without", ["name", "pairs"], ["list", ["lit", "y"]]], ["x"]),
        (["call", "values", ["name", "pairs"]], [1, "2"]),
        (["call", "isinstance", ["lit", 1], ["list", ["lit", "str"], ["lit", "int"]]], True),
        (["call", "matches", ["lit", "0-3"], ["lit", "[0-9-]+"]], True),
        (["call", "truth", ["lit", "0"]], False),
        (["call", "split", ["lit", 3], ["lit", ""]], None),
    ],
)  # fmt: skip
def test_what_harvested_conditions_are_made_of(node: list[Any], expected: Any) -> None:
    assert evaluate(node, ITEMS.__getitem__) == expected
    assert names(node) <= ITEMS.keys()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no and missing", False),
        ("missing and no", False),
        ("yes or missing", True),
        ("missing or yes", True),
        ("known(missing)", False),
        ("1 if missing else 1", 1),
        ("coalesce(one, missing)", 1),
    ],
)
def test_an_unknown_value_does_not_spread_where_it_cannot_matter(text: str, expected: Any) -> None:
    assert value(text) == expected


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("yes and missing", {"missing"}),
        ("no or missing", {"missing"}),
        ("not missing", {"missing"}),
        ("missing + 1 < other", {"missing", "other"}),
        ("missing in items", {"missing"}),
        ("1 if missing else 2", {"missing"}),
        ("lower(missing) == 'a'", {"missing"}),
        ("coalesce(nothing, missing)", {"missing"}),
        ("[one, missing] == items", {"missing"}),
    ],
)
def test_an_unknown_value_names_what_would_settle_it(text: str, missing: set[str]) -> None:
    assert value(text) == Unknown(frozenset(missing))


@pytest.mark.parametrize(
    "text", ["nothing < 1", "word > 1", "nothing + 1 < 3", "one / 0 > 1", "1 % 0 == 1", "yes > 0"]
)
def test_what_has_no_order_is_not_in_order(text: str) -> None:
    assert value(text) is False


@pytest.mark.parametrize(
    "text",
    ["", "one ==", "one = 1", "open('x')", "a.b()", "lambda: 1", "[x for x in y]", "a[0]", "f'{one}'", "one ** 2",
     "max(items, key=one)", "one is two", "'a' 'b' if", "{1: 2}"],
)  # fmt: skip
def test_what_is_not_in_the_language_is_refused(text: str) -> None:
    with pytest.raises(ConditionError):
        compile_condition(text)


def test_a_compiled_condition_survives_json() -> None:
    node = compile_condition("a.b not in ['x', 1] and not startswith(c, 'd') or e < 2")
    assert json.loads(json.dumps(node)) == node
    assert names(node) == {"a.b", "c", "e"}


TEXTS = st.recursive(
    st.sampled_from(["a", "b", "c.d", "1", "0", "2.5", "'x'", "true", "false", "null", "[1, 'x']"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["<", "==", "in", "and", "or", "+", "%", "//"]), inner).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        inner.map(lambda t: f"(not {t})"),
        st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} if {t[1]} else {t[2]})"),
        inner.map(lambda t: f"coalesce({t}, 1)"),
    ),
    max_leaves=12,
)
VALUES = st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.floats(-9, 9), st.text("xyz", max_size=2))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(text=TEXTS, a=VALUES, b=VALUES, d=VALUES)
def test_evaluation_is_total_and_monotone(text: str, a: Any, b: Any, d: Any) -> None:
    """No value raises; and what is decided while a fact is unknown stays so once the fact is told."""
    facts = {"a": a, "b": b, "c.d": d}
    node = compile_condition(text)
    full = evaluate(node, facts.__getitem__)
    assert not isinstance(full, Unknown)
    for hidden in facts:
        partial = evaluate(node, lambda name, hidden=hidden: unknown(name) if name == hidden else facts[name])
        if isinstance(partial, Unknown):
            assert partial.missing == {hidden}
        else:
            assert bool(partial) == bool(full)


@pytest.mark.parametrize(("condition", "given"), [("a == null", False), ("a != null", True)])
def test_what_was_given_is_not_null_though_nobody_knows_it(condition: str, given: bool) -> None:
    node = compile_condition(condition)
    assert evaluate(node, lambda _: unknown("$N", given=True)) is given
    assert evaluate(node, lambda _: unknown("model.x")) == unknown("model.x")
