"""List, set and dict comprehensions, and generators."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from .operations import bind
from .values import Scope, known

if TYPE_CHECKING:
    from .evaluator import Evaluator


def comprehension(
    interpreter: Evaluator, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, scope: Scope
) -> Any:
    """The list, set or dict that a comprehension makes. Raises ValueError when a condition is unknown."""
    found: list[Any] = []
    _comprehend(interpreter, node, 0, Scope(scope.module, dict(scope.names), scope.owner, scope.bound), found)
    if isinstance(node, ast.DictComp):
        return dict(found)
    return set(found) if isinstance(node, ast.SetComp) else found


def _comprehend(interpreter: Evaluator, node: Any, position: int, scope: Scope, found: list[Any]) -> None:
    if position == len(node.generators):
        if isinstance(node, ast.DictComp):
            found.append((interpreter.expression(node.key, scope), interpreter.expression(node.value, scope)))
        else:
            found.append(interpreter.expression(node.elt, scope))
        return
    generator = node.generators[position]
    for item in interpreter.iterate(interpreter.expression(generator.iter, scope)):
        bind(generator.target, item, scope)
        verdicts = [interpreter.expression(test, scope) for test in generator.ifs]
        if not all(known(verdict) for verdict in verdicts):
            raise ValueError("a condition of a comprehension is unknown")
        if all(verdicts):
            _comprehend(interpreter, node, position + 1, scope, found)
