"""The JSON keys of flags that take a config object."""

from __future__ import annotations

from typing import Any

from ..releases.table import Field
from .interpret.calls import literal_options
from .interpret.evaluator import Evaluator
from .interpret.fields import NONE, FieldSpec, default_of, fields, hint_parts, is_dataclass, is_model
from .interpret.values import ClassValue, TypeForm, Unknown
from .kwargs import LITERAL
from .parser import Option
from .plain import default_of_value
from .resolved import Resolvers

MAX_DEPTH = 2


def nested_fields(
    evaluator: Evaluator, option: Option, field: FieldSpec | None, resolvers: Resolvers
) -> dict[str, tuple[FieldSpec, Field]]:
    """The keys that the option's object accepts, dotted where objects nest; empty when it takes no config object."""
    cls = _config_class(evaluator, option, field)
    found: dict[str, tuple[FieldSpec, Field]] = {}
    if cls is not None:
        _expand(evaluator, cls, "", 1, resolvers, found)
    return found


def _config_class(evaluator: Evaluator, option: Option, field: FieldSpec | None) -> ClassValue | None:
    """The class behind the option: named by the field's type, or called like the option (`--kv-transfer-config`)."""
    if field is not None:
        for part in hint_parts(field.hint):
            if _has_fields(evaluator, part):
                return part
    if not option.dest.endswith("_config"):
        return None
    module = evaluator.tree.module("vllm.config")
    words = option.dest.removeprefix("override_").split("_")
    for name in ("".join(map(_title, words)), "".join(word.capitalize() for word in words)):
        found = None if module is None else evaluator.module_name(module, name)
        if isinstance(found, ClassValue) and _has_fields(evaluator, found):
            return found
    return None


def _title(word: str) -> str:
    return word.upper() if word in {"kv", "ec", "eplb"} else word.capitalize()


def _has_fields(evaluator: Evaluator, value: Any) -> bool:
    return is_dataclass(evaluator, value) or is_model(evaluator, value)


def _expand(
    evaluator: Evaluator,
    cls: ClassValue,
    prefix: str,
    depth: int,
    resolvers: Resolvers,
    found: dict[str, tuple[FieldSpec, Field]],
) -> None:
    for field in fields(evaluator, cls):
        if not field.init or field.name.startswith("_"):
            continue
        parts = hint_parts(field.hint)
        name = prefix + field.name
        inner = next((part for part in parts if _has_fields(evaluator, part)), None)
        found[name] = field, _field(evaluator, field, name, parts, resolvers)
        if inner is not None and depth < MAX_DEPTH and field.factory is not None and _is_user_object(inner):
            _expand(evaluator, inner, f"{name}.", depth + 1, resolvers, found)


def _is_user_object(cls: ClassValue) -> bool:
    """Config objects a user writes; the model's and the parallel layout are passed between configs inside."""
    return cls.name not in {"ModelConfig", "ParallelConfig", "VllmConfig", "CacheConfig", "SchedulerConfig"}


def _field(
    evaluator: Evaluator, field: FieldSpec, name: str, parts: list[Any], resolvers: Resolvers
) -> Field:
    default = default_of_value(default_of(evaluator, field))
    computed = isinstance(default, Unknown)
    place = resolvers.of_field(field) if default is None else None
    enum = next(
        (part for part in parts if isinstance(part, ClassValue) and evaluator.classes.is_enum(part)), None
    )
    choices: list[Any] | None = None
    if all(part is NONE or _is_literal(part) for part in parts) and any(map(_is_literal, parts)):
        choices = [
            option for part in parts if _is_literal(part) for option in literal_options(evaluator, part)
        ]
        if NONE in parts:
            choices.append(None)
    return Field(
        name=name,
        type="enum" if enum is not None else _type(evaluator, parts),
        default=None if computed else default,
        choices=choices,
        bounds=field.bounds,
        resolver=name if computed or place else None,
    )


def _is_literal(part: Any) -> bool:
    return isinstance(part, TypeForm) and part.origin == LITERAL


def _type(evaluator: Evaluator, parts: list[Any]) -> str:
    names = []
    for part in parts:
        kind = part.origin if isinstance(part, TypeForm) else part
        if _is_literal(part):
            names.append(type(literal_options(evaluator, part)[0]).__name__)
        elif isinstance(kind, type):
            names.append({NONE: "null", dict: "json"}.get(kind, kind.__name__))
        elif _has_fields(evaluator, kind):
            names.append("json")
        else:
            names.append("any")
    kept = list(dict.fromkeys(name for name in names if name != "null")) or ["any"]
    return "any" if "any" in kept else "|".join(kept)
