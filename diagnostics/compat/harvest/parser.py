"""Stands in for argparse while a release's source is followed, and records the options it is given."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

from ..releases.table import name_of
from .interpret.calls import CONSTRUCTORS
from .interpret.source import Module
from .interpret.values import ClassValue, Scope, Symbol, Unknown
from .kwargs import BOOLEAN_OPTIONAL


@dataclass
class Option:
    """One `add_argument` call: its option strings, evaluated keyword arguments and place."""

    strings: list[str]
    kwargs: dict[str, Any]
    group: str
    module: Module
    node: ast.Call

    @property
    def dest(self) -> str:
        """The name argparse keeps the value under."""
        return self.kwargs.get("dest") or name_of(self.name)

    @property
    def name(self) -> str:
        """The first long option string, or the first of all."""
        return next((text for text in self.strings if text.startswith("--")), self.strings[0])

    @property
    def evidence(self) -> str:
        return self.module.evidence(self.node)

    @property
    def kind(self) -> str:
        """See `table.Flag.kind`."""
        action = self.kwargs.get("action")
        if action == BOOLEAN_OPTIONAL:
            return "boolean_optional"
        if isinstance(action, ClassValue) and action.name == "StoreBoolean":
            return "store_boolean"
        if isinstance(action, str) and action in {"store_true", "store_false", "append"}:
            return action
        return "value"


@dataclass
class Recorder:
    """A parser, or a group of one when `title` is set; both fill the same list."""

    options: list[Option] = field(default_factory=list)
    title: str = ""
    serve: list[Option] = field(default_factory=list)

    def harvest_call(
        self, name: str, args: list[Any], kwargs: dict[str, Any], node: ast.Call, scope: Scope
    ) -> Any:
        """A method called on the parser by the followed source."""
        if name == "add_argument":
            strings = [text for text in args if isinstance(text, str)]
            if strings and strings[0].startswith("-"):
                self.options.append(Option(strings, kwargs, self.title, scope.module, node))
            return Unknown("action")
        if name in {"add_argument_group", "add_mutually_exclusive_group"}:
            title = kwargs.get("title", args[0] if args else self.title)
            return Recorder(self.options, title if isinstance(title, str) else "")
        if name == "add_subparsers":
            return Recorder(self.serve)
        if name == "add_parser":
            return self if args and args[0] == "serve" else Recorder()
        return Unknown(name)


def _parser(evaluator: Any) -> Recorder:
    evaluator.parsers.append(Recorder())
    return evaluator.parsers[-1]


CONSTRUCTORS["FlexibleArgumentParser"] = _parser


def default_of_option(option: Option) -> Any:
    """The default argparse gives the value when the call names none."""
    if "default" in option.kwargs:
        return option.kwargs["default"]
    return {"store_true": False, "store_false": True}.get(option.kind)


def suppressed(value: Any) -> bool:
    """Whether a default is argparse.SUPPRESS."""
    return isinstance(value, Symbol) and value.name == "argparse.SUPPRESS"
