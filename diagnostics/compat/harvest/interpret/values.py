"""What an expression of a release can evaluate to without being run."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

from .source import Module


@dataclass(frozen=True)
class Unknown:
    """A value that only the running release knows; `text` is its source."""

    text: str


@dataclass(frozen=True)
class Symbol:
    """A name from outside the release, such as `json.loads` or `typing.Literal`."""

    name: str


@dataclass(frozen=True)
class TypeForm:
    """A subscripted or united type: `Literal["a"]`, `list[int]`, `int | None`."""

    origin: Any
    args: tuple[Any, ...]


@dataclass(frozen=True)
class ClassValue:
    """A class that the release defines."""

    module: Module
    node: ast.ClassDef

    def __repr__(self) -> str:
        return f"ClassValue({self.name})"

    @property
    def name(self) -> str:
        return self.node.name


@dataclass(frozen=True)
class FunctionValue:
    """A function or method of the release; `owner` is the class a method was found on, `bound` the class it runs for."""

    module: Module
    node: ast.FunctionDef | ast.AsyncFunctionDef
    owner: ClassValue | None = None
    bound: ClassValue | None = None


@dataclass(frozen=True, eq=False)
class LambdaValue:
    """A lambda with the scope it closes over."""

    node: ast.Lambda
    scope: Scope


@dataclass(frozen=True)
class ModuleValue:
    """A module used as a value (`envs.VLLM_PORT`)."""

    module: Module


@dataclass(frozen=True)
class EnumMember:
    owner: ClassValue
    name: str
    value: Any


@dataclass(frozen=True, eq=False)
class Instance:
    """An object of one of the release's classes, known by its constructor's arguments only."""

    owner: ClassValue
    given: dict[str, Any]


@dataclass(frozen=True, eq=False)
class FieldCall:
    """A `dataclasses.field(...)` or `pydantic.Field(...)`; `has_default` is False when one must be given."""

    given: dict[str, Any]

    @property
    def default(self) -> Any:
        return self.given.get("default", MISSING)

    @property
    def factory(self) -> Any:
        return self.given.get("default_factory", MISSING)


@dataclass(frozen=True, eq=False)
class Constantly:
    """A callable of no arguments that returns one value (an environment variable with a default)."""

    value: Any


@dataclass(repr=False)
class Scope:
    """Names visible to an expression: locals over the module's own."""

    module: Module
    names: dict[str, Any] = field(default_factory=dict)
    owner: ClassValue | None = None
    bound: ClassValue | None = None


class Missing:
    """The type of MISSING, the absence of a default."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = Missing()


def known(value: Any) -> bool:
    """Whether a value holds nothing unknown at its top level."""
    return not isinstance(value, Unknown)
