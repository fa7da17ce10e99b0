"""A release's Python sources: modules found by dotted name, parsed when first needed."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Imported:
    """A name bound by an import: `name` of module `module`, or the module itself when `name` is None."""

    module: str
    name: str | None


# What a module-level name is bound to: a class, a function, an assigned expression or an import.
Binding = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.expr | Imported


@dataclass(eq=False, repr=False)
class Module:
    """One parsed source file. `path` is relative to the release's root, with forward slashes."""

    name: str
    path: str
    tree: ast.Module
    text: str
    is_package: bool
    bindings: dict[str, Binding] = field(default_factory=dict)
    star_imports: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"Module({self.name})"

    def evidence(self, node: ast.AST) -> str:
        """`path:line` of a node of this module."""
        return f"{self.path}:{getattr(node, 'lineno', 1)}"


class PackageSource:
    """The package `package` under `root` (the folder that holds it)."""

    def __init__(self, root: Path, package: str = "vllm") -> None:
        self.root = root
        self.package = package
        self._modules: dict[str, Module | None] = {}

    def module(self, name: str) -> Module | None:
        """The module of that dotted name, or None when this release has no such file."""
        if name not in self._modules:
            self._modules[name] = self._load(name)
        return self._modules[name]

    def modules_under(self, folder: str) -> Iterator[Module]:
        """Every module in a folder such as `vllm/config`, in name order, sub-folders included."""
        for path in sorted((self.root / folder).rglob("*.py")):
            relative = path.relative_to(self.root).with_suffix("")
            parts = relative.parts[:-1] if relative.name == "__init__" else relative.parts
            module = self.module(".".join(parts))
            if module is not None:
                yield module

    def _load(self, name: str) -> Module | None:
        if name.split(".")[0] != self.package:
            return None
        base = self.root.joinpath(*name.split("."))
        for path, is_package in ((base.with_suffix(".py"), False), (base / "__init__.py", True)):
            if path.is_file():
                text = path.read_text(encoding="utf-8", errors="replace")
                tree = ast.parse(text)
                module = Module(name, path.relative_to(self.root).as_posix(), tree, text, is_package)
                _bind(module, tree.body)
                return module
        return None


def absolute_import(module: Module, node: ast.ImportFrom) -> str:
    """The dotted name that a `from ... import` statement of `module` reads from."""
    if node.level == 0:
        return node.module or ""
    parts = module.name.split(".")
    keep = len(parts) - node.level + (1 if module.is_package else 0)
    return ".".join(parts[:keep] + ([node.module] if node.module else []))


def imported_names(module: Module, node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, Imported]]:
    """Each name that an import statement binds, star imports aside."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.asname:
                yield alias.asname, Imported(alias.name, None)
            else:
                top = alias.name.split(".")[0]
                yield top, Imported(top, None)
        return
    source = absolute_import(module, node)
    for alias in node.names:
        if alias.name != "*":
            yield alias.asname or alias.name, Imported(source, alias.name)


def _bind(module: Module, body: Iterable[ast.stmt], weak: bool = False) -> None:
    """Record module-level names; a weak binding (type checking only, an except branch) never replaces one."""

    def put(name: str, binding: Binding) -> None:
        if not (weak and name in module.bindings):
            module.bindings[name] = binding

    for node in body:
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                put(node.name, node)
            case ast.Assign():
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        put(target.id, node.value)
            case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is not None:
                put(name, value)
            case ast.Import() | ast.ImportFrom():
                if isinstance(node, ast.ImportFrom) and any(a.name == "*" for a in node.names):
                    module.star_imports.append(absolute_import(module, node))
                for name, target in imported_names(module, node):
                    put(name, target)
            case ast.If(test=test):
                type_checking = ast.unparse(test).endswith("TYPE_CHECKING")
                _bind(module, node.orelse if type_checking else node.body, weak)
                _bind(module, node.body if type_checking else node.orelse, True)
            case ast.Try():
                _bind(module, node.body, weak)
                for handler in node.handlers:
                    _bind(module, handler.body, True)
            case ast.With():
                _bind(module, node.body, weak)
            case _:
                pass
