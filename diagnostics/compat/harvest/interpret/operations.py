"""Operators, comprehensions, iteration and assignment to names: what needs no more than the value of an expression."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .classes import Classes
from .values import ClassValue, Scope, Symbol, TypeForm, Unknown, known

Expression = Callable[[ast.expr, Scope], Any]
Comprehension = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp

PLAIN_ITERABLES = (list, tuple, set, frozenset, dict, str, range, zip, enumerate)
PLAIN_ITERABLES += (type({}.items()), type({}.keys()), type({}.values()))

BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
}
COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}


def bind(target: ast.expr, value: Any, scope: Scope) -> None:
    """Assign `value` to a name or a tuple of names in `scope`."""
    if isinstance(target, ast.Name):
        scope.names[target.id] = value
    elif isinstance(target, ast.Tuple | ast.List):
        for item, part in zip(target.elts, value, strict=True):
            bind(item, part, scope)


def applied(function: Callable[[Any, Any], Any], node: ast.expr, left: Any, right: Any) -> Any:
    """`function` of both sides, or Unknown when either is."""
    if not (known(left) and known(right)):
        return Unknown(ast.unparse(node))
    return function(left, right)


def iterate(classes: Classes, value: Any) -> list[Any]:
    """The items of a known iterable. Raises TypeError for anything else."""
    if isinstance(value, ClassValue) and classes.is_enum(value):
        return list(classes.enum_members(value))
    if isinstance(value, PLAIN_ITERABLES):
        return list(value)
    raise TypeError(f"not iterable here: {value}")


def operation(
    expression: Expression, node: ast.BinOp | ast.UnaryOp | ast.BoolOp | ast.Compare, scope: Scope
) -> Any:
    """The value of an operator's expression, or Unknown."""
    match node:
        case ast.BinOp(left=left, op=op, right=right):
            values = expression(left, scope), expression(right, scope)
            if isinstance(op, ast.BitOr) and any(_is_type(value) for value in values):
                return TypeForm(Symbol("typing.Union"), values)
            return applied(BINARY[type(op)], node, *values)
        case ast.UnaryOp(op=op, operand=operand):
            value = expression(operand, scope)
            if not known(value):
                return Unknown(ast.unparse(node))
            return not value if isinstance(op, ast.Not) else (-value if isinstance(op, ast.USub) else ~value)
        case ast.BoolOp(op=op, values=values):
            result: Any = None
            for item in values:
                result = expression(item, scope)
                if not known(result) or bool(result) == isinstance(op, ast.Or):
                    return result
            return result
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return applied(COMPARE[type(op)], node, expression(left, scope), expression(right, scope))
        case _:
            return Unknown(ast.unparse(node))


def comprehension(expression: Expression, classes: Classes, node: Comprehension, scope: Scope) -> Any:
    """The list, set or dict that a comprehension makes. Raises ValueError when a condition is unknown."""
    inner = Scope(scope.module, dict(scope.names), scope.owner, scope.bound)
    found = list(_items(expression, classes, node, node.generators, inner))
    if isinstance(node, ast.DictComp):
        return dict(found)
    return set(found) if isinstance(node, ast.SetComp) else found


def _items(
    expression: Expression,
    classes: Classes,
    node: Comprehension,
    generators: Sequence[ast.comprehension],
    scope: Scope,
) -> Iterator[Any]:
    """What a comprehension makes of the items of its generators, from the outermost one on."""
    if not generators:
        if isinstance(node, ast.DictComp):
            yield expression(node.key, scope), expression(node.value, scope)
        else:
            yield expression(node.elt, scope)
        return
    for item in iterate(classes, expression(generators[0].iter, scope)):
        bind(generators[0].target, item, scope)
        verdicts = [expression(test, scope) for test in generators[0].ifs]
        if not all(map(known, verdicts)):
            raise ValueError("a condition of a comprehension is unknown")
        if all(verdicts):
            yield from _items(expression, classes, node, generators[1:], scope)


def _is_type(value: Any) -> bool:
    return isinstance(value, Symbol | TypeForm | ClassValue | type)
