"""Texts in YAML: a value, or a sentence; never a traceback."""

from __future__ import annotations

import pytest

from camshaft.core.places import load_yaml, parse_scalar

UNREADABLE = {
    "a date that is none": "a: 2024-99-99",
    "an alias within itself": "a: &a {b: *a}",
    "an alias within itself, in a list": "&a [[*a]]",
    "a key that is a list": "? [a]\n: b",
    "no end": "a: [1, 2",
    "no such alias": "a: *b",
    "nested without end": "[" * 20_000,
    "two documents": "a: 1\n---\nb: 2\n",
    "a control character": "a: \x00",
}


@pytest.mark.parametrize("text", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_what_is_no_yaml_is_said_in_a_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"^not valid YAML: [^\n]+$"):
        load_yaml(text)
    assert parse_scalar(text) == text


def test_an_alias_stands_for_what_it_names() -> None:
    assert load_yaml("a: &a [1, {x: y}]\nb: *a\nc: [*a, *a]") == {
        "a": [1, {"x": "y"}],
        "b": [1, {"x": "y"}],
        "c": [[1, {"x": "y"}]] * 2,
    }
    assert load_yaml("") is None
