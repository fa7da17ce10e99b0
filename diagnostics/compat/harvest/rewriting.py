"""Expressions rewritten: with what their local names stand for, and negated."""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping
from typing import Any

from .interpret.values import FunctionValue

# What a local name stands for; None is something that no condition can say.
Locals = Mapping[str, ast.expr | None]
UNKNOWN = ast.Name("?")
FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn,
    ast.NotIn: ast.In, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
}  # fmt: skip


class _Substitution(ast.NodeTransformer):
    def __init__(self, local: Locals) -> None:
        self._local = local

    def _comprehension(self, node: Any) -> ast.AST:
        own = {
            part.id
            for each in node.generators
            for part in ast.walk(each.target)
            if isinstance(part, ast.Name)
        }
        outer, self._local = self._local, {name: to for name, to in self._local.items() if name not in own}
        found = self.generic_visit(node)
        self._local = outer
        return found

    visit_GeneratorExp = visit_ListComp = visit_SetComp = visit_DictComp = _comprehension  # noqa: N815

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self._local:
            return node
        bound = self._local[node.id]
        return UNKNOWN if bound is None else bound


def substituted(node: ast.expr, local: Locals) -> ast.expr:
    """`node` with local names replaced by what they stand for."""
    return _Substitution(local).visit(copy.deepcopy(node)) if local else node


def negated(node: ast.expr) -> ast.expr:
    """The negation of an expression, moved inwards as far as it goes, so that a comparison with nothing stays false."""
    match node:
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return inner
        case ast.BoolOp(op=op, values=values):
            return ast.BoolOp(
                ast.Or() if isinstance(op, ast.And) else ast.And(), [negated(v) for v in values]
            )
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            pairs = zip([left, *comparators], ops, comparators, strict=False)
            parts: list[ast.expr] = [ast.Compare(a, [FLIPPED[type(op)]()], [b]) for a, op, b in pairs]
            return parts[0] if len(parts) == 1 else ast.BoolOp(ast.Or(), parts)
        case _:
            return ast.UnaryOp(ast.Not(), node)


def bound(
    method: FunctionValue, base: ast.expr | None, called: ast.Call | None
) -> dict[str, ast.expr | None]:
    """What the parameters of a method of `base`, or of a function, stand for in a call; what is not given is unknown."""
    arguments = method.node.args
    parameters = [item.arg for item in [*arguments.posonlyargs, *arguments.args]]
    local: dict[str, ast.expr | None] = dict.fromkeys([*parameters, *(k.arg for k in arguments.kwonlyargs)])
    if parameters and parameters[0] in ("self", "cls"):
        local[parameters.pop(0)] = base
    if called is not None and not any(isinstance(item, ast.Starred) for item in called.args):
        local |= zip(parameters, called.args, strict=False)
        local |= {keyword.arg: keyword.value for keyword in called.keywords if keyword.arg in local}
    return local
