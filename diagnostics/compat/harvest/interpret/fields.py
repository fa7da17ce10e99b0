"""The fields of a release's config classes: dataclasses, pydantic dataclasses and pydantic models."""

from __future__ import annotations

import ast
import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .values import MISSING, ClassValue, FieldCall, Symbol, TypeForm, Unknown

if TYPE_CHECKING:
    from .evaluator import Evaluator

UNION = (Symbol("typing.Union"), Symbol("typing.Optional"))
# Wrappers that leave the type inside them in force.
TRANSPARENT = {"typing.Annotated", "pydantic.SkipValidation", "pydantic.functional_validators.SkipValidation"}
NONE = type(None)
BOUNDS = ("ge", "gt", "le", "lt")


@dataclass(frozen=True)
class FieldSpec:
    """One field: `hint` is the evaluated annotation, `default` and `factory` are MISSING when not given."""

    owner: ClassValue
    name: str
    hint: Any
    default: Any
    factory: Any
    init: bool
    node: ast.AnnAssign
    doc: str
    bounds: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def evidence(self) -> str:
        return self.owner.module.evidence(self.node)

    @property
    def qualified(self) -> str:
        """`CacheConfig.block_size`."""
        return f"{self.owner.name}.{self.name}"


def is_dataclass(interpreter: Evaluator, value: Any) -> bool:
    """Whether `value` is a class of the release that is a (pydantic) dataclass; models do not count."""
    return isinstance(value, ClassValue) and any(
        _makes_dataclass(cls) for cls in interpreter.classes.mro(value)
    )


def is_model(interpreter: Evaluator, value: Any) -> bool:
    """Whether `value` is a pydantic model of the release."""
    return isinstance(value, ClassValue) and Symbol(
        "pydantic.BaseModel"
    ) in interpreter.classes.outside_bases(value)


def _makes_dataclass(value: ClassValue) -> bool:
    for decorator in value.node.decorator_list:
        text = ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)
        if text.rsplit(".", 1)[-1] in {"dataclass", "config"}:
            return True
    return False


def fields(interpreter: Evaluator, cls: ClassValue) -> list[FieldSpec]:
    """The fields in the order the dataclass has them; the nearest class to define one wins."""
    if cls in interpreter.fields_of:
        return interpreter.fields_of[cls]
    found: dict[str, FieldSpec] = {}
    for owner in reversed(interpreter.classes.mro(cls)):
        scope = interpreter.classes.scope(owner)
        body = owner.node.body
        for position, node in enumerate(body):
            if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
                continue
            hint = annotation(interpreter, node.annotation, owner)
            if isinstance(hint, TypeForm) and hint.origin in (
                Symbol("typing.ClassVar"),
                Symbol("dataclasses.InitVar"),
            ):
                continue
            value = MISSING if node.value is None else interpreter.expression(node.value, scope)
            name = node.target.id
            found[name] = _spec(owner, name, hint, value, node, _doc(body, position))
    interpreter.fields_of[cls] = list(found.values())
    return interpreter.fields_of[cls]


def field_named(interpreter: Evaluator, cls: Any, name: str) -> FieldSpec | None:
    """One field of a class, or None."""
    if not isinstance(cls, ClassValue):
        return None
    return next((field for field in fields(interpreter, cls) if field.name == name), None)


def _spec(owner: ClassValue, name: str, hint: Any, value: Any, node: ast.AnnAssign, doc: str) -> FieldSpec:
    if isinstance(value, FieldCall):
        init = value.given.get("init", True) is not False
        return FieldSpec(
            owner, name, hint, value.default, value.factory, init, node, doc, _bounds(value.given)
        )
    return FieldSpec(owner, name, hint, value, MISSING, True, node, doc)


def _bounds(given: dict[str, Any]) -> dict[str, float]:
    """The bounds that pydantic holds a value to."""
    return {name: given[name] for name in BOUNDS if isinstance(given.get(name), int | float)}


def _doc(body: list[ast.stmt], position: int) -> str:
    following = body[position + 1] if position + 1 < len(body) else None
    if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
        return str(following.value.value)
    return ""


def annotation(interpreter: Evaluator, node: ast.expr, owner: ClassValue) -> Any:
    """An evaluated annotation; one written as a string is parsed first."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        try:
            node = ast.parse(node.value, mode="eval").body
        except SyntaxError:
            return Unknown(node.value)
    return interpreter.expression(node, interpreter.classes.scope(owner))


def hint_parts(hint: Any) -> list[Any]:
    """The members of a type once unions and transparent wrappers are opened; None stands as NoneType."""
    if hint is None:
        return [NONE]
    if isinstance(hint, TypeForm):
        if isinstance(hint.origin, Symbol) and hint.origin.name in TRANSPARENT:
            return hint_parts(hint.args[0])
        if hint.origin in UNION:
            parts = [part for item in hint.args for part in hint_parts(item)]
            if hint.origin == Symbol("typing.Optional"):
                parts.append(NONE)
            return parts
    return [hint]


def default_of(interpreter: Evaluator, field: FieldSpec, fallback: Any = None) -> Any:
    """The value a field has when it is not given; `fallback` for a field that must be given."""
    if field.default is not MISSING:
        return fallback if field.default is Ellipsis else field.default
    if field.factory is not MISSING:
        return interpreter.invoke(field.factory)
    return fallback
