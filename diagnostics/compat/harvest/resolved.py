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
        tree = evaluator.tree
        module = tree.module("vllm.engine.arg_utils")
        if module is not None:
            for cls in _classes(module, "EngineArgs"):
                _collect(module, cls, self._engine)
        for module in _config_modules(tree):
            for cls in _classes(module, "Config"):
                _collect(module, cls, self._own, f"{cls.name}.")
                _collect_others(module, cls, self._others)
        for module in tree.modules_under("vllm/platforms"):
            for cls in _classes(module, "Platform"):
                _collect_others(module, cls, self._others)

    def place(self, dest: str, field: FieldSpec | None) -> str | None:
        """`file:line` of the code that fills in the setting, or None when nothing does."""
        if dest in self._engine:
            return self._engine[dest]
        return None if field is None else self.of_field(field)

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


def _assignments(cls: ast.ClassDef) -> list[tuple[ast.Attribute, ast.stmt]]:
    """Attribute targets of assignments in the class's methods, other than to None and in source order."""
    found = []
    for node in ast.walk(cls):
        if isinstance(node, ast.Assign) and not (
            isinstance(node.value, ast.Constant) and node.value.value is None
        ):
            for target in node.targets:
                items = target.elts if isinstance(target, ast.Tuple) else [target]
                found += [(item, node) for item in items if isinstance(item, ast.Attribute)]
    return sorted(found, key=lambda pair: pair[1].lineno)


def _collect(module: Module, cls: ast.ClassDef, into: dict[str, str], prefix: str = "") -> None:
    for target, node in _assignments(cls):
        if isinstance(target.value, ast.Name) and target.value.id == "self":
            into.setdefault(prefix + target.attr, module.evidence(node))


def _collect_others(module: Module, cls: ast.ClassDef, into: dict[str, str]) -> None:
    for target, node in _assignments(cls):
        holder = target.value
        name = getattr(holder, "attr", None) or getattr(holder, "id", "")
        if name.endswith("_config"):
            into.setdefault(f"{name}.{target.attr}", module.evidence(node))
