"""The text of an option's value as the value a release's parser makes of it, or the reason it makes none."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from ....core import numerals
from ..releases.dialect import Dialect
from ..releases.table import Flag
from .placeholders import read_json

LEVELS = ("0", "1", "2", "3")


class BadValue(Exception):
    """A value the parser refuses; `choices` is set when it names none of the allowed ones."""

    def __init__(self, message: str, choices: list[Any] | None = None) -> None:
        super().__init__(message)
        self.choices = choices


def convert(flag: Flag, texts: list[str], negative: bool = False, dialect: Dialect | None = None) -> Any:
    """The parsed value of an option. Raises BadValue with the reason when the release would refuse it."""
    how = dialect or Dialect()
    if texts and not (flag.optional and texts[0] in ("", "None")):
        if flag.name == "--compilation-config" and how.compilation == "python":
            return _python_literal(texts[0])
        if flag.name == "--compilation-config" and how.compilation == "level" and texts[0] in LEVELS:
            return {"level": int(texts[0])}
        pairs = how.json_pairs == "yes" and "json" in flag.type and "=" in texts[0] and texts[0][:1] != "{"
        if flag.parse == "key_values" or pairs:
            return _key_values(texts[0])
    if flag.kind in ("store_true", "boolean_optional"):
        return not negative
    if flag.kind == "store_false":
        return False
    if flag.kind == "store_boolean":
        return _store_boolean(texts)
    if flag.nargs in ("+", "*") or isinstance(flag.nargs, int):
        return [_checked(flag, text) for text in texts]
    if not texts:
        return True if flag.parse == "optional_value" else None
    return _checked(flag, texts[0])


def _store_boolean(texts: list[str]) -> bool:
    if not texts:
        return True
    lowered = texts[0].lower()
    if lowered not in ("true", "false"):
        raise BadValue(f"{texts[0]!r} is not true or false")
    return lowered == "true"


def _checked(flag: Flag, text: str) -> Any:
    if flag.optional and text in ("", "None"):
        return None
    value = _typed(flag, text)
    if flag.nested and flag.type == "json" and not isinstance(value, dict):
        raise BadValue(f"{_shortened(text)!r} is not a JSON object")
    if flag.choices and not _among(value, text, flag.choices):
        allowed = ", ".join(str(choice) for choice in flag.choices)
        raise BadValue(f"{text!r} is not one of {allowed}", list(flag.choices))
    return value


def _among(value: Any, text: str, choices: list[Any]) -> bool:
    if isinstance(value, (dict, list)):
        return True
    return value in choices or (isinstance(value, str) and text in [str(choice) for choice in choices])


def _typed(flag: Flag, text: str) -> Any:
    if flag.parse == "human_readable_or_auto" and text.strip().lower() in ("auto", "-1"):
        return -1
    if flag.parse == "human_readable_bytes":
        return _written(text, numerals.human_readable_bytes)
    if flag.parse in ("human_readable", "human_readable_or_auto"):
        return human_readable(text)
    if flag.parse == "snake_case":
        return text.lower().replace("-", "_")
    if flag.parse == "numbers_or_names":
        return [int(part) if part.isdigit() else part for part in map(str.strip, text.split(","))]
    failures: list[str] = []
    for part in _alternatives(flag.type):
        try:
            return _one(part, text)
        except BadValue as error:
            failures.append(str(error))
    raise BadValue(failures[0] if failures else f"{text!r} cannot be read")


def _alternatives(kind: str) -> list[str]:
    """The members of a union such as `int | str`, the specific ones first as the parsers try them."""
    parts: list[str] = []
    depth, current = 0, ""
    for char in kind:
        depth += (char in "[(") - (char in "])")
        if char == "|" and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += char
    parts.append(current.strip())
    return [part for part in parts if part and part != "None"] or ["str"]


def _one(kind: str, text: str) -> Any:
    if kind.startswith("list["):  # one of the words of an option that takes several
        return _one(kind[5:-1], text)
    base = kind.split("[", 1)[0]
    reader = READERS.get(base)
    if reader is None:
        return text
    return reader(text)


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise BadValue(f"{text!r} is not a whole number") from None


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadValue(f"{text!r} is not a number") from None


def _bool(text: str) -> bool:
    lowered = text.lower()
    if lowered in ("true", "1"):
        return True
    if lowered in ("false", "0"):
        return False
    raise BadValue(f"{text!r} is not true or false")


def _json(text: str) -> Any:
    try:
        return read_json(text)
    except ValueError:
        raise BadValue(f"{_shortened(text)!r} is not valid JSON") from None


def _key_values(text: str) -> dict[str, int]:
    """`image=2,video=1` (vLLM's nullable_kvs: names and whole numbers)."""
    found: dict[str, int] = {}
    for item in text.split(","):
        name, equals, value = item.partition("=")
        if not equals:
            raise BadValue(f"{_shortened(text)!r} is not of the form key=number,key=number")
        found[name.strip().lower()] = _int(value.strip())
    return found


def _python_literal(text: str) -> Any:
    """A dictionary as Python writes it, or a level (vLLM's CompilationConfig.from_cli until 0.8.5)."""
    if text in LEVELS:
        return {"level": int(text)}
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise BadValue(
            f"{_shortened(text)!r} is no Python dictionary (True and None, not true and null)"
        ) from None


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


READERS: dict[str, Callable[[str], Any]] = {
    "int": _int,
    "float": _float,
    "bool": _bool,
    "json": _json,
    "dict": _json,
}


def human_readable(text: str) -> int:
    """A whole number, written out or with a letter behind it (`8k`, `16K`)."""
    return _written(text, numerals.human_readable)


def _written(text: str, read: Callable[[str], int | None]) -> int:
    try:
        found = read(text)
    except ValueError as error:
        raise BadValue(str(error)) from None
    return _int(text.strip()) if found is None else found
