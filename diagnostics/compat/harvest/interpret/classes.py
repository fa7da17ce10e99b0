"""What a release's classes are: their bases, attributes and members, found without running a class body."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from .registries import REGISTRIES, registered_names
from .source import PackageSource
from .values import (
    MISSING,
    ClassValue,
    EnumMember,
    FieldCall,
    FunctionValue,
    Scope,
    Symbol,
    TypeForm,
)

ENUM_BASES = {"enum.Enum", "enum.IntEnum", "enum.StrEnum", "enum.Flag", "enum.IntFlag"}


class Classes:
    """The classes of one source tree; `expression` works out what stands in their bodies and bases."""

    def __init__(self, tree: PackageSource, expression: Callable[[ast.expr, Scope], Any]) -> None:
        self._tree = tree
        self._expression = expression
        self._scopes: dict[ClassValue, Scope] = {}
        self._mro: dict[ClassValue, list[ClassValue]] = {}

    def attribute(self, value: ClassValue, attr: str) -> Any:
        """A class attribute found along the bases; MISSING when there is none."""
        if attr == "__doc__":
            return ast.get_docstring(value.node) or ""
        if attr == "__name__":
            return value.name
        if (value.name, attr) in REGISTRIES:
            return registered_names(self._tree, value.name)
        for owner in self.mro(value):
            found = self._own_attribute(owner, value, attr)
            if found is not MISSING:
                return found
        return MISSING

    def _own_attribute(self, owner: ClassValue, bound: ClassValue, attr: str) -> Any:
        for node in reversed(owner.node.body):
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name == attr:
                    return FunctionValue(owner.module, node, owner, bound)
                case ast.AnnAssign(target=ast.Name(id=name), value=value) if (
                    name == attr and value is not None
                ):
                    return self._member(owner, attr, self._expression(value, self.scope(owner)))
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if name == attr:
                    return self._member(owner, attr, self._expression(value, self.scope(owner)))
                case _:
                    continue
        return MISSING

    def scope(self, owner: ClassValue) -> Scope:
        """The scope of a class body: its own plain assignments over the module's names. Not to be added to."""
        if owner in self._scopes:
            return self._scopes[owner]
        scope = self._scopes[owner] = Scope(owner.module, {}, owner)
        for node in owner.node.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                scope.names[node.targets[0].id] = self._expression(
                    node.value, Scope(owner.module, dict(scope.names))
                )
        return scope

    def _member(self, owner: ClassValue, name: str, value: Any) -> Any:
        if self.is_enum(owner):
            return EnumMember(owner, name, value)
        return value.default if isinstance(value, FieldCall) else value

    def enum_members(self, owner: ClassValue) -> list[EnumMember]:
        """The members of an enumeration, in order."""
        members = []
        for node in owner.node.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                value = self._expression(node.value, self.scope(owner))
                members.append(
                    EnumMember(owner, name, name.lower() if value == Symbol("enum.auto()") else value)
                )
        return members

    def mro(self, value: ClassValue) -> list[ClassValue]:
        """The class and its bases inside the release, depth first."""
        if value not in self._mro:
            found = [value]
            for base in value.node.bases:
                parent = self._expression(base, Scope(value.module))
                if isinstance(parent, TypeForm):
                    parent = parent.origin
                if isinstance(parent, ClassValue):
                    found += [cls for cls in self.mro(parent) if cls not in found]
            self._mro[value] = found
        return self._mro[value]

    def outside_bases(self, value: ClassValue) -> set[Any]:
        """The bases from outside the release, over the whole line."""
        found = set()
        for cls in self.mro(value):
            for base in cls.node.bases:
                parent = self._expression(base, Scope(cls.module))
                parent = parent.origin if isinstance(parent, TypeForm) else parent
                if isinstance(parent, Symbol | type):
                    found.add(parent)
        return found

    def is_enum(self, value: ClassValue) -> bool:
        """Whether the class is an enumeration."""
        return any(
            isinstance(base, Symbol) and base.name in ENUM_BASES for base in self.outside_bases(value)
        ) or any(ast.unparse(keyword.value).endswith("EnumMeta") for keyword in value.node.keywords)
