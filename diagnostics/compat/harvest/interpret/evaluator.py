"""Works out expressions of a release's source without running it; what it cannot know becomes `Unknown`."""

from __future__ import annotations

import ast
from typing import Any

from .calls import call
from .classes import Classes
from .execute import run_function
from .operations import comprehension, iterate, operation
from .source import Imported, Module, PackageSource
from .symbols import CONSTANTS, attribute_of_platform, attribute_of_symbol, builtin, canonical
from .values import (
    MISSING,
    ClassValue,
    Constantly,
    EnumMember,
    FunctionValue,
    Instance,
    LambdaValue,
    ModuleValue,
    Scope,
    Symbol,
    TypeForm,
    Unknown,
    known,
)

MAX_DEPTH = 60


class Evaluator:
    """Evaluates over one source tree. Module-level names are worked out once, when first asked for.

    `parsers` collects the argument parsers that the release's code makes, `fields_of` is kept by `fields.fields`.
    """

    def __init__(self, tree: PackageSource) -> None:
        self.tree = tree
        self.classes = Classes(tree, self.expression)
        self._globals: dict[tuple[str, str], Any] = {}
        self._depth = 0
        self.parsers: list[Any] = []
        self.fields_of: dict[ClassValue, list[Any]] = {}

    def expression(self, node: ast.expr, scope: Scope) -> Any:
        """The value of `node`, or Unknown."""
        if self._depth > MAX_DEPTH:
            return Unknown(ast.unparse(node))
        self._depth += 1
        try:
            return self._expression(node, scope)
        except (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError):
            return Unknown(ast.unparse(node))
        finally:
            self._depth -= 1

    def _expression(self, node: ast.expr, scope: Scope) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self.name(name, scope)
            case ast.Attribute(value=value, attr=attr):
                return self.attribute(self.expression(value, scope), attr)
            case ast.Call():
                return call(self, node, scope)
            case ast.Subscript():
                return self._subscript(node, scope)
            case ast.List(elts=elements):
                return self._elements(elements, scope)
            case ast.Tuple(elts=elements):
                return tuple(self._elements(elements, scope))
            case ast.Set(elts=elements):
                return set(self._elements(elements, scope))
            case ast.Dict():
                return self._dict(node, scope)
            case ast.Lambda():
                return LambdaValue(node, scope)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                verdict = self.expression(test, scope)
                if not known(verdict):
                    return Unknown(ast.unparse(node))
                return self.expression(body if verdict else orelse, scope)
            case ast.JoinedStr(values=values):
                return "".join(self._piece(value, scope) for value in values)
            case ast.BinOp() | ast.UnaryOp() | ast.BoolOp() | ast.Compare():
                return operation(self.expression, node, scope)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return comprehension(self.expression, self.classes, node, scope)
            case ast.NamedExpr(target=ast.Name(id=name), value=value):
                scope.names[name] = self.expression(value, scope)
                return scope.names[name]
            case ast.Starred(value=value):
                return self.expression(value, scope)
            case _:
                return Unknown(ast.unparse(node))

    def name(self, name: str, scope: Scope) -> Any:
        """What a bare name means in `scope`: local, module-level, or a builtin."""
        if name in scope.names:
            return scope.names[name]
        value = self.module_name(scope.module, name)
        return builtin(name) if value is MISSING else value

    def module_name(self, module: Module, name: str) -> Any:
        """The value of a module-level name, following imports; MISSING when the module has none."""
        key = (module.name, name)
        if key not in self._globals:
            self._globals[key] = Unknown(name)
            self._globals[key] = self._module_name(module, name)
        return self._globals[key]

    def _module_name(self, module: Module, name: str) -> Any:
        binding = module.bindings.get(name)
        if binding is None or (name.isupper() and "environment_variables" in module.bindings):
            from_environment = self._environment_default(module, name)
            if from_environment is not MISSING:
                return from_environment
        match binding:
            case None:
                return self._indirect(module, name)
            case ast.ClassDef():
                return ClassValue(module, binding)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                return FunctionValue(module, binding)
            case Imported():
                return self.imported(binding)
            case _:
                return self.expression(binding, Scope(module))

    def _indirect(self, module: Module, name: str) -> Any:
        for source in module.star_imports:
            other = self.tree.module(source)
            if other is not None and (value := self.module_name(other, name)) is not MISSING:
                return value
        submodule = self.tree.module(f"{module.name}.{name}") if module.is_package else None
        return MISSING if submodule is None else ModuleValue(submodule)

    def imported(self, target: Imported) -> Any:
        """What an import binds: a value of the release, or a symbol from outside it."""
        if target.module.split(".")[0] != self.tree.package:
            full = target.module if target.name is None else f"{target.module}.{target.name}"
            return CONSTANTS.get(full, canonical(full))
        module = self.tree.module(target.module)
        if target.name is None:
            return Unknown(target.module) if module is None else ModuleValue(module)
        if (target.module, target.name) == (f"{self.tree.package}.platforms", "current_platform"):
            return Unknown("current_platform")
        value = MISSING if module is None else self.module_name(module, target.name)
        if value is MISSING:
            submodule = self.tree.module(f"{target.module}.{target.name}")
            return Unknown(f"{target.module}.{target.name}") if submodule is None else ModuleValue(submodule)
        return value

    def _environment_default(self, module: Module, name: str) -> Any:
        """The default of an environment variable, when `module` keeps a table of getters as vLLM's envs does."""
        table = module.bindings.get("environment_variables")
        if not isinstance(table, ast.Dict):
            return MISSING
        for key, value in zip(table.keys, table.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == name:
                return self.invoke(self.expression(value, Scope(module)))
        return MISSING

    def invoke(self, value: Any) -> Any:
        """What a callable of no arguments returns (a default factory, a getter)."""
        match value:
            case LambdaValue(node=node, scope=scope) if not node.args.args:
                return self.expression(
                    node.body, Scope(scope.module, dict(scope.names), scope.owner, scope.bound)
                )
            case LambdaValue(node=node):
                return Unknown(ast.unparse(node))
            case Constantly(value=constant):
                return constant
            case ClassValue():
                return Instance(value, {})
            case FunctionValue():
                return self.run(value, [], {})
            case type():
                return value()
            case _:
                return Unknown(str(value))

    def run(self, function: FunctionValue, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """What a function of the release returns for these arguments."""
        return run_function(self, function, args, kwargs)

    def attribute(self, value: Any, attr: str) -> Any:
        """`value.attr`, or Unknown."""
        match value:
            case ModuleValue(module=module):
                found = self.module_name(module, attr)
                return Unknown(f"{module.name}.{attr}") if found is MISSING else found
            case Symbol():
                return attribute_of_symbol(value, attr)
            case ClassValue():
                found = self.classes.attribute(value, attr)
                return Unknown(f"{value.name}.{attr}") if found is MISSING else found
            case EnumMember(name=name, value=inner):
                return {"value": inner, "name": name}.get(attr, Unknown(f"{name}.{attr}"))
            case Instance(owner=owner, given=given):
                return given[attr] if attr in given else self.attribute(owner, attr)
            case Unknown(text="current_platform"):
                return attribute_of_platform(attr)
            case _:
                return Unknown(f"{value}.{attr}")

    def _subscript(self, node: ast.Subscript, scope: Scope) -> Any:
        value = self.expression(node.value, scope)
        if isinstance(value, Symbol | type | ClassValue | TypeForm):
            if isinstance(value, ClassValue) and self.classes.is_enum(value):
                return self.attribute(value, self.expression(node.slice, scope))
            arguments = self.expression(node.slice, scope)
            return TypeForm(value, arguments if isinstance(arguments, tuple) else (arguments,))
        if isinstance(node.slice, ast.Slice):
            bounds = [
                None if part is None else self.expression(part, scope) for part in _slice_parts(node.slice)
            ]
            return value[slice(*bounds)]
        key = self.expression(node.slice, scope)
        return value[key] if known(value) and known(key) else Unknown(ast.unparse(node))

    def _elements(self, nodes: list[ast.expr], scope: Scope) -> list[Any]:
        found: list[Any] = []
        for node in nodes:
            value = self.expression(node, scope)
            if isinstance(node, ast.Starred):
                found.extend(self.iterate(value))
            else:
                found.append(value)
        return found

    def iterate(self, value: Any) -> list[Any]:
        """The items of a known iterable. Raises TypeError for anything else."""
        return iterate(self.classes, value)

    def _dict(self, node: ast.Dict, scope: Scope) -> Any:
        found: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                found.update(self.expression(value, scope))
            else:
                found[self.expression(key, scope)] = self.expression(value, scope)
        return found

    def _piece(self, node: ast.expr, scope: Scope) -> str:
        value = self.expression(node.value if isinstance(node, ast.FormattedValue) else node, scope)
        return str(value) if isinstance(value, str | int | float) else "…"


def _slice_parts(node: ast.Slice) -> tuple[ast.expr | None, ast.expr | None, ast.expr | None]:
    return node.lower, node.upper, node.step
