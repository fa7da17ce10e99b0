"""Edits of a flat settings file by a YAML round trip: comments, order and quotes stay as they are."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ....core.errors import ConfigError
from ..checks.findings import Edit
from ..inputs.base import Source


def edit_settings(source: Source, edits: Sequence[Edit], keys: Mapping[str, Sequence[str]]) -> str:
    """The file's text after the edits; `keys` are the keys that set each edited option."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.allow_duplicate_keys = True
    yaml.width = 1_000_000
    yaml.explicit_start = bool(re.match(r"(#[^\n]*\n|%[^\n]*\n|\s)*---", source.text))  # type: ignore[assignment]
    dash = re.search(r"^\S[^\n]*:[ \t]*\n( *)- ", source.text, re.M)
    if dash:
        yaml.indent(sequence=len(dash.group(1)) + 2, offset=len(dash.group(1)))
    try:
        data = yaml.load(source.text)
    except YAMLError as error:
        raise ConfigError(
            f"{source.name} cannot be rewritten: {' '.join(str(error).split())[:200]}"
        ) from None
    for edit in edits:
        _apply(data, edit, [key for key in keys.get(edit.flag, ()) if key in data])
    if not data:
        return "".join(
            line for line in source.text.splitlines(keepends=True) if line.lstrip().startswith("#")
        )
    out = io.StringIO()
    yaml.dump(data, out)
    text = out.getvalue()
    if "\r\n" in source.text:
        text = text.replace("\r\n", "\n").replace("\n", "\r\n")
    return text if source.text.endswith("\n") else text.rstrip("\n")


def _apply(data: Any, edit: Edit, keys: list[str]) -> None:
    underscores = any("_" in str(key) for key in data) and not any("-" in str(key) for key in data)
    if edit.kind == "unset":
        for key in keys:
            _drop(data, key)
    elif edit.kind == "rename" and edit.to is not None:
        for key in keys:
            _rename(data, key, _key(edit.to, underscores and edit.value is not True), edit.value)
    elif edit.kind == "set":
        key = keys[-1] if keys else _key(edit.flag, underscores)
        data[key] = _value(edit.value)


def _key(flag: str, underscores: bool) -> str:
    name = flag.lstrip("-")
    return name.replace("-", "_") if underscores else name


def _value(value: str | bool | None) -> Any:
    if not isinstance(value, str):
        return value
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    if value.startswith(("{", "[")):
        from ruamel.yaml.scalarstring import SingleQuotedScalarString

        return SingleQuotedScalarString(value)
    return value


def _rename(data: Any, old: str, new: str, value: str | bool | None) -> None:
    """The same entry under another key, in the same place, with its comment."""
    position = list(data).index(old)
    kept = data[old] if value is None else value
    comment = data.ca.items.pop(old, None)
    del data[old]
    data.insert(position, new, kept)
    if comment is not None:
        data.ca.items[new] = comment


def _drop(data: Any, key: str) -> None:
    """Remove an entry and its own comment; comment lines that follow it go to the entry before."""
    names = list(data)
    position = names.index(key)
    following = _following_comment(data, key)
    del data[key]
    data.ca.items.pop(key, None)
    if not following:
        return
    if position == 0:
        _prepend_start(data, following)
    else:
        _append(data, names[position - 1], following)


def _following_comment(data: Any, key: str) -> str:
    """The comment lines after an entry, which stand in front of the next one."""
    tokens = data.ca.items.get(key)
    token = tokens[2] if tokens and len(tokens) > 2 else None
    if token is None:
        return ""
    _first, _, rest = token.value.partition("\n")
    return rest if rest.strip() else ""


def _append(data: Any, key: str, text: str) -> None:
    from ruamel.yaml.error import CommentMark
    from ruamel.yaml.tokens import CommentToken

    tokens = data.ca.items.setdefault(key, [None, None, None, None])
    if tokens[2] is None:
        tokens[2] = CommentToken("\n" + text, CommentMark(0), None)
    else:
        before = tokens[2].value
        tokens[2].value = before + ("" if before.endswith("\n") else "\n") + text


def _prepend_start(data: Any, text: str) -> None:
    from ruamel.yaml.error import CommentMark
    from ruamel.yaml.tokens import CommentToken

    token = CommentToken(text, CommentMark(0), None)
    if data.ca.comment is None:
        data.ca.comment = [None, [token]]
    else:
        before = data.ca.comment[1] or []
        data.ca.comment[1] = [*before, token]
