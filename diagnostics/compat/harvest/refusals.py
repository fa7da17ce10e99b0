"""What a release's own objects refuse once the options are parsed, as conditions over options.

The bodies that always run when an object is made are followed (`__post_init__`, validators, `create_engine_config`), and
the way to each `raise` becomes a condition of `rules.conditions`. A part that cannot be put so is left out where that
makes the condition narrower, and the refusal with it where it does not: what is kept is refused for certain.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from typing import Any

from ..releases.table import Refusal
from .interpret.evaluator import Evaluator
from .interpret.fields import field_named, hint_parts
from .interpret.values import ClassValue, FunctionValue, Scope
from .resolved import Resolvers

Node = list[Any]
MAX_DEPTH = 3
# Objects that are made only if an option, or the model, asks for them.
MADE_IF = {
    "LoRAConfig": ["name", "enable_lora"],
    "MultiModalConfig": ["name", "model.is_multimodal"],
    "PromptAdapterConfig": ["name", "enable_prompt_adapter"],
}
# Fields that code fills in or respells, and that keep a given value all the same, the names of MTP models aside.
KEPT = frozenset({"SpeculativeConfig.method"})
CALLS = {"len": "count", "min": "least", "max": "max"}
COMPARE: dict[type[ast.cmpop], str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Is: "==", ast.IsNot: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">",
    ast.GtE: ">=", ast.In: "in",
}  # fmt: skip


def refusals(
    evaluator: Evaluator, classes: Mapping[str, ClassValue], names: Mapping[str, str], resolvers: Resolvers
) -> dict[str, Refusal]:
    """Every refusal by class and condition; `names` are the options' names in conditions by `Class.field`."""
    found: dict[str, Refusal] = {}
    for cls in classes.values():
        reader = _Reader(evaluator, cls, names, resolvers)
        made_if = [MADE_IF[cls.name]] if cls.name in MADE_IF else []
        for method in _always_run(cls):
            for node, conditions in reader.body(method.body, made_if, {}, 0):
                when = conditions[0] if len(conditions) == 1 else ["and", *conditions]
                if len(conditions) > len(made_if):
                    text = f"{cls.name} {json.dumps(when)}"
                    found.setdefault(text, Refusal(when, cls.module.evidence(node)))
    return found


def _always_run(cls: ClassValue) -> Iterator[ast.FunctionDef]:
    for node in cls.node.body:
        if isinstance(node, ast.FunctionDef):
            decorators = " ".join(map(ast.unparse, node.decorator_list))
            after = "model_validator" in decorators and "after" in decorators
            if after or node.name in ("__post_init__", "create_engine_config"):
                yield node


class _Reader:
    """Reads the methods of one class."""

    def __init__(
        self, evaluator: Evaluator, cls: ClassValue, names: Mapping[str, str], resolvers: Resolvers
    ) -> None:
        self._evaluator = evaluator
        self._cls = cls
        self._names = names
        self._resolvers = resolvers

    def body(
        self, body: list[ast.stmt], path: list[Node], local: dict[str, ast.expr | None], depth: int
    ) -> Iterator[tuple[ast.stmt, list[Node]]]:
        """Each statement that raises, with the conditions that lead there."""
        path = list(path)
        for node in body:
            match node:
                case ast.Raise():
                    yield node, path
                case ast.Assert(test=test):
                    refused = self._condition(ast.UnaryOp(ast.Not(), test), local)
                    if refused is not None:
                        yield node, [*path, refused]
                case ast.If(test=test, body=then, orelse=otherwise):
                    negated = self._condition(ast.UnaryOp(ast.Not(), test), local)
                    taken = self._condition(test, local)
                    if taken is not None:
                        yield from self.body(then, [*path, taken], local, depth)
                    if negated is not None:
                        yield from self.body(otherwise, [*path, negated], local, depth)
                    for name in _assigned([*then, *otherwise]):
                        local[name] = None
                    ends = isinstance(then[-1], ast.Return)
                    if _returns(otherwise if ends else [*then, *otherwise]) or (ends and negated is None):
                        return
                    if ends and negated is not None:
                        path.append(negated)
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    local[name] = None if name in local else value
                case ast.Expr(
                    value=ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name), args=[])
                ):
                    method = self._evaluator.attribute(self._cls, name)
                    if isinstance(method, FunctionValue) and depth < MAX_DEPTH:
                        yield from self.body(method.node.body, path, {}, depth + 1)
                case _ if _returns([node]):
                    return
                case _:
                    local |= dict.fromkeys(_assigned([node]))

    def _condition(
        self, node: ast.expr, local: Mapping[str, ast.expr | None], exact: bool = False
    ) -> Node | None:
        """A condition that holds only where `node` does (where and only where if `exact`); None for none."""
        match node:
            case ast.BoolOp(op=op, values=values):
                parts = [self._condition(value, local, exact) for value in values]
                known = [part for part in parts if part is not None]
                if not known or (len(known) < len(parts) and (exact or isinstance(op, ast.And))):
                    return None
                return known[0] if len(known) == 1 else ["and" if isinstance(op, ast.And) else "or", *known]
            case ast.UnaryOp(op=ast.Not(), operand=ast.BoolOp(op=op, values=values)):
                other = ast.Or() if isinstance(op, ast.And) else ast.And()
                return self._condition(
                    ast.BoolOp(other, [ast.UnaryOp(ast.Not(), value) for value in values]), local, exact
                )
            case ast.UnaryOp(op=ast.Not(), operand=ast.UnaryOp(op=ast.Not(), operand=inner)):
                return self._condition(inner, local, exact)
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                value = self._condition(inner, local, exact=True)
                return None if value is None else ["not", value]
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                pairs = list(zip([left, *comparators], ops, comparators, strict=False))
                parts = [self._comparison(*pair, local) for pair in pairs]
                if any(part is None for part in parts):
                    return None
                return parts[0] if len(parts) == 1 else ["and", *parts]
            case ast.Attribute(value=ast.Name(id="self"), attr=attr) if (
                inner := self._inlined(attr)
            ) is not None:
                return self._condition(inner, {}, exact)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=attr), args=[], keywords=[]):
                inner = self._inlined(attr)
                return None if inner is None else self._condition(inner, {}, exact)
            case _:
                value = self._value(node, local)
                return None if value is None or value[0] == "lit" else value

    def _comparison(
        self, left: ast.expr, op: ast.cmpop, right: ast.expr, local: Mapping[str, ast.expr | None]
    ) -> Node | None:
        sides = [self._value(left, local), self._value(right, local)]
        if None in sides or all(side and side[0] in ("lit", "list") for side in sides):
            return None
        if isinstance(op, ast.NotIn):
            return ["not", ["in", *sides]]
        return [COMPARE[type(op)], *sides] if type(op) in COMPARE else None

    def _value(self, node: ast.expr, local: Mapping[str, ast.expr | None]) -> Node | None:
        match node:
            case ast.Name(id=name) if name in local:
                bound = local[name]
                return None if bound is None else self._value(bound, {})
            case ast.Attribute(value=ast.Name(id="self"), attr=attr):
                inner = self._inlined(attr)
                return self._option(self._cls, attr) if inner is None else self._value(inner, {})
            case ast.Attribute(value=ast.Attribute(value=ast.Name(id="self"), attr=holder), attr=attr):
                field = field_named(self._evaluator, self._cls, holder)
                classes = (
                    [part for part in hint_parts(field.hint) if isinstance(part, ClassValue)] if field else []
                )
                return self._option(classes[0], attr) if classes else None
            case ast.Call(func=ast.Name(id=("len" | "min" | "max") as name), args=[_, *_] as given):
                values = [self._value(item, local) for item in given]
                return None if None in values else ["call", CALLS[name], *values]
            case ast.IfExp(test=test, body=body, orelse=orelse):
                chosen = self._condition(test, local, exact=True)
                values = [chosen, self._value(body, local), self._value(orelse, local)]
                return None if None in values else ["if", *values]
        if any(isinstance(part, ast.Name) and part.id == "self" for part in ast.walk(node)):
            return None
        return _literal(self._evaluator.expression(node, Scope(self._cls.module)))

    def _option(self, cls: ClassValue, attr: str) -> Node | None:
        """The option behind an attribute, if nothing but the parser sets it."""
        field = field_named(self._evaluator, cls, attr)
        name = None if field is None else self._names.get(field.qualified)
        if field is None or name is None:
            return None
        if self._resolvers.place(name, field) is None:
            return ["name", name]
        kept = field.qualified in KEPT or self._resolvers.keeps(name, field)
        return ["name", f"kept.{name}"] if kept else None

    def _inlined(self, attr: str) -> ast.expr | None:
        """What a property, or a method without arguments, returns when that is all it does."""
        method = self._evaluator.attribute(self._cls, attr)
        if not isinstance(method, FunctionValue) or len(method.node.args.args) != 1:
            return None
        body = [node for node in method.node.body if not isinstance(node, ast.Expr)]
        return body[0].value if len(body) == 1 and isinstance(body[0], ast.Return) else None


def _literal(value: Any) -> Node | None:
    if value is None or isinstance(value, bool | int | float | str):
        return ["lit", value]
    if isinstance(value, list | tuple | set) and value:
        items = [_literal(item) for item in value]
        return ["list", *sorted(items, key=str)] if None not in items else None
    return None


def _returns(body: list[ast.stmt]) -> bool:
    """Whether statements may end their method, so that those behind are reached under a condition of their own."""
    methods = (ast.FunctionDef, ast.AsyncFunctionDef)
    return any(
        isinstance(node, ast.Return)
        for statement in body
        if not isinstance(statement, methods)
        for node in ast.walk(statement)
    )


def _assigned(body: list[ast.stmt]) -> set[str]:
    """The local names that statements assign anywhere."""
    return {
        node.id
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
