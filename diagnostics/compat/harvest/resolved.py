"""Where a release computes a setting that its parser leaves at None."""

from __future__ import annotations

import ast
import re

from .interpret.evaluator import Evaluator
from .interpret.fields import FieldSpec
from .interpret.source import Module, PackageSource


class Resolvers:
    """Assignments to settings outside the parser: in EngineArgs, in the config classes and on the platforms."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._engine: dict[str, str] = {}
        self._own: dict[str, str] = {}
        self._others: dict[str, str] = {}
        # The names, in any of these forms, that are set whatever they were.
        self._overwritten: set[str] = set()
        tree = evaluator.tree
        module = tree.module("vllm.engine.arg_utils")
        if module is not None:
            for cls in _classes(module, "EngineArgs"):
                self._collect(module, cls, self._engine)
        for module in _config_modules(tree):
            for cls in _classes(module, "Config"):
                self._collect(module, cls, self._own, f"{cls.name}.")
                self._collect_others(module, cls)
        for module in tree.modules_under("vllm/platforms"):
            for cls in _classes(module, "Platform"):
                self._collect_others(module, cls)

    def keeps(self, dest: str, field: FieldSpec) -> bool:
        """Whether a given value is left as it is: what else sets the field does so only where it is None."""
        attribute = f"{_config_attribute(field.owner.name)}.{field.name}"
        return self._overwritten.isdisjoint((dest, field.qualified, attribute))

    def place(self, dest: str, field: FieldSpec | None) -> str | None:
        """`file:line` of the code that fills in the setting, or None when nothing does."""
        if dest in self._engine:
            return self._engine[dest]
        return None if field is None else self.of_field(field)

    def _collect(self, module: Module, cls: ast.ClassDef, into: dict[str, str], prefix: str = "") -> None:
        for target, node, fills in _assignments(cls):
            if isinstance(target.value, ast.Name) and target.value.id == "self":
                self._note(into, prefix + target.attr, module.evidence(node), fills)

    def _collect_others(self, module: Module, cls: ast.ClassDef) -> None:
        for target, node, fills in _assignments(cls):
            holder = target.value
            name = getattr(holder, "attr", None) or getattr(holder, "id", "")
            if name.endswith("_config"):
                self._note(self._others, f"{name}.{target.attr}", module.evidence(node), fills)

    def _note(self, into: dict[str, str], name: str, place: str, fills: bool) -> None:
        into.setdefault(name, place)
        if not fills:
            self._overwritten.add(name)

    def of_field(self, field: FieldSpec) -> str | None:
        """The same for a config field: set by its own class, by another config or by a platform."""
        attribute = f"{_config_attribute(field.owner.name)}.{field.name}"
        return self._own.get(field.qualified) or self._others.get(attribute)


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


def _assignments(cls: ast.ClassDef) -> list[tuple[ast.Attribute, ast.stmt, bool]]:
    """Attribute targets of assignments in the class's methods, other than to None and in source order.

    With each whether it is only made where the attribute is None.
    """
    found: list[tuple[ast.Attribute, ast.stmt, bool]] = []

    def walk(node: ast.AST, unset: tuple[str, ...]) -> None:
        if isinstance(node, ast.If):
            for inner in node.body:
                walk(inner, (*unset, *_unset(node.test)))
            for inner in node.orelse:
                walk(inner, unset)
            return
        if isinstance(node, ast.Assign):
            constant = node.value.value if isinstance(node.value, ast.Constant) else ...
            targets = [item for t in node.targets for item in (t.elts if isinstance(t, ast.Tuple) else [t])]
            attributes = [item for item in targets if isinstance(item, ast.Attribute)]
            found.extend((t, node, ast.unparse(t) in unset) for t in attributes if constant is not None)
        for inner in ast.iter_child_nodes(node):
            walk(inner, unset)

    walk(cls, ())
    return sorted(found, key=lambda item: item[1].lineno)


def _unset(test: ast.expr) -> list[str]:
    """What a test finds to be None."""
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    return [
        ast.unparse(part.left)
        for part in parts
        if isinstance(part, ast.Compare) and ast.unparse(part).endswith(" is None")
    ]
