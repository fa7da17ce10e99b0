"""Compiled conditions in the words of their language, for findings and lists."""

from __future__ import annotations

import json

from .conditions import ORDER, Node, names, plain


def text(node: Node) -> str:
    """A compiled condition in the words of its language."""
    kind, *parts = node
    if kind == "name":
        return plain(parts[0])
    if kind == "lit":
        return json.dumps(parts[0])
    if kind == "list":
        return f"[{', '.join(map(text, parts))}]"
    if kind == "call" and parts[0] == "coalesce":  # an option's short form and its key
        return text(parts[-1])
    if kind == "call" and parts[0] == "within":
        return text(["in", *parts[1:]])
    if kind == "call":
        return f"{parts[0]}({', '.join(map(text, parts[1:]))})"
    if kind == "if" and parts[0][0] == "call" and parts[0][2] == parts[2]:  # other names for one
        return text(parts[2])
    if kind == "if":
        return f"{text(parts[1])} if {text(parts[0])} else {text(parts[2])}"
    if kind == "each":
        name, listed, made, holds = parts
        some = "" if made == ["name", name] else f"{text(made)} of "
        return f"{some}some {plain(name)} in {text(listed)} with {text(holds)}"
    if kind == "not" and parts[0][0] in ("==", "in"):
        return text([{"==": "!=", "in": "not in"}[parts[0][0]], *parts[0][1:]])
    if kind == "not" and parts[0][:2] == ["call", "within"]:
        return text(["not in", *parts[0][2:]])
    if kind == "not" and parts[0][0] == "name":
        return f"not {text(parts[0])}"
    if kind == "not":
        return f"not ({text(parts[0])})"
    if kind in ("and", "or"):
        parts = _told(parts) if kind == "and" else parts
        return f" {kind} ".join(_bracketed(part, "and", "or", "if") for part in parts)
    return " ".join([_bracketed(parts[0], *_LOOSER), kind, _bracketed(parts[1], *_LOOSER)])


def _told(parts: list[Node]) -> list[Node]:
    """What a conjunction says, besides that a value is there which another part speaks of."""
    found = []
    for part in parts:
        others = {name for other in parts if other is not part for name in names(other)}
        if part[0] != "not" or part[1][0] != "==" or part[1][2] != ["lit", None] or not names(part) <= others:
            found.append(part)
    return found or parts


_LOOSER = ("and", "or", "not", "if", "in", "==", *ORDER)


def _bracketed(part: Node, *looser: str) -> str:
    told = text(part)
    return f"({told})" if part[0] in looser and " " in told else told
