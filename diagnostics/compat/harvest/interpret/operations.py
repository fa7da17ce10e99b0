"""Operators, and assignment to names: what both expressions and statements need."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from .values import Scope, Unknown, known

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
