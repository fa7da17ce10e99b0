"""Which options a release calls deprecated. Four channels: an argument, the help, a custom action, a warning in code."""

from __future__ import annotations

import ast
import re
from typing import Any

from .interpret.evaluator import Evaluator
from .interpret.fields import FieldSpec
from .interpret.source import Module, PackageSource
from .interpret.values import ClassValue
from .parser import Option

_REMOVAL = re.compile(
    r"(?:remov\w*|longer\s+\w+)\s+(?:in|at|from|by)\s+(?:version\s+|release\s+)?v?(\d+\.\d+(?:\.\d+)?)", re.I
)
_REPLACEMENT = re.compile(
    r"(?:use|via|favou?r of|replaced (?:by|with)|instead of this,?)\s+(?:the\s+)?[`'\"]*(--[\w.-]+)", re.I
)
_SAYS = re.compile(r"\bdeprecat", re.I)
# An option's name, then nothing but what joins it to "deprecated": a value after it would be the subject instead.
_SUBJECT = re.compile(
    r"(--[a-z][\w.-]+)[`'\"]*(?:\s+(?:option|argument|flag|parameter|is|are|was|has|have|been|now|will|be|being))*\s*$"
)


def summary(text: str) -> str:
    """What a release says of a deprecation, reduced to its facts: when it goes and what takes its place."""
    joined = " ".join(text.split())
    parts = ["deprecated"]
    if removal := _REMOVAL.search(joined):
        parts.append(f"to be removed in {removal[1].rstrip('.')}")
    if replacement := _REPLACEMENT.search(joined):
        parts.append(f"use {replacement[1].rstrip('.')}")
    if re.search(r"no (?:longer has any )?effect|does nothing|ignored|no-op", joined, re.I):
        parts.append("no effect")
    return "; ".join(parts)


class Deprecations:
    """The deprecated options of one release."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._warned = _warnings(evaluator.tree)

    def of(self, option: Option, field: FieldSpec | None) -> str | None:
        """A short statement, or None when the option is not deprecated."""
        action = option.kwargs.get("action")
        texts = [_help(option, field)]
        if isinstance(action, ClassValue):
            texts.append(ast.unparse(action.node) + " " + _constants_of(action))
        says = [text for text in texts if _says_of_itself(text)] + self._warned.get(option.name, [])
        return summary(" ".join(says)) if says or option.kwargs.get("deprecated") is True else None


def _help(option: Option, field: FieldSpec | None) -> str:
    text: Any = option.kwargs.get("help")
    return text if isinstance(text, str) else field.doc if field else ""


def _says_of_itself(text: str) -> bool:
    """A help text that calls its own option deprecated, not one of the option's values or something else."""
    joined = " ".join(text.split())
    for match in _SAYS.finditer(joined):
        before = joined[max(0, match.start() - 60) : match.start()]
        after = joined[match.end() : match.end() + 40]
        if re.search(r"(?:^|[.:\]]\s*)\W*$", before) and not re.match(
            r"\w*\s+(?:quantiz|metric|model|option)", after
        ):
            return True
        if re.search(
            r"(?:this (?:argument|option|flag|parameter|field|feature|configuration)|--[\w-]+)\s+(?:is|are|was|has been|will be)\s+(?:now\s+)?$",
            before,
            re.I,
        ):
            return True
    return False


def _constants_of(action: ClassValue) -> str:
    """The module constants that a custom action's body names, as text."""
    names = {node.id for node in ast.walk(action.node) if isinstance(node, ast.Name)}
    bindings = (action.module.bindings.get(name) for name in names if "DEPRECAT" in name)
    return " ".join(
        binding.value
        for binding in bindings
        if isinstance(binding, ast.Constant) and isinstance(binding.value, str)
    )


def _warnings(tree: PackageSource) -> dict[str, list[str]]:
    """Warnings in the argument and config code whose subject is an option, by option."""
    found: dict[str, list[str]] = {}
    modules = [
        tree.module("vllm.engine.arg_utils"),
        tree.module("vllm.config"),
        *tree.modules_under("vllm/config"),
    ]
    for module in dict.fromkeys(m for m in modules if m is not None):
        for text in _warning_texts(module):
            subjects = (_SUBJECT.search(text[: says.start()]) for says in _SAYS.finditer(text))
            subject = next((match[1] for match in subjects if match), None)
            if subject is not None:
                found.setdefault(subject.rstrip(".").replace("_", "-"), []).append(text)
    return found


def _warning_texts(module: Module) -> list[str]:
    """Message constants about deprecation, and the texts given to a warning."""
    texts = []
    for name, binding in module.bindings.items():
        if "DEPRECAT" in name and isinstance(binding, ast.Constant) and isinstance(binding.value, str):
            texts.append(binding.value)
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and re.search(r"warn", ast.unparse(node.func)) and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                texts.append(first.value)
    return texts
