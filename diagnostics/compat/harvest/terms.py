"""Expressions of a release's Python as conditions of `rules.conditions`, over options where they read nothing else."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any, TypeGuard

from ..releases.table import EACH
from .interpret.operations import COMPARE
from .interpret.source import Module
from .interpret.values import MISSING, EnumMember, Scope
from .rewriting import FLIPPED, UNKNOWN, negated, substituted
from .settings import ARGUMENTS, Node, Settings

TRUE: Node = ["lit", True]
FALSE: Node = ["lit", False]
CALLS = {"len": "count", "min": "least", "max": "max", "int": "int", "str": "text"}
SAME = ("set", "list", "tuple", "frozenset", "sorted", "bool", "float")
KINDS = {"str", "int", "float", "bool", "list", "dict"}
METHODS = {"startswith", "endswith", "lower", "strip", "split", "isdigit", "values", "keys"}
ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
}  # fmt: skip
ORDER: dict[type[ast.cmpop], str] = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
EQUAL = (ast.Eq, ast.Is)


def conjunction(parts: list[Node]) -> Node:
    """All of the parts."""
    return parts[0] if len(parts) == 1 else ["and", *parts]


@dataclass(frozen=True)
class Terms:
    """Conditions over what `settings` hold.

    An expression is given with its local names substituted, and the module whose names it uses.
    """

    settings: Settings

    def condition(self, node: ast.expr, module: Module, exact: bool = False) -> Node | None:
        """A condition that holds only where `node` does (where and only where if `exact`); None for none."""
        match node:
            case ast.BoolOp(op=op, values=values):
                return self._junction(isinstance(op, ast.And), values, module, exact)
            case ast.UnaryOp(op=ast.Not(), operand=ast.BoolOp() | ast.UnaryOp() | ast.Compare() as inner):
                return self.condition(negated(inner), module, exact)
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                value = self.condition(inner, module, exact=True)
                if value in (TRUE, FALSE):
                    return FALSE if value == TRUE else TRUE
                return None if value is None else value[1] if value[0] == "not" else ["not", value]
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                pairs = zip([left, *comparators], ops, comparators, strict=False)
                parts = [self._comparison(*pair, module) for pair in pairs]
                known = [part for part in parts if part is not None]
                return conjunction(known) if len(known) == len(parts) else None
            case ast.Attribute() if self.settings.always_made(node):
                return TRUE
            case ast.Call(func=ast.Name(id="bool"), args=[inner]):
                return self.condition(inner, module, exact)
            case ast.Call(func=ast.Name(id="hasattr"), args=[ast.Name(id=held), ast.Constant(value=attr)]):
                return TRUE if held == ARGUMENTS and self.settings.is_parsed(str(attr)) else None
            case ast.Call(func=ast.Name(id=("any" | "all") as name), args=[ast.GeneratorExp() as each]):
                return self._quantified(name == "all", each, module)
        inner = self.settings.returned(node)
        if inner is not None:
            return self.condition(*inner, exact)
        value = self.value(node, module)
        if value is None or value[0] != "lit":
            return value
        return None if self._is_literal(node) else TRUE if value[1] else FALSE

    def _junction(self, both: bool, values: list[ast.expr], module: Module, exact: bool) -> Node | None:
        parts = [self.condition(value, module, exact) for value in values]
        stop, pass_ = (FALSE, TRUE) if both else (TRUE, FALSE)
        if stop in parts:
            return stop
        parts = [part for part in parts if part != pass_]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts) and (exact or both):
            return None
        if not known:
            return pass_ if not parts else None
        return known[0] if len(known) == 1 else ["and" if both else "or", *known]

    def _quantified(self, every: bool, each: ast.GeneratorExp, module: Module) -> Node | None:
        """`any` and `all` of a generator: whether there are items of which it holds, or none of which it does not."""
        generator = each.generators[0]
        test = negated(each.elt) if every else each.elt
        tests = ast.BoolOp(ast.And(), [*generator.ifs, test]) if generator.ifs else test
        found = self._each(generator.target, generator.iter, tests, None, module)
        if found is None or len(each.generators) > 1:
            return None
        return ["not", found] if every else found

    def each(self, target: ast.expr, listed: ast.expr, tests: list[Node], module: Module) -> Node | None:
        """Whether there is an item of a list that meets conditions over `EACH` and the target's name."""
        items = self.value(listed, module)
        if items is None or not isinstance(target, ast.Name) or not tests:
            return None
        name = EACH + target.id
        return ["each", name, items, ["name", name], conjunction(tests)]

    def _each(
        self, target: ast.expr, listed: ast.expr, test: ast.expr | None, made: ast.expr | None, module: Module
    ) -> Node | None:
        """The list that a comprehension makes; of the items themselves where `made` is None."""
        items = self.value(listed, module)
        if items is None or not isinstance(target, ast.Name):
            return None
        name = EACH + target.id
        local = {target.id: ast.Name(name)}
        holds = TRUE if test is None else self.condition(substituted(test, local), module, exact=True)
        element = ["name", name] if made is None else self.value(substituted(made, local), module)
        return None if holds is None or element is None else ["each", name, items, element, holds]

    def _comparison(self, left: ast.expr, op: ast.cmpop, right: ast.expr, module: Module) -> Node | None:
        if isinstance(right, ast.Constant) and right.value is None:
            made = TRUE if self.settings.always_made(left) else self.settings.made_if(left)
            if made is not None:
                return made if not isinstance(op, EQUAL) else FALSE if made == TRUE else ["not", made]
        if isinstance(op, ast.NotEq | ast.IsNot | ast.NotIn):
            found = self._comparison(left, FLIPPED[type(op)](), right, module)
            return (FALSE if found == TRUE else TRUE) if found in (TRUE, FALSE) else found and ["not", found]
        sides = [self.value(left, module), self.value(right, module)]
        if None in sides:
            member = self._member(left, right, module)
            return member if isinstance(op, EQUAL) else None
        here, there = sides
        if isinstance(op, ast.In):
            found = ["in", here, there] if there and there[0] == "list" else ["call", "within", here, there]
        else:
            found = ["==" if isinstance(op, EQUAL) else ORDER[type(op)], here, there]
        if not (_is_plain(here) and _is_plain(there)):
            return found
        return TRUE if COMPARE[type(op)](_plain(here), _plain(there)) else FALSE

    def _member(self, left: ast.expr, right: ast.expr, module: Module) -> Node | None:
        """A comparison with a member of an enumeration, which an option names or gives the value of."""
        for side, other in ((left, right), (right, left)):
            member = self._literal_value(other, module)
            value = self.value(side, module) if isinstance(member, EnumMember) else None
            if value is not None and isinstance(member, EnumMember):
                known = dict.fromkeys([member.name.lower(), str(member.value).lower()])
                return ["in", ["call", "lower", value], ["list", *(["lit", name] for name in known)]]
        return None

    def value(self, node: ast.expr, module: Module) -> Node | None:
        """A value that conditions may compare, or None."""
        match node:
            case ast.Name(id=name) if name == UNKNOWN.id:
                return None
            case ast.Name(id=name) if name.startswith(EACH):
                return ["name", name]
            case ast.Attribute():
                inner = self.settings.returned(node)
                found = self.value(*inner) if inner else self.settings.attribute(node, module)
                if found is not None or not self._is_literal(node):
                    return found
            case ast.Call():
                found = self._call(node, module)
                if found is not None or not self._is_literal(node):
                    return found
            case ast.Subscript(
                value=held, slice=ast.Slice(lower=ast.Constant(value=int() as start), upper=None)
            ):
                return self._applied("tail", [self.value(held, module), ["lit", start]])
            case ast.Subscript(value=held, slice=ast.Constant(value=int() as place)):
                return self._applied("item", [self.value(held, module), ["lit", place]])
            case ast.Subscript(value=held, slice=ast.Constant(value=str() as key)):
                return self._key(self.value(held, module), key)
            case ast.BinOp(left=left, op=ast.BitAnd(), right=right):
                return self._applied("common", [self.value(left, module), self.value(right, module)])
            case ast.NamedExpr(value=inner):
                return self.value(inner, module)
            case ast.BinOp(left=left, op=ast.Sub(), right=right) if _is_call(left, "set"):
                return self._applied("without", [self.value(left, module), self.value(right, module)])
            case ast.BinOp(left=left, op=op, right=right) if not self._is_literal(node):
                sides = [self.value(left, module), self.value(right, module)]
                return None if None in sides or type(op) not in ARITHMETIC else [ARITHMETIC[type(op)], *sides]
            case ast.IfExp(test=test, body=body, orelse=orelse):
                chosen = self.condition(test, module, exact=True)
                values = [chosen, self.value(body, module), self.value(orelse, module)]
                return None if None in values else ["if", *values]
            case ast.ListComp(elt=made, generators=[only]) | ast.SetComp(elt=made, generators=[only]):
                test = ast.BoolOp(ast.And(), only.ifs) if len(only.ifs) > 1 else next(iter(only.ifs), None)
                return self._each(only.target, only.iter, test, made, module)
            case ast.BoolOp(op=ast.And()) | ast.Compare() | ast.UnaryOp(op=ast.Not()):
                return self.condition(node, module, exact=True)
            case ast.BoolOp(op=ast.Or(), values=[first, second]) if not self._is_literal(node):
                values = [self.value(first, module), self.value(second, module)]
                return None if None in values else ["if", values[0], *values]
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items) if not self._is_literal(
                node
            ):
                values = [self.value(item, module) for item in items]
                return None if None in values else ["list", *values]
        return _literal(self._literal_value(node, module)) if self._is_literal(node) else None

    def _is_literal(self, node: ast.AST) -> bool:
        """Whether a value rests on nothing but the release itself."""
        return not any(
            isinstance(part, ast.Name)
            and (
                part.id in ("self", ARGUMENTS, UNKNOWN.id, "envs", "os", "current_platform")
                or part.id.startswith(EACH)
            )
            for part in ast.walk(node)
        )

    def _literal_value(self, node: ast.expr, module: Module) -> Any:
        return self.settings.evaluator.expression(node, Scope(module)) if self._is_literal(node) else MISSING

    def _applied(self, name: str, values: list[Node | None]) -> Node | None:
        return None if None in values else ["call", name, *values]

    def _key(self, held: Node | None, key: str) -> Node | None:
        """A key of an object that an option gives."""
        return ["name", f"{held[1]}.{key}"] if held and held[0] == "name" and key.isidentifier() else None

    def _call(self, node: ast.Call, module: Module) -> Node | None:
        given = node.args
        match node.func:
            case ast.Name(id="len") if len(given) == 1 and _is_call(given[0], "set"):
                return self._applied("distinct", [self.value(given[0].args[0], module)])
            case ast.Name(id="getattr") if len(given) > 1 and isinstance(given[1], ast.Constant):
                return self.value(_placed(given[0], str(given[1].value), node), module)
            case ast.Name(id=name) if name in SAME and len(given) == 1:
                return self.value(given[0], module)
            case ast.Name(id=name) if name in CALLS and given and not node.keywords:
                return self._applied(CALLS[name], [self.value(item, module) for item in given])
            case ast.Name(id="isinstance") if len(given) == 2:
                kinds = [part.id for part in ast.walk(given[1]) if isinstance(part, ast.Name)]
                listed = ["list", *(["lit", kind] for kind in kinds)] if set(kinds) <= KINDS else None
                return self._applied("isinstance", [self.value(given[0], module), listed])
            case ast.Attribute(value=ast.Name(id="re"), attr="fullmatch") if len(given) == 2:
                pattern = _literal(self._literal_value(given[0], module))
                return self._applied("matches", [self.value(given[1], module), pattern])
            case ast.Attribute(value=ast.Name(id=name), attr="fullmatch") if len(given) == 1:
                return self._applied("matches", [self.value(given[0], module), _pattern(module, name)])
            case ast.Attribute(value=ast.Attribute(value=ast.Name(id="os"), attr="environ"), attr="get") if (
                given
            ):
                return ["name", f"kept.env.{given[0].value}"] if isinstance(given[0], ast.Constant) else None
            case ast.Attribute(value=held, attr="get") if given and isinstance(given[0], ast.Constant):
                found = self._key(self.value(held, module), str(given[0].value))
                default = self.value(given[1], module) if len(given) > 1 else ["lit", None]
                return self._applied("coalesce", [found, default])
            case ast.Attribute(value=held, attr=method) if method in METHODS:
                return self._applied(method, [self.value(item, module) for item in [held, *given]])
        inner = self.settings.returned(node)
        return None if inner is None else self.value(*inner)


def _placed(base: ast.expr, attr: str, like: ast.expr) -> ast.Attribute:
    return ast.copy_location(ast.Attribute(base, attr), like)


def _is_call(node: ast.expr, name: str) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def _pattern(module: Module, name: str) -> Node | None:
    """The text of a regular expression that a module compiles."""
    match module.bindings.get(name):
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="re"), attr="compile"),
            args=[ast.Constant(value=str() as text)],
        ):
            return ["lit", text]
    return None


def _is_plain(node: Node | None) -> bool:
    return bool(node) and (node[0] == "lit" or (node[0] == "list" and all(map(_is_plain, node[1:]))))


def _plain(node: Node | None) -> Any:
    """The value of a node that reads nothing."""
    return None if node is None else node[1] if node[0] == "lit" else list(map(_plain, node[1:]))


def _literal(value: Any) -> Node | None:
    if value is None or isinstance(value, bool | int | float | str):
        return ["lit", value]
    if isinstance(value, list | tuple | set | frozenset) and value:
        items = [_literal(item) for item in value]
        return ["list", *sorted(items, key=str)] if None not in items else None
    return None
