"""Calls met while building a parser: what the harvester can work out of them."""

from __future__ import annotations

import ast
import itertools
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .fields import field_named
from .values import (
    MISSING,
    ClassValue,
    Constantly,
    EnumMember,
    FieldCall,
    FunctionValue,
    Instance,
    Scope,
    Symbol,
    TypeForm,
    Unknown,
    known,
)

if TYPE_CHECKING:
    from .evaluator import Evaluator

# Methods of plain values that have no effect outside them.
SAFE_METHODS: dict[type, set[str]] = {
    str: {
        "replace",
        "split",
        "strip",
        "lower",
        "upper",
        "join",
        "startswith",
        "endswith",
        "format",
        "removeprefix",
    },
    list: {"append", "extend", "copy", "index", "insert", "remove"},
    dict: {"items", "keys", "values", "get", "pop", "update", "copy", "setdefault"},
    set: {"add", "update", "copy", "union"},
    tuple: {"index", "count"},
}
# Functions of a release that are replaced by their meaning rather than followed.
Handler = Callable[["Evaluator", FunctionValue, list[Any], dict[str, Any]], Any]
HANDLERS: dict[str, Handler] = {}
# Classes of a release whose objects are stood in for.
CONSTRUCTORS: dict[str, Callable[[Evaluator], Any]] = {}


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Register the meaning of the release's functions of these names."""

    def register(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return register


def call(interpreter: Evaluator, node: ast.Call, scope: Scope) -> Any:
    """The value of a call, or Unknown."""
    if isinstance(node.func, ast.Attribute):
        special = _super_method(interpreter, node.func, scope)
        if special is None:
            target = interpreter.expression(node.func.value, scope)
            plain = _method(interpreter, target, node, scope)
            if plain is not MISSING:
                return plain
            function = interpreter.attribute(target, node.func.attr)
        else:
            function = special
    else:
        function = interpreter.expression(node.func, scope)
    args, kwargs = arguments(interpreter, node, scope)
    return apply(interpreter, function, args, kwargs, ast.unparse(node))


def arguments(interpreter: Evaluator, node: ast.Call, scope: Scope) -> tuple[list[Any], dict[str, Any]]:
    """The evaluated arguments of a call; an unknown `**mapping` is left out."""
    args: list[Any] = []
    for item in node.args:
        value = interpreter.expression(item, scope)
        if isinstance(item, ast.Starred):
            args.extend(interpreter.iterate(value))
        else:
            args.append(value)
    kwargs: dict[str, Any] = {}
    for keyword in node.keywords:
        value = interpreter.expression(keyword.value, scope)
        if keyword.arg is not None:
            kwargs[keyword.arg] = value
        elif isinstance(value, dict):
            kwargs.update(value)
    return args, kwargs


def apply(interpreter: Evaluator, function: Any, args: list[Any], kwargs: dict[str, Any], text: str) -> Any:
    """Call `function`, one of the values an expression can have."""
    match function:
        case FunctionValue(node=node):
            handler = HANDLERS.get(node.name)
            return (
                handler(interpreter, function, args, kwargs)
                if handler
                else interpreter.run(function, args, kwargs)
            )
        case ClassValue():
            return _construct(interpreter, function, args, kwargs)
        case Symbol(name=name):
            outside = OUTSIDE.get(name)
            return outside(interpreter, args, kwargs) if outside else _opaque(name, text)
        case Constantly(value=value):
            return value
        case Unknown():
            return Unknown(text)
        case _ if callable(function) and all(known(value) for value in args):
            items = [interpreter.iterate(value) if isinstance(value, ClassValue) else value for value in args]
            return function(*items, **kwargs)
        case _:
            return Unknown(text)


def _opaque(name: str, text: str) -> Any:
    return Symbol("enum.auto()") if name == "enum.auto" else Unknown(text)


def _super_method(interpreter: Evaluator, node: ast.Attribute, scope: Scope) -> FunctionValue | None:
    """The method that `super().name` reaches, when `node` is that."""
    inner = node.value
    if not (isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) and inner.func.id == "super"):
        return None
    if scope.bound is None or scope.owner is None:
        return None
    line = interpreter.classes.mro(scope.bound)
    for parent in line[line.index(scope.owner) + 1 :]:
        for item in parent.node.body:
            if isinstance(item, ast.FunctionDef) and item.name == node.attr:
                return FunctionValue(parent.module, item, parent, scope.bound)
    return None


def _method(interpreter: Evaluator, target: Any, node: ast.Call, scope: Scope) -> Any:
    """A method of a plain value or of a recorder object; MISSING when `target` is neither."""
    assert isinstance(node.func, ast.Attribute)
    name = node.func.attr
    receiver = getattr(target, "harvest_call", None)
    if receiver is not None:
        args, kwargs = arguments(interpreter, node, scope)
        return receiver(name, args, kwargs, node, scope)
    for kind, names in SAFE_METHODS.items():
        if isinstance(target, kind):
            if name not in names:
                return Unknown(ast.unparse(node))
            args, kwargs = arguments(interpreter, node, scope)
            if not all(known(value) for value in args) and name not in {"append", "get", "pop", "setdefault"}:
                return Unknown(ast.unparse(node))
            return getattr(target, name)(*args, **kwargs)
    return MISSING


def _construct(interpreter: Evaluator, owner: ClassValue, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if owner.name in CONSTRUCTORS:
        return CONSTRUCTORS[owner.name](interpreter)
    if interpreter.classes.is_enum(owner):
        return next(
            (m for m in interpreter.classes.enum_members(owner) if args and m.value == args[0]),
            Unknown(owner.name),
        )
    return Instance(owner, dict(kwargs))


def _field(_: Evaluator, args: list[Any], kwargs: dict[str, Any]) -> FieldCall:
    given = dict(kwargs)
    if args and args[0] is not Ellipsis:
        given.setdefault("default", args[0])
    return FieldCall(given)


def _get_args(interpreter: Evaluator, args: list[Any], _: dict[str, Any]) -> Any:
    form = args[0]
    if isinstance(form, TypeForm):
        return literal_options(interpreter, form) if form.origin == Symbol("typing.Literal") else form.args
    return Unknown("get_args")


def literal_options(interpreter: Evaluator, form: TypeForm) -> tuple[Any, ...]:
    """The options of a `Literal`, nested literals flattened, each once."""
    found: list[Any] = []
    for item in form.args:
        if isinstance(item, TypeForm) and item.origin == Symbol("typing.Literal"):
            found.extend(literal_options(interpreter, item))
        else:
            found.append(item.value if isinstance(item, EnumMember) else item)
    return tuple(dict.fromkeys(found))


def _getenv(_: Evaluator, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return args[1] if len(args) > 1 else kwargs.get("default")


def _first(_: Evaluator, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return args[0] if args else None


OUTSIDE: dict[str, Callable[[Evaluator, list[Any], dict[str, Any]], Any]] = {
    "dataclasses.field": _field,
    "pydantic.Field": _field,
    "pydantic.fields.Field": _field,
    "typing.get_args": _get_args,
    "typing.cast": lambda _, args, __: args[1],
    "os.getenv": _getenv,
    "os.path.expanduser": _first,
    "os.path.join": lambda _, args, __: (
        "/".join(args) if all(isinstance(a, str) for a in args) else Unknown("join")
    ),
    "itertools.permutations": lambda _, args, kw: list(
        itertools.permutations(args[0], kw.get("r", *args[1:2]))
    ),
    "itertools.chain": lambda _, args, __: list(itertools.chain(*args)),
    "json.loads": lambda _, args, __: json.loads(args[0]),
    "json.dumps": lambda _, args, __: json.dumps(args[0]),
}


@handles("get_field")
def _get_field(interpreter: Evaluator, _: FunctionValue, args: list[Any], __: dict[str, Any]) -> Any:
    """`get_field(Config, "name")`: the field with its default, as vLLM copies it into another dataclass."""
    found = field_named(interpreter, args[0], args[1])
    if found is None:
        return Unknown(f"{args[0].name}.{args[1]}")
    return FieldCall(
        {"default": found.default} if found.factory is MISSING else {"default_factory": found.factory}
    )


@handles("env_with_choices", "env_list_with_choices", "env_set_with_choices", "get_env_or_set_default")
def _environment_getter(
    interpreter: Evaluator, function: FunctionValue, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """A getter with a default and, mostly, choices."""
    default = args[1] if len(args) > 1 else kwargs.get("default")
    if function.node.name == "get_env_or_set_default":
        return Constantly(Unknown("set once"))
    return Constantly(set(default) if function.node.name == "env_set_with_choices" and default else default)


@handles("deprecated_env")
def _deprecated_getter(interpreter: Evaluator, _: FunctionValue, args: list[Any], __: dict[str, Any]) -> Any:
    """A getter that warns when its variable is set."""
    return Constantly(interpreter.invoke(args[3]) if len(args) > 3 else None)


@handles("init_logger", "load_general_plugins", "get_attr_docs")
def _irrelevant(_: Evaluator, function: FunctionValue, __: list[Any], ___: dict[str, Any]) -> Any:
    return Unknown(function.node.name)
