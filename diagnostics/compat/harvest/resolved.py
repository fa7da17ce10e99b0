"""Where a release computes a setting that its parser leaves at None."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from .interpret.evaluator import Evaluator
from .interpret.fields import FieldSpec
from .interpret.source import Module, PackageSource


class Resolvers:
    """Assignments to settings outside the parser: in EngineArgs, in the config classes and on the platforms."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._engine: dict[str, str] = {}
        self._own: dict[str, str] = {}
        self._others: dict[str, str] = {}
        # Where each name, in any of these forms, is set.
        self._writes: dict[str, list[_Write]] = {}
        tree = evaluator.tree
        module = tree.module("vllm.engine.arg_utils")
        if module is not None:
            for cls in _classes(module, "EngineArgs"):
                self._collect(module, cls, self._engine)
        for module in _config_modules(tree):
            for cls in _classes(module, "Config"):
                self._collect(module, cls, self._own, f"{cls.name}.")
                self._collect_others(module, cls, self._others)
        of_models = tree.module("vllm.model_executor.models.config")
        if of_models is not None:
            for cls in _classes(of_models, ""):
                self._collect_others(of_models, cls, {})  # of one kind alone: no default of the setting
        for module in tree.modules_under("vllm/platforms"):
            for cls in _classes(module, "Platform"):
                overwrites = module.name.endswith((".cuda", ".interface"))
                self._collect_others(module, cls, self._others, overwrites)

    def state(
        self, dests: Sequence[str], field: FieldSpec, place: tuple[Module, int], own: bool
    ) -> Literal["given", "kept", "changed"]:
        """What a setting is where the line of a module looks at it: as given, given or filled in, or changed.

        What its `own` object looks at is not yet what other objects make of it.
        """
        qualified, attribute = _keys(field)
        keys = {*(dest for dest in dests if "." not in dest), qualified, *([] if own else [attribute])}
        writes = [write for key in keys for write in self._writes.get(key, [])]
        module, line = place
        if all(
            write.module is module and write.begin <= line <= write.until <= write.end for write in writes
        ):
            return "given"
        return "kept" if all(write.fills for write in writes) else "changed"

    def place(self, dest: str, field: FieldSpec | None) -> str | None:
        """`file:line` of the code that fills in the setting, or None when nothing does."""
        if dest in self._engine:
            return self._engine[dest]
        return None if field is None else self.of_field(field)

    def _collect(self, module: Module, cls: ast.ClassDef, into: dict[str, str], prefix: str = "") -> None:
        for target, write in _assignments(module, cls):
            if isinstance(target.value, ast.Name) and target.value.id == "self":
                self._note(into, prefix + target.attr, write)

    def _collect_others(
        self, module: Module, cls: ast.ClassDef, into: dict[str, str], overwrites: bool = True
    ) -> None:
        for target, write in _assignments(module, cls):
            holder = target.value
            name = getattr(holder, "attr", None) or getattr(holder, "id", "")
            if name.endswith("_config"):
                self._note(into, f"{name}.{target.attr}", replace(write, fills=write.fills or not overwrites))

    def _note(self, into: dict[str, str], name: str, write: _Write) -> None:
        into.setdefault(name, write.place)
        self._writes.setdefault(name, []).append(write)

    def of_field(self, field: FieldSpec) -> str | None:
        """The same for a config field: set by its own class, by another config or by a platform."""
        own, others = _keys(field)
        return self._own.get(own) or self._others.get(others)


def _config_attribute(class_name: str) -> str:
    """`CacheConfig` is reached as `cache_config`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", class_name.removesuffix("Config")).lower() + "_config"


def _config_modules(tree: PackageSource) -> list[Module]:
    single = tree.module("vllm.config")
    if single is not None and not single.is_package:
        return [single]
    return list(tree.modules_under("vllm/config"))


def _classes(module: Module, suffix: str) -> list[ast.ClassDef]:
    return [
        node for node in module.tree.body if isinstance(node, ast.ClassDef) and node.name.endswith(suffix)
    ]


@dataclass(frozen=True)
class _Write:
    """An assignment from a line `until` another, in a function from `begin` to `end`; and whether it only fills in."""

    module: Module
    line: int
    until: int
    begin: int
    end: int
    fills: bool

    @property
    def place(self) -> str:
        return f"{self.module.path}:{self.line}"


def _keys(field: FieldSpec) -> tuple[str, str]:
    """The names that assignments to a config field go by: its own, and as other objects reach it."""
    return field.qualified, f"{_config_attribute(field.owner.name)}.{field.name}"


def _assignments(module: Module, cls: ast.ClassDef) -> list[tuple[ast.Attribute, _Write]]:
    """Attribute targets of assignments in the class's methods, other than to None and in source order."""
    found: list[tuple[ast.Attribute, _Write]] = []
    function: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef = cls

    def write(node: ast.stmt, fills: bool) -> _Write:
        ends = [part.end_lineno or part.lineno for part in (node, function)]
        return _Write(module, node.lineno, ends[0], function.lineno, ends[1], fills)

    def walk(node: ast.AST, unset: tuple[str, ...]) -> None:
        nonlocal function
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node
        if isinstance(node, ast.If):
            for inner in node.body:
                walk(inner, (*unset, *_unset(node.test)))
            for inner in node.orelse:
                walk(inner, unset)
            return
        if isinstance(node, ast.stmt):
            found.extend((target, write(node, ast.unparse(target) in unset)) for target in _targets(node))
        for inner in ast.iter_child_nodes(node):
            walk(inner, unset)

    walk(cls, ())
    return sorted(found, key=lambda item: item[1].line)


def _targets(node: ast.stmt) -> list[ast.Attribute]:
    """The attributes that a statement sets, to something else than None."""
    if not isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) or node.value is None:
        return []
    if isinstance(node.value, ast.Constant) and node.value.value is None:
        return []
    written = node.targets if isinstance(node, ast.Assign) else [node.target]
    parts = [part for item in written for part in (item.elts if isinstance(item, ast.Tuple) else [item])]
    return [part for part in parts if isinstance(part, ast.Attribute)]


def _unset(test: ast.expr) -> list[str]:
    """What a test finds to be None."""
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    return [
        ast.unparse(part.left)
        for part in parts
        if isinstance(part, ast.Compare) and ast.unparse(part).endswith(" is None")
    ]
