"""What the parts of the interpreter ask of the whole: calls, statements and fields are worked out through it."""

from __future__ import annotations

import ast
from typing import Any, Protocol

from .classes import Classes
from .source import Imported, PackageSource
from .values import ClassValue, FunctionValue, Scope


class Interpreter(Protocol):
    """Works out expressions over one source tree; `evaluator.Evaluator` is the one there is.

    `parsers` collects the argument parsers that the release's code makes, `fields_of` is kept by `fields.fields`.
    """

    tree: PackageSource
    classes: Classes
    parsers: list[Any]
    fields_of: dict[ClassValue, list[Any]]

    def expression(self, node: ast.expr, scope: Scope) -> Any:
        """The value of `node`, or Unknown."""
        ...

    def attribute(self, value: Any, attr: str) -> Any:
        """`value.attr`, or Unknown."""
        ...

    def imported(self, target: Imported) -> Any:
        """What an import binds."""
        ...

    def iterate(self, value: Any) -> list[Any]:
        """The items of a known iterable. Raises TypeError for anything else."""
        ...

    def invoke(self, value: Any) -> Any:
        """What a callable of no arguments returns."""
        ...

    def run(self, function: FunctionValue, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """What a function of the release returns for these arguments."""
        ...
