"""Edits of settings where they stand in a YAML text: comments, order and quotes stay as they are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ....core.errors import ConfigError
from ....core.places import load_yaml
from ..checks.findings import Edit
from ..inputs.base import Configuration, Entry
from ..releases.table import name_of
from .cut import Changes


class CannotFix(ConfigError):
    """An edit would not read back as intended; nothing is written."""


def edit_settings(
    configuration: Configuration,
    edit: Edit,
    entries: Sequence[Entry],
    replaced: Sequence[Entry],
    changes: Changes,
) -> None:
    """Note what `edit` makes of the keys that set its option; a new one takes the place of one that it replaces and
    that goes, or stands behind the last one."""
    touched = [*entries, *(replaced if edit.kind == "set" else ())]
    keywords = bool(touched) and all(_is_keyword(entry) for entry in touched)
    if any(entry.end == 0 for entry in entries) or (
        configuration.typed and edit.kind != "unset" and not keywords
    ):
        raise CannotFix(f"{edit.flag} stands among settings that are no plain lines; edit it by hand")
    if configuration.typed and edit.kind != "unset":
        _edit_keywords(configuration, edit, entries, replaced, changes)
        return
    if edit.kind == "set" and not entries:
        _add(configuration.entries, edit, replaced, changes)
    for entry in entries if edit.kind != "set" else entries[-1:]:
        if edit.kind == "unset":
            changes.drop_item(entry.source, entry.start, entry.end)
            continue
        kept = entry.source.text[entry.start : entry.value_start]
        colon = kept.rindex(":")
        bare = edit.value is True
        name = kept[:colon] if edit.to is None else _key(edit.to, configuration.entries, bare)
        if edit.value is None:
            changes.put(entry.source, entry.start, entry.start + colon, name)
        else:
            changes.put(entry.source, entry.start, entry.end, f"{name}: {_scalar(edit.value)}")


def _is_keyword(entry: Entry) -> bool:
    """Whether a setting is a keyword argument of Python, which stands in its place alone."""
    return entry.source.text[entry.start : entry.value_start].rstrip().endswith("=")


def _edit_keywords(
    configuration: Configuration,
    edit: Edit,
    entries: Sequence[Entry],
    replaced: Sequence[Entry],
    changes: Changes,
) -> None:
    """Rename keyword arguments of Python, or set one where it stands or in the place of one that goes."""
    name = name_of(edit.to or edit.flag)
    if edit.kind == "rename" and edit.value is None:
        for entry in entries:
            old = entry.key.replace("-", "_")
            changes.put(entry.source, entry.start, entry.start + len(old), name)
        return
    value = _literal(edit.value)
    if "." in name or (isinstance(value, dict) and configuration.usage != "llm"):
        raise CannotFix(f"{edit.flag} takes an object in Python that this does not write; edit it by hand")
    entry = [*entries[-1:], *replaced][0]
    taken = changes.take_back(entry.source, entry.start, entry.end)
    before = "" if taken or entries else ", "  # another argument has taken the place
    changes.put(entry.source, entry.start, entry.end, f"{before}{name}={_python(value)}")


def _literal(value: str | bool | None) -> Any:
    """A value of the command line as Python has it: an object or a number of JSON, or else the text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _python(value: Any) -> str:
    """A value as Python code, texts in double quotes."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_python(key)}: {_python(item)}" for key, item in value.items()) + "}"
    return "[" + ", ".join(map(_python, value)) + "]" if isinstance(value, list) else repr(value)


def _add(entries: Sequence[Entry], edit: Edit, replaced: Sequence[Entry], changes: Changes) -> None:
    new = f"{_key(edit.flag, entries)}: {_scalar(edit.value or False)}"
    for entry in replaced:
        if changes.take_back(entry.source, entry.start, entry.end):
            changes.put(entry.source, entry.start, entry.end, new)
            return
    last = max(entries, key=lambda entry: entry.end)
    text = last.source.text
    if text[text.rfind("\n", 0, last.start) + 1 : last.start].strip():  # `{model: m, seed: 1}`
        changes.put(last.source, last.end, last.end, f", {new}")
        return
    newline = text.find("\n", last.end)
    ending = "\r\n" if "\r\n" in text else "\n"
    if newline < 0:
        changes.put(last.source, len(text), len(text), ending + new)
    else:
        changes.put(last.source, newline + 1, newline + 1, new + ending)


def _key(flag: str, entries: Sequence[Entry], bare: bool = False) -> str:
    """An option as a key, with underscores where all keys have them and the loader reads both alike."""
    keys = [entry.key for entry in entries]
    underscores = any("_" in key for key in keys) and not any("-" in key for key in keys)
    name = flag.lstrip("-")
    return name.replace("-", "_") if underscores and not bare else name


def _scalar(value: str | bool) -> str:
    """A value as YAML reads it back: plain where it can be, else in single quotes."""
    if isinstance(value, bool):
        return str(value).lower()
    try:
        plain = str(load_yaml(f"k: {value}")["k"]) == value
    except ValueError:
        plain = False
    return value if plain else "'" + value.replace("'", "''") + "'"
