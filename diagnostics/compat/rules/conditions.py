"""The condition language of compatibility rules: three-valued, declarative, and free of ``eval``.

A condition is one line of text, for instance ::

    enable_chunked_prefill == false and max_num_batched_tokens < max_model_len

`compile_condition` turns it into nested JSON arrays (the packed form shipped with the package), and
`evaluate` computes such an array over a lookup of names. A name whose value nobody told is `Unknown`, and it
spreads by Kleene's strong logic: ``false and unknown`` is false, ``true and unknown`` is unknown, and an
`Unknown` carries the names of the facts that would settle it.

Grammar: ``and or not``, comparisons (``== != < <= > >= in``, ``not in``, chained), ``+ - * / // %``, ``a if c
else b``, lists, numbers, strings, ``true false null``, dotted names, and calls of the functions in `FUNCTIONS`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from typing import Any

from ..facts.unknown import Unknown
from ..releases.table import EACH, option_of

Node = list[Any]
Lookup = Callable[[str], Any]


class ConditionError(ValueError):
    """A condition's text is not in the language; raised when rules are packed, never on a user's input."""


def _as_text(value: Any) -> str:
    return "" if value is None else str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _numbers(values: Iterable[Any]) -> list[Any]:
    """The numbers among the values, and in the lists among them."""
    return [item for value in values for item in _listed(value) if _is_number(item)]


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (list, tuple, dict, str)) else 0


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _items(value: Any) -> list[Any]:
    """What a loop of Python's goes over: the items of a list, the keys of an object."""
    return list(value) if isinstance(value, dict) else _listed(value)


def _within(item: Any, held: Any) -> bool:
    """`item in held` as Python has it: a part of a text, an item of a list, a key of an object."""
    if isinstance(held, str):
        return isinstance(item, str) and item in held
    return any(_equal(item, other) for other in _items(held))


def _at(value: Any, place: Any) -> Any:
    found = value if isinstance(value, (str, list, tuple)) and _is_number(place) else []
    return found[place] if -len(found) <= place < len(found) else None


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, (int, float)) or str(value).strip().isdigit() else None


_KINDS: dict[str, Any] = {
    "str": str,
    "int": int,
    "float": (int, float),
    "bool": bool,
    "list": list,
    "dict": dict,
}


def _is_instance(value: Any, kinds: list[str]) -> bool:
    return any(kind in _KINDS and isinstance(value, _KINDS[kind]) for kind in kinds)


# Functions of known values. `coalesce`, `known` and `if` are in `evaluate`, for they decide over unknown ones.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "common": lambda a, b: [item for item in _items(a) if _within(item, _items(b))],
    "distinct": lambda v: len({repr(item) for item in _items(v)}),
    "int": _whole,
    "isdigit": lambda v: _as_text(v).isdigit(),
    "isinstance": _is_instance,
    "item": _at,
    "keys": _items,
    "matches": lambda text, pattern: re.fullmatch(pattern, _as_text(text)) is not None,
    "split": lambda text, *by: _as_text(text).split(*by),
    "strip": lambda text, *by: _as_text(text).strip(*by),
    "tail": lambda v, start: v[start:] if isinstance(v, (str, list)) else None,
    "text": _as_text,
    "truth": lambda v: _as_text(v).strip().lower() in ("1", "true"),
    "values": lambda v: list(v.values()) if isinstance(v, dict) else [],
    "within": _within,
    "without": lambda a, b: [item for item in _items(a) if not _within(item, _items(b))],
    "ceil_div": lambda a, b: -(-a // b) if _is_number(a) and _is_number(b) and b else None,
    "contains": lambda text, part: _as_text(part) in _as_text(text),
    "containsany": lambda text, parts: any(_as_text(part) in _as_text(text) for part in _listed(parts)),
    "count": _length,
    "endswith": lambda text, part: _as_text(text).endswith(_as_text(part)),
    "least": lambda *values: min(_numbers(values), default=None),
    "lower": lambda v: _as_text(v).lower(),
    "max": lambda *values: max(_numbers(values), default=None),
    "overlap": lambda a, b: any(item in _listed(b) for item in _listed(a)),
    "startswith": lambda text, part: _as_text(text).startswith(_as_text(part)),
}

_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}

ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

_CONSTANTS = {"true": True, "false": False, "null": None}


def evaluate(node: Node, lookup: Lookup) -> Any:
    """The value of a compiled condition: any plain value, or `Unknown`. Never raises on odd values.

    Arithmetic over null is null and an order comparison with null is false; an order comparison of things that
    have no order (a word against a number) is false as well, since readers report such values themselves.
    """
    kind = node[0]
    if kind == "lit":
        return node[1]
    if kind == "name":
        return lookup(node[1])
    if kind in ("and", "or"):
        return _junction(node, lookup, stop=kind == "or")
    if kind == "not":
        value = evaluate(node[1], lookup)
        return value if isinstance(value, Unknown) else not value
    if kind == "if":
        return _choice(node, lookup)
    if kind == "call":
        return _call(node[1], node[2:], lookup)
    if kind == "each":
        return _each(node, lookup)
    values = [evaluate(part, lookup) for part in node[1:]]
    missing = _missing(values)
    if missing:
        against_null = kind in ("==", "!=") and None in values
        given = any(isinstance(value, Unknown) and value.given for value in values)
        return kind == "!=" if against_null and given else missing
    if kind == "list":
        return values
    return _binary(kind, values[0], values[1])


def _missing(values: Iterable[Any]) -> Unknown | None:
    names = [v.missing for v in values if isinstance(v, Unknown)]
    return Unknown(frozenset().union(*names)) if names else None


def _junction(node: Node, lookup: Lookup, stop: bool) -> Any:
    open_values = []
    for part in node[1:]:
        value = evaluate(part, lookup)
        if isinstance(value, Unknown):
            open_values.append(value)
        elif bool(value) is stop:
            return stop
    return _missing(open_values) or (not stop)


def _choice(node: Node, lookup: Lookup) -> Any:
    test = evaluate(node[1], lookup)
    if not isinstance(test, Unknown):
        return evaluate(node[2] if test else node[3], lookup)
    first, second = evaluate(node[2], lookup), evaluate(node[3], lookup)
    if not isinstance(first, Unknown) and not isinstance(second, Unknown) and first == second:
        return first
    return _missing([test, first, second])


def _each(node: Node, lookup: Lookup) -> Any:
    """The list made of those items of a list that meet a condition; the item goes by the name that the node gives it."""
    _, name, listed, made, holds = node
    items = evaluate(listed, lookup)
    if isinstance(items, Unknown):
        return items
    found: list[Any] = []
    for item in _items(items):
        inner = _naming(name, item, lookup)
        kept = evaluate(holds, inner)
        value = evaluate(made, inner) if kept else None
        missing = _missing([kept, value])
        if missing is not None:
            return missing
        found += [value] if kept else []
    return found


def _naming(name: str, value: Any, lookup: Lookup) -> Lookup:
    return lambda wanted: value if wanted == name else lookup(wanted)


def _call(name: str, arguments: list[Node], lookup: Lookup) -> Any:
    values = [evaluate(part, lookup) for part in arguments]
    if name == "known":
        return not isinstance(values[0], Unknown)
    if name == "coalesce":
        return next((value for value in values if value is not None), None)
    missing = _missing(values)
    if missing is not None:
        return missing
    try:
        return FUNCTIONS[name](*values)
    except (TypeError, ValueError, RecursionError):
        return None


def _binary(kind: str, left: Any, right: Any) -> Any:
    if kind == "==":
        return _equal(left, right)
    if kind == "!=":
        return not _equal(left, right)
    if kind == "in":
        return any(_equal(left, item) for item in _listed(right))
    if kind in ORDER:
        comparable = _is_number(left) and _is_number(right)
        return ORDER[kind](left, right) if comparable else False
    if not (_is_number(left) and _is_number(right)):
        return None
    if kind in ("/", "//", "%") and right == 0:
        return None
    return _ARITHMETIC[kind](left, right)


def _equal(left: Any, right: Any) -> bool:
    # Python's True == 1 would let `flag == true` match a count of one.
    if isinstance(left, bool) != isinstance(right, bool):
        return False
    return left == right


def compile_condition(text: str) -> Node:
    """The packed form of a condition's text; raises `ConditionError` naming what is not in the language."""
    import ast

    try:
        tree = ast.parse(f"({text.strip()})", mode="eval")
    except SyntaxError as error:
        raise ConditionError(f"{text!r}: {error.msg}") from error
    return _compile(tree.body, text)


def _compile(tree: Any, source: str) -> Node:
    import ast

    def sub(part: Any) -> Node:
        return _compile(part, source)

    match tree:
        case ast.Constant(value=value) if isinstance(value, (int, float, str, bool)):
            return ["lit", value]
        case ast.Name(id=name) if name in _CONSTANTS:
            return ["lit", _CONSTANTS[name]]
        case ast.Name() | ast.Attribute():
            return ["name", _dotted(tree, source)]
        case ast.List(elts=items):
            return ["list", *map(sub, items)]
        case ast.BoolOp(op=op, values=values):
            return ["and" if isinstance(op, ast.And) else "or", *map(sub, values)]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return ["not", sub(operand)]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return ["lit", -number]
        case ast.BinOp(left=left, op=op, right=right):
            return [_symbol(op, source), sub(left), sub(right)]
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return ["if", sub(test), sub(body), sub(orelse)]
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            return _comparison([left, *comparators], ops, source)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            if name not in FUNCTIONS and name not in ("known", "coalesce"):
                raise ConditionError(f"{source!r}: no function named {name}")
            return ["call", name, *map(sub, arguments)]
    raise ConditionError(f"{source!r}: {type(tree).__name__} is not in the condition language")


def _comparison(operands: list[Any], ops: list[Any], source: str) -> Node:
    parts = []
    for left, op, right in zip(operands, ops, operands[1:], strict=False):
        symbol = _symbol(op, source)
        pair = [_compile(left, source), _compile(right, source)]
        parts.append(["not", ["in", *pair]] if symbol == "not in" else [symbol, *pair])
    return parts[0] if len(parts) == 1 else ["and", *parts]


def _dotted(tree: Any, source: str) -> str:
    import ast

    if isinstance(tree, ast.Name):
        return tree.id
    if isinstance(tree, ast.Attribute):
        return f"{_dotted(tree.value, source)}.{tree.attr}"
    raise ConditionError(f"{source!r}: a name is words joined by dots")


def _symbol(op: Any, source: str) -> str:
    symbols = {
        "Eq": "==", "NotEq": "!=", "Lt": "<", "LtE": "<=", "Gt": ">", "GtE": ">=", "In": "in", "NotIn": "not in",
        "Add": "+", "Sub": "-", "Mult": "*", "Div": "/", "FloorDiv": "//", "Mod": "%",
    }  # fmt: skip
    name = type(op).__name__
    if name not in symbols:
        raise ConditionError(f"{source!r}: operator {name} is not in the condition language")
    return symbols[name]


def option(name: str) -> str:
    """The option that a name reads (`kept.speculative_config.method`: --speculative-config)."""
    return option_of(plain(name).partition(".")[0])


def options(names: Iterable[str]) -> list[str]:
    """The options that names read, besides facts of the model and variables of the environment."""
    return [option(name) for name in names if not plain(name).startswith(("model.", "env."))]


def plain(name: str) -> str:
    """A name without what it says of how its value is had."""
    return name.removeprefix("kept.").removeprefix("given.").removeprefix(EACH)


def names(node: Node) -> set[str]:
    """Every name a compiled condition reads."""
    if node[0] == "name":
        return set() if node[1].startswith(EACH) else {node[1]}
    return {name for part in node[1:] if isinstance(part, list) for name in names(part)}
