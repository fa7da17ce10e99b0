"""Config fields to argparse options, the way a release's own `get_kwargs` turns them (vllm/engine/arg_utils.py).

What changed in that function over the releases is read from its source in the release at hand (`Style`).
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .interpret.calls import handles, literal_options
from .interpret.evaluator import Evaluator
from .interpret.fields import NONE, FieldSpec, default_of, fields, hint_parts, is_dataclass
from .interpret.source import PackageSource
from .interpret.values import ClassValue, FunctionValue, LambdaValue, Symbol, TypeForm, Unknown

LITERAL = Symbol("typing.Literal")
BOOLEAN_OPTIONAL = Symbol("argparse.BooleanOptionalAction")
FIELD = "__field__"


@dataclass(frozen=True)
class Conversion:
    """What an option does with its text: `name` is `int`, `str`, `json`, `json_or_str`, `human_readable`, ..."""

    name: str
    optional: bool = False


@dataclass(frozen=True)
class Style:
    """How this release's `get_kwargs` behaves where releases differ."""

    literal_or_str_is_free: bool
    none_choice: Any
    human_readable: frozenset[str]
    human_readable_or_auto: frozenset[str]
    bool_or_str_takes_value: bool
    sets: bool
    # 0.8.4: a function inside add_cli_args that knows no booleans and no choices
    text_only: bool


@lru_cache(maxsize=4)
def style(tree: PackageSource) -> Style:
    """The style of the release in `tree`, read from the source of its arg_utils."""
    module = tree.module("vllm.engine.arg_utils")
    names = () if module is None else ("literal_to_kwargs", "get_kwargs", "_compute_kwargs")
    bodies = {
        name: ast.unparse(node)
        for name in names
        if module is not None and isinstance(node := module.bindings.get(name), ast.FunctionDef)
    }
    text = "\n".join(bodies.values())
    return Style(
        literal_or_str_is_free="metavar" in bodies.get("literal_to_kwargs", ""),
        none_choice="None" if "append('None')" in text else None,
        human_readable=_named(module, bodies, "human_readable_int"),
        human_readable_or_auto=_named(module, bodies, "human_readable_int_or_auto"),
        bool_or_str_takes_value="{bool, str, type(None)}" in text,
        sets="contains_type(type_hints, set)" in text,
        text_only="get_kwargs" not in bodies,
    )


def _named(module: Any, bodies: dict[str, str], conversion: str) -> frozenset[str]:
    """The field names that get a conversion of their own: `if name in {...}` or `name == "..."` around it."""
    found: set[str] = set()
    for name in bodies:
        sets = _string_sets(module.bindings[name])
        for node in ast.walk(module.bindings[name]):
            if isinstance(node, ast.If) and _assigns(node.body, conversion):
                found |= _compared(node.test, sets)
    return frozenset(found)


def _string_sets(function: ast.AST) -> dict[str, set[str]]:
    """Local names bound to a set of strings."""
    return {
        ast.unparse(node.targets[0]): {
            str(item.value) for item in node.value.elts if isinstance(item, ast.Constant)
        }
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Set)
    }


def _assigns(body: list[ast.stmt], conversion: str) -> bool:
    return any(
        isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id == conversion
        for node in body
    )


def _compared(test: ast.expr, sets: dict[str, set[str]]) -> set[str]:
    if not (isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "name"):
        return set()
    right = test.comparators[0]
    if isinstance(right, ast.Constant):
        return {str(right.value)}
    if isinstance(right, (ast.Set, ast.Tuple, ast.List)):
        return {str(item.value) for item in right.elts if isinstance(item, ast.Constant)}
    return sets.get(ast.unparse(right), set())


@handles("get_kwargs")
def get_kwargs(evaluator: Evaluator, _: FunctionValue, args: list[Any], __: dict[str, Any]) -> Any:
    """argparse's keyword arguments for every field of a config class, keyed by field name."""
    cls = args[0]
    if not isinstance(cls, ClassValue):
        return Unknown(f"get_kwargs({cls})")
    how = style(evaluator.tree)
    found: dict[str, Any] = {}
    default: Any = None
    for field in fields(evaluator, cls):
        default = default_of(evaluator, field, default)
        found[field.name] = {
            "default": default,
            "help": field.doc,
            FIELD: field,
            **option(evaluator, field, how),
        }
    return found


def option(evaluator: Evaluator, field: FieldSpec, how: Style) -> dict[str, Any]:
    """`type`, `choices`, `nargs` and `action` for one field."""
    parts = [_plain_dict(evaluator, part) for part in hint_parts(field.hint)]
    optional = NONE in parts
    if how.text_only:
        return _text_only(parts, optional)
    if any(is_dataclass(evaluator, part) for part in parts):
        return _optional({"type": Conversion("json")}, optional, how)
    if how.bool_or_str_takes_value and set(map(_key, parts)) == {bool, str, NONE}:
        return {"type": Conversion("str"), "nargs": "?", "const": True}
    if bool in parts:
        return {"action": BOOLEAN_OPTIONAL}
    return _optional(_by_type(evaluator, field.name, parts, how), optional, how)


def _text_only(parts: list[Any], optional: bool) -> dict[str, Any]:
    if parts == [bool]:
        return {}
    plain = None if optional or str in parts else next((part for part in parts if part in (int, float)), None)
    return {"type": Conversion("str" if plain is None else plain.__name__, optional)}


def _by_type(evaluator: Evaluator, name: str, parts: list[Any], how: Style) -> dict[str, Any]:
    literals = [part for part in parts if isinstance(part, TypeForm) and part.origin == LITERAL]
    if literals:
        return _literal(evaluator, literals[0], free=how.literal_or_str_is_free and str in parts)
    for kind in (tuple, list, *([set] if how.sets else [])):
        form = next((p for p in parts if p is kind or (isinstance(p, TypeForm) and p.origin is kind)), None)
        if form is not None:
            return _collection(evaluator, form, kind)
    if int in parts:
        if name in how.human_readable_or_auto:
            return {"type": Conversion("human_readable_or_auto")}
        return {"type": Conversion("human_readable" if name in how.human_readable else "int")}
    if float in parts:
        return {"type": Conversion("float")}
    has_dict = any(p is dict or (isinstance(p, TypeForm) and p.origin is dict) for p in parts)
    if has_dict:
        others = [
            p
            for p in parts
            if p is not NONE and not (p is dict or (isinstance(p, TypeForm) and p.origin is dict))
        ]
        return {"type": Conversion("json_or_str" if others else "json")}
    if any(
        isinstance(p, ClassValue) and evaluator.classes.is_enum(p) and _counts(evaluator, p) for p in parts
    ):
        return {"type": Conversion("int")}
    return {"type": Conversion("str")}


def _literal(evaluator: Evaluator, form: TypeForm, free: bool = False) -> dict[str, Any]:
    options = list(literal_options(evaluator, form))
    kind = Conversion(type(options[0]).__name__)
    return {"type": kind} if free else {"type": kind, "choices": sorted(options)}


def _collection(evaluator: Evaluator, form: Any, kind: type) -> dict[str, Any]:
    args = form.args if isinstance(form, TypeForm) else (str,)
    nargs: str | int = "+" if kind is not tuple or Ellipsis in args else len(args)
    element = args[0]
    if isinstance(element, TypeForm) and element.origin == LITERAL:
        return {**_literal(evaluator, element), "nargs": nargs}
    name = element.__name__ if element in (int, float, str, bool) else "str"
    return {"type": Conversion(name), "nargs": nargs}


def _optional(found: dict[str, Any], optional: bool, how: Style) -> dict[str, Any]:
    if optional:
        found["type"] = Conversion(found["type"].name, optional=True)
        if found.get("choices"):
            found["choices"] = [*found["choices"], how.none_choice]
    return found


def _counts(evaluator: Evaluator, cls: ClassValue) -> bool:
    """Whether an enumeration's values are numbers."""
    return all(isinstance(member.value, int) for member in evaluator.classes.enum_members(cls))


def _plain_dict(evaluator: Evaluator, part: Any) -> Any:
    """A subclass of dict counts as dict (a TypedDict does not)."""
    if isinstance(part, ClassValue) and dict in evaluator.classes.outside_bases(part):
        return dict
    return part


def _key(part: Any) -> Any:
    return part.origin if isinstance(part, TypeForm) else part


@handles("optional_type", "parse_type", "nullable_str")
def _wrapped(_: Evaluator, function: FunctionValue, args: list[Any], __: dict[str, Any]) -> Any:
    """`optional_type(X)`: X, or None for the empty string or `None`."""
    inner = conversion(args[0])
    return Conversion(inner.name, inner.optional or function.node.name == "optional_type")


FUNCTION_CONVERSIONS = {
    "human_readable_int": Conversion("human_readable"),
    "human_readable_int_or_auto": Conversion("human_readable_or_auto"),
    "union_dict_and_str": Conversion("json_or_str", optional=True),
    "nullable_str": Conversion("str", optional=True),
    "nullable_kvs": Conversion("key_values", optional=True),
}

LAMBDA_CONVERSIONS = {
    "s.lower().replace('-', '_')": Conversion("snake_case"),
    "[int(device_id) if device_id.isdigit() else device_id for device_id in (part.strip() for part in s.split(','))]": (
        Conversion("numbers_or_names")
    ),
}
# What nobody here can say of a value: it is taken as it is written, and compared with nothing.
UNREAD = Conversion("str")


def conversion(value: Any) -> Conversion:
    """What an `add_argument(type=...)` does."""
    if isinstance(value, Conversion):
        return value
    if isinstance(value, type):
        return Conversion(value.__name__ if value in (int, float, str, bool) else "str")
    if value == Symbol("json.loads"):
        return Conversion("json")
    if isinstance(value, LambdaValue):
        return LAMBDA_CONVERSIONS.get(ast.unparse(value.node.body), UNREAD)
    if isinstance(value, FunctionValue):
        return FUNCTION_CONVERSIONS.get(value.node.name, Conversion("str"))
    return Conversion("str")
