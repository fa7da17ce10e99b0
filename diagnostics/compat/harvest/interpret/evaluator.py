"""Works out expressions of a release's source without running it; what it cannot know becomes `Unknown`."""

from __future__ import annotations

import ast
from typing import Any

from .calls import call
from .operations import BINARY, COMPARE, applied, bind
from .registries import REGISTRIES, registered_names
from .source import Imported, Module, SourceTree
from .symbols import CONSTANTS, attribute_of_platform, attribute_of_symbol, builtin, canonical
from .values import (
    MISSING,
    ClassValue,
    Constantly,
    EnumMember,
    FieldCall,
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

PLAIN_ITERABLES = (list, tuple, set, frozenset, dict, str, range, zip, enumerate)
PLAIN_ITERABLES += (type({}.items()), type({}.keys()), type({}.values()))
ENUM_BASES = {"enum.Enum", "enum.IntEnum", "enum.StrEnum", "enum.Flag", "enum.IntFlag"}


class Evaluator:
    """Evaluates over one source tree. Module-level names are worked out once, when first asked for."""

    def __init__(self, tree: SourceTree) -> None:
        self.tree = tree
        self._globals: dict[tuple[str, str], Any] = {}
        self._depth = 0
        self.parsers: list[Any] = []
        self._class_scopes: dict[ClassValue, Scope] = {}
        self.fields_of: dict[ClassValue, list[Any]] = {}  # kept by `fields.fields`
        self._mro: dict[ClassValue, list[ClassValue]] = {}

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
                return self._operation(node, scope)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehension(node, scope)
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
        from .execute import run_function

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
                found = self.class_attribute(value, attr)
                return Unknown(f"{value.name}.{attr}") if found is MISSING else found
            case EnumMember(name=name, value=inner):
                return {"value": inner, "name": name}.get(attr, Unknown(f"{name}.{attr}"))
            case Instance(owner=owner, given=given):
                return given[attr] if attr in given else self.attribute(owner, attr)
            case Unknown(text="current_platform"):
                return attribute_of_platform(attr)
            case _:
                return Unknown(f"{value}.{attr}")

    def class_attribute(self, value: ClassValue, attr: str) -> Any:
        """A class attribute found along the bases; MISSING when there is none."""
        if attr == "__doc__":
            return ast.get_docstring(value.node) or ""
        if attr == "__name__":
            return value.name
        if (value.name, attr) in REGISTRIES:
            return registered_names(self.tree, value.name)
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
                    return self._member(owner, attr, self.expression(value, self.class_scope(owner)))
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if name == attr:
                    return self._member(owner, attr, self.expression(value, self.class_scope(owner)))
                case _:
                    continue
        return MISSING

    def class_scope(self, owner: ClassValue) -> Scope:
        """The scope of a class body: its own plain assignments over the module's names. Not to be added to."""
        if owner in self._class_scopes:
            return self._class_scopes[owner]
        scope = self._class_scopes[owner] = Scope(owner.module, {}, owner)
        for node in owner.node.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                scope.names[node.targets[0].id] = self.expression(
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
                value = self.expression(node.value, self.class_scope(owner))
                members.append(
                    EnumMember(owner, name, name.lower() if value == Symbol("enum.auto()") else value)
                )
        return members

    def mro(self, value: ClassValue) -> list[ClassValue]:
        """The class and its bases inside the release, depth first."""
        if value not in self._mro:
            found = [value]
            for base in value.node.bases:
                parent = self.expression(base, Scope(value.module))
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
                parent = self.expression(base, Scope(cls.module))
                parent = parent.origin if isinstance(parent, TypeForm) else parent
                if isinstance(parent, Symbol | type):
                    found.add(parent)
        return found

    def is_enum(self, value: ClassValue) -> bool:
        """Whether the class is an enumeration."""
        return any(
            isinstance(base, Symbol) and base.name in ENUM_BASES for base in self.outside_bases(value)
        ) or any(ast.unparse(keyword.value).endswith("EnumMeta") for keyword in value.node.keywords)

    def _subscript(self, node: ast.Subscript, scope: Scope) -> Any:
        value = self.expression(node.value, scope)
        if isinstance(value, Symbol | type | ClassValue | TypeForm):
            if isinstance(value, ClassValue) and self.is_enum(value):
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
        if isinstance(value, ClassValue) and self.is_enum(value):
            return list(self.enum_members(value))
        if isinstance(value, PLAIN_ITERABLES):
            return list(value)
        raise TypeError(f"not iterable here: {value}")

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

    def _operation(self, node: ast.BinOp | ast.UnaryOp | ast.BoolOp | ast.Compare, scope: Scope) -> Any:
        match node:
            case ast.BinOp(left=left, op=op, right=right):
                values = self.expression(left, scope), self.expression(right, scope)
                if isinstance(op, ast.BitOr) and any(_is_type(value) for value in values):
                    return TypeForm(Symbol("typing.Union"), values)
                return applied(BINARY[type(op)], node, *values)
            case ast.UnaryOp(op=op, operand=operand):
                value = self.expression(operand, scope)
                if not known(value):
                    return Unknown(ast.unparse(node))
                return (
                    not value if isinstance(op, ast.Not) else (-value if isinstance(op, ast.USub) else ~value)
                )
            case ast.BoolOp(op=op, values=values):
                result: Any = None
                for item in values:
                    result = self.expression(item, scope)
                    if not known(result) or bool(result) == isinstance(op, ast.Or):
                        return result
                return result
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return applied(
                    COMPARE[type(op)], node, self.expression(left, scope), self.expression(right, scope)
                )
            case _:
                return Unknown(ast.unparse(node))

    def _comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, scope: Scope
    ) -> Any:
        found: list[Any] = []
        self._comprehend(node, 0, Scope(scope.module, dict(scope.names), scope.owner, scope.bound), found)
        if isinstance(node, ast.DictComp):
            return dict(found)
        return set(found) if isinstance(node, ast.SetComp) else found

    def _comprehend(self, node: Any, position: int, scope: Scope, found: list[Any]) -> None:
        if position == len(node.generators):
            if isinstance(node, ast.DictComp):
                found.append((self.expression(node.key, scope), self.expression(node.value, scope)))
            else:
                found.append(self.expression(node.elt, scope))
            return
        generator = node.generators[position]
        for item in self.iterate(self.expression(generator.iter, scope)):
            bind(generator.target, item, scope)
            verdicts = [self.expression(test, scope) for test in generator.ifs]
            if not all(known(verdict) for verdict in verdicts):
                raise ValueError("a condition of a comprehension is unknown")
            if all(verdicts):
                self._comprehend(node, position + 1, scope, found)


def _is_type(value: Any) -> bool:
    return isinstance(value, Symbol | TypeForm | ClassValue | type)


def _slice_parts(node: ast.Slice) -> tuple[ast.expr | None, ast.expr | None, ast.expr | None]:
    return node.lower, node.upper, node.step
