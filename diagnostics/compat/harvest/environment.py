"""The environment variables that a release's envs module lists."""

from __future__ import annotations

import ast
import re
from typing import Any

from ..releases.table import EnvVar
from .deprecation import summary
from .interpret.evaluator import Evaluator
from .interpret.source import Module
from .interpret.values import MISSING, Scope, Unknown
from .plain import default_of_value


def environment_variables(evaluator: Evaluator) -> dict[str, EnvVar]:
    """Every variable by name; a default that code computes is None."""
    module = evaluator.tree.module("vllm.envs")
    table = None if module is None else module.bindings.get("environment_variables")
    if module is None or not isinstance(table, ast.Dict):
        return {}
    found: dict[str, EnvVar] = {}
    last_line = table.lineno
    for key, value in zip(table.keys, table.values, strict=True):
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            comment = _comments(module, last_line, key.lineno)
            found[key.value] = EnvVar(
                name=key.value,
                default=_default(evaluator, module, value),
                choices=_choices(evaluator, module, value),
                evidence=module.evidence(key),
                deprecated=_deprecated(comment, value),
            )
        last_line = value.end_lineno or last_line
    return found


def _default(evaluator: Evaluator, module: Module, value: ast.expr) -> Any:
    result = evaluator.invoke(evaluator.expression(value, Scope(module)))
    plain = None if result is MISSING else default_of_value(result)
    return None if isinstance(plain, Unknown) or _has_unknown(plain) else plain


def _has_unknown(value: Any) -> bool:
    if isinstance(value, list):
        return any(isinstance(item, Unknown) for item in value)
    return isinstance(value, dict) and any(isinstance(item, Unknown) for item in value.values())


def _choices(evaluator: Evaluator, module: Module, value: ast.expr) -> list[Any] | None:
    if not (
        isinstance(value, ast.Call) and "with_choices" in ast.unparse(value.func) and len(value.args) > 2
    ):
        return None
    found = evaluator.expression(value.args[2], Scope(module))
    return list(found) if isinstance(found, list | tuple) and all(isinstance(c, str) for c in found) else None


def _comments(module: Module, after: int, before: int) -> str:
    lines = module.text.splitlines()[after : before - 1]
    return " ".join(line.strip().lstrip("# ") for line in lines if line.strip().startswith("#"))


def _deprecated(comment: str, value: ast.expr) -> str | None:
    """From the comment above a variable, or from a getter that warns: `deprecated_env(name, version, advice, ...)`."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "deprecated_env":
        version, advice = (
            str(item.value) if isinstance(item, ast.Constant) else "" for item in value.args[1:3]
        )
        return summary(f"deprecated, removed in {version}. {advice}")
    says = re.search(
        r"(?:^|[.\]]\s|\[|\bis )deprecated\b(?! \w+ (?:implementation|soon))", comment, re.IGNORECASE
    )
    return summary(comment[says.start() :]) if says else None
