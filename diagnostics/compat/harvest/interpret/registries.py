"""Names that parsers of tool calls and reasoning register under: choices that no literal in the release lists."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .source import Imported, Module, PackageSource

# The manager classes and the attribute in which each keeps its registered names.
REGISTRIES = {("ToolParserManager", "tool_parsers"), ("ReasoningParserManager", "reasoning_parsers")}
_PACKAGES = {
    "ToolParserManager": ("vllm.tool_parsers", "vllm.entrypoints.openai.tool_parsers"),
    "ReasoningParserManager": ("vllm.reasoning", "vllm.entrypoints.openai.reasoning_parsers"),
}


def registered_names(tree: PackageSource, manager: str) -> dict[str, None]:
    """The names registered with `manager` once its package is imported, as keys in order."""
    found: dict[str, None] = {}
    for package_name in _PACKAGES[manager]:
        package = tree.module(package_name)
        if package is None or not package.is_package:
            continue
        found.update(dict.fromkeys(_lazy_names(package)))
        for module in _imported_modules(tree, package):
            if "register_module" in module.text:
                found.update(dict.fromkeys(_decorated_names(module, manager)))
    return found


def _lazy_names(package: Module) -> Iterator[str]:
    """Keys of the package's table of parsers to register when first used."""
    for name, binding in package.bindings.items():
        if name.endswith("_PARSERS_TO_REGISTER") and isinstance(binding, ast.Dict):
            yield from (str(key.value) for key in binding.keys if isinstance(key, ast.Constant))


def _imported_modules(tree: PackageSource, package: Module) -> list[Module]:
    names = {b.module for b in package.bindings.values() if isinstance(b, Imported)} - {package.name}
    modules = (tree.module(name) for name in sorted(names) if name.startswith(package.name))
    return [module for module in modules if module is not None]


def _decorated_names(module: Module, manager: str) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.ClassDef):
            continue
        for decorator in node.decorator_list:
            call = decorator if isinstance(decorator, ast.Call) else None
            text = ast.unparse(call.func if call else decorator)
            if text == f"{manager}.register_module":
                yield from _names(call, node.name)


def _names(call: ast.Call | None, fallback: str) -> Iterator[str]:
    values = [] if call is None else [*call.args[:1], *(k.value for k in call.keywords if k.arg == "name")]
    constants = [c for value in values for c in (value.elts if isinstance(value, ast.List) else [value])]
    names = [str(c.value) for c in constants if isinstance(c, ast.Constant)]
    yield from names or [fallback]
