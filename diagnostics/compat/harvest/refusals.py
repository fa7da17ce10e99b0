"""What a release refuses once the options are parsed, as conditions over options.

The bodies that always run are followed: when an object is made (`__post_init__`, validators, `create_engine_config`), and
when the parsed command line is checked. The way to each `raise` becomes a condition of `rules.conditions`. A part that
cannot be put so is left out where that makes the condition narrower, and the refusal with it where it does not: what is
kept is refused for certain.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..releases.table import EACH, Refusal
from .interpret.evaluator import Evaluator
from .interpret.source import Module
from .interpret.values import ClassValue, FunctionValue
from .resolved import Resolvers
from .rewriting import Locals, bound, negated, substituted
from .settings import ARGUMENTS, MADE_IF, Node, Settings
from .terms import FALSE, TRUE, Terms, conjunction

MAX_DEPTH = 4
Found = Iterator[tuple[str, list[Node]]]


def refusals(
    evaluator: Evaluator,
    classes: Mapping[str, ClassValue],
    names: Mapping[str, Sequence[str]],
    arguments: Mapping[str, str],
    resolvers: Resolvers,
) -> dict[str, Refusal]:
    """Every refusal by its class and what its condition hashes to, so that releases which share one have one record.

    `names` are the options' names in conditions by `Class.field`, `arguments` by the attribute that each is parsed into.
    """
    found: dict[str, Refusal] = {}

    def keep(owner: str, made_if: list[Node], raised: Found) -> None:
        for place, conditions in raised:
            if len(conditions) > len(made_if):
                when = conjunction(conditions)
                name = hashlib.blake2b(json.dumps(when).encode(), digest_size=6).hexdigest()
                found.setdefault(f"{owner} {name}", Refusal(when, place))

    for cls in classes.values():
        reader = _Reader(Settings(evaluator, cls, names, resolvers))
        made_if = [MADE_IF[cls.name]] if cls.name in MADE_IF else []
        for method, local in _always_run(cls):
            keep(cls.name, made_if, reader.body(method.body, _Frame(cls.module, local, made_if)))
    reader = _Reader(Settings(evaluator, None, names, resolvers, arguments))
    for function in _checks_of_arguments(evaluator):
        keep(ARGUMENTS, [], reader.body(function.node.body, _Frame(function.module, {}, [])))
    return found


def _always_run(cls: ClassValue) -> Iterator[tuple[ast.FunctionDef, Locals]]:
    """The methods that run whenever an object is made, with what their parameters stand for."""
    for node in cls.node.body:
        if not isinstance(node, ast.FunctionDef):
            continue
        decorators = " ".join(map(ast.unparse, node.decorator_list))
        after = "model_validator" in decorators and "after" in decorators
        if after or node.name in ("__post_init__", "create_engine_config"):
            yield node, {item.arg: None for item in [*node.args.args[1:], *node.args.kwonlyargs]}
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith("field_validator"):
                yield from _validations(node, decorator)


def _validations(node: ast.FunctionDef, decorator: ast.Call) -> Iterator[tuple[ast.FunctionDef, Locals]]:
    """A validator of single fields, for each of them."""
    fields = [item.value for item in decorator.args if isinstance(item, ast.Constant) and item.value != "*"]
    if len(node.args.args) < 2 or any(
        k.arg == "mode" and "wrap" in ast.unparse(k.value) for k in decorator.keywords
    ):
        return
    for name in fields:
        local: dict[str, ast.expr | None] = {item.arg: None for item in node.args.args}
        yield node, local | {node.args.args[1].arg: ast.Attribute(ast.Name("self"), str(name))}


def _checks_of_arguments(evaluator: Evaluator) -> Iterator[FunctionValue]:
    """The function that checks the parsed command line of `vllm serve`."""
    for name in ("vllm.entrypoints.common.cli_args", "vllm.entrypoints.openai.cli_args"):
        module = evaluator.tree.module(name)
        found = None if module is None else evaluator.module_name(module, "validate_parsed_serve_args")
        if isinstance(found, FunctionValue) and [a.arg for a in found.node.args.args] == [ARGUMENTS]:
            yield found
            return


@dataclass(frozen=True)
class _Frame:
    """Where a body is read: its module, what its local names stand for, the way there, how deep in calls."""

    module: Module
    local: Locals
    path: list[Node]
    depth: int = 0
    calls: tuple[ast.AST, ...] = ()


class _Reader:
    """Reads bodies of one class, or of functions over the parsed command line."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._terms = Terms(settings)

    def body(self, body: list[ast.stmt], frame: _Frame) -> Found:
        """The place of each statement that raises, with the conditions that lead there."""
        local, path = dict(frame.local), list(frame.path)
        for node in body:
            here = replace(frame, local=local, path=path)
            match node:
                case ast.Raise():
                    yield frame.module.evidence(node), list(path)
                case ast.Assert(test=test):
                    refused = self._condition(negated(substituted(test, local)), frame)
                    if refused not in (None, TRUE, FALSE):
                        yield frame.module.evidence(node), [*path, refused]
                case ast.If(test=test, body=then, orelse=otherwise):
                    after = yield from self._branches(test, then, otherwise, here)
                    if after is None:
                        return
                    path += after
                    local |= dict.fromkeys(_assigned([*then, *otherwise]))
                case ast.For(target=ast.Name() as target, iter=listed, body=inside, orelse=[]):
                    yield from self._loop(target, listed, inside, here)
                    if _leaves([node], ast.Return):
                        return
                    local |= dict.fromkeys(_assigned([node]))
                case ast.For(target=ast.Tuple() as target, iter=ast.Tuple(elts=rows), body=inside, orelse=[]):
                    for row in rows if not _leaves([node], ast.Return) else []:
                        yield from self.body(inside, replace(here, local=local | _unpacked(target, row)))
                    local |= dict.fromkeys(_assigned([node]))
                case ast.With(body=inside) if not _leaves(inside):
                    yield from self.body(inside, here)
                    local |= dict.fromkeys(_assigned([node]))
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=value)
                    | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                ):
                    yield from self._called(value, here)
                    local[name] = substituted(value, local)
                case ast.Assign(targets=[ast.Tuple() as target], value=value):
                    local |= _unpacked(target, substituted(value, local))
                case ast.Expr(value=value) | ast.Assign(value=value):
                    yield from self._called(value, here)
                    local |= dict.fromkeys(_assigned([node]))
                case _ if _leaves([node]):
                    return
                case _:
                    local |= dict.fromkeys(_assigned([node]))

    def _condition(self, node: ast.expr, frame: _Frame) -> Node | None:
        return self._terms.condition(node, frame.module)

    def _branches(
        self, test: ast.expr, then: list[ast.stmt], otherwise: list[ast.stmt], frame: _Frame
    ) -> Generator[tuple[str, list[Node]], None, list[Node] | None]:
        """What the branches of an `if` raise; returns what holds behind it, None where nobody can say."""
        test = substituted(test, frame.local)
        taken, skipped = self._condition(test, frame), self._condition(negated(test), frame)
        for branch, holds in ((then, taken), (otherwise, skipped)):
            if holds is not None and holds != FALSE:
                way = [] if holds == TRUE else [holds]
                yield from self.body(branch, replace(frame, path=[*frame.path, *way]))
        ends = isinstance(then[-1], ast.Return | ast.Continue)
        if ends and taken == FALSE:
            return [] if not _leaves(otherwise) else None
        if _leaves(otherwise if ends else [*then, *otherwise]) or (ends and skipped in (None, FALSE)):
            return None
        return [skipped] if ends and skipped is not None and skipped != TRUE else []

    def _loop(self, target: ast.Name, listed: ast.expr, inside: list[ast.stmt], frame: _Frame) -> Found:
        """What a loop over a list raises: there is an item that leads there."""
        local = {**frame.local, **dict.fromkeys(_assigned(inside)), target.id: ast.Name(EACH + target.id)}
        items = substituted(listed, frame.local)
        for place, conditions in self.body(inside, replace(frame, local=local, path=[])):
            found = self._terms.each(target, items, conditions, frame.module)
            if found is not None:
                yield place, [*frame.path, found]

    def _called(self, node: ast.expr, frame: _Frame) -> Found:
        """What the functions raise that an expression calls whatever it comes to."""
        for call in _calls(node):
            function, base = self._function(call, frame)
            if function is None or frame.depth >= MAX_DEPTH or function.node in frame.calls:
                continue
            given = substituted(call, frame.local)
            assert isinstance(given, ast.Call)  # only names are replaced
            local = bound(function, base, given)
            calls = (*frame.calls, function.node)
            yield from self.body(
                function.node.body, _Frame(function.module, local, frame.path, frame.depth + 1, calls)
            )

    def _function(self, call: ast.Call, frame: _Frame) -> tuple[FunctionValue | None, ast.expr | None]:
        """The method or function of the release that a call runs, and the object it is a method of."""
        evaluator = self._settings.evaluator
        match call.func:
            case ast.Attribute(value=held, attr=name):
                base = substituted(held, frame.local)
                cls = self._settings.class_of(base)
                found = None if cls is None else evaluator.classes.attribute(cls, name)
                return (found, base) if isinstance(found, FunctionValue) else (None, None)
            case ast.Name(id=name) if name not in frame.local:
                found = evaluator.module_name(frame.module, name)
                return (found, None) if isinstance(found, FunctionValue) else (None, None)
        return None, None


def _unpacked(target: ast.Tuple, value: ast.expr) -> dict[str, ast.expr | None]:
    """What the names of a tuple stand for that a value is assigned to."""
    parts = value.elts if isinstance(value, ast.Tuple) else []
    return {
        name.id: parts[place] if len(parts) == len(target.elts) else ast.Subscript(value, ast.Constant(place))
        for place, name in enumerate(target.elts)
        if isinstance(name, ast.Name)
    }


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    """The calls in an expression that are made whatever it comes to, inner ones first."""
    match node:
        case ast.BoolOp(values=[first, *_]):
            yield from _calls(first)
        case ast.IfExp(test=test):
            yield from _calls(test)
        case ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            return
        case _:
            for inner in ast.iter_child_nodes(node):
                yield from _calls(inner)
            if isinstance(node, ast.Call):
                yield node


def _leaves(body: list[ast.stmt], *kinds: type[ast.stmt]) -> bool:
    """Whether statements may leave their body, so that those behind are reached under a condition of their own."""
    looked_for = kinds or (ast.Return, ast.Continue, ast.Break)
    for node in body:
        if isinstance(node, looked_for):
            return True
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        inside = (ast.Return,) if isinstance(node, ast.For | ast.While) else looked_for
        blocks = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
        blocks += [part.body for name in ("handlers", "cases") for part in getattr(node, name, [])]
        if any(_leaves(block, *inside) for block in blocks):
            return True
    return False


def _assigned(body: list[ast.stmt]) -> set[str]:
    """The local names that statements assign anywhere."""
    return {
        node.id
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
