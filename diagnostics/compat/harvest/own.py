"""This engine's own table, made from its configuration schema in the same form as any other engine's."""

from __future__ import annotations

import ast
import re
import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from ....core.config.resolve import DERIVED
from ....core.config.schema import NEGATIVES, ServeConfig, group_of
from ....core.config.values import human_bytes, human_int, human_int_or_auto, json_mapping, names
from ....core.version import __version__
from ..releases.table import EnvVar, Flag, Table, negative_of, option_of
from ..releases.versions import Version, parse
from .interpret.fields import BOUNDS
from .release import Harvest

SCHEMA = "core/config/schema.py"
SOURCES = "core/config/sources.py"  # where the file's key is read that is no knob
_CODE = ("core", "cli", "diagnostics", "policies", "kernels")
_CONVERTED: dict[Any, tuple[str, str | None]] = {
    human_bytes: ("int", "human_readable_bytes"),
    human_int: ("int", "human_readable"),
    human_int_or_auto: ("int", "human_readable_or_auto"),
    json_mapping: ("json", None),
    names: ("list[str]", None),
}


def own_release() -> Version:
    """The release of this installation."""
    return parse(__version__)


def own_table() -> Harvest:
    """The flags that `ServeConfig` accepts, and the environment variables this engine reads."""
    hints = get_type_hints(ServeConfig, include_extras=True)
    schema = ServeConfig.model_json_schema()["properties"]
    flags = [_flag(name, hints[name], schema[name]) for name in ServeConfig.model_fields]
    flags.append(Flag(name="--preset", type="str", kind="value", group="model", evidence=SOURCES))
    return Harvest({flag.name: flag for flag in flags}, _environment(), [])


def _flag(name: str, hint: Any, schema: dict[str, Any]) -> Flag:
    field = ServeConfig.model_fields[name]
    parts, optional = _parts(hint)
    type_name, parse_name = _type(parts)
    default = _plain(field.get_default(call_default_factory=True))
    option = option_of(name)
    is_bool = type_name == "bool"
    older = [option_of(negative) for negative, switch in NEGATIVES.items() if switch == name]
    return Flag(
        name=option,
        type=type_name,
        kind="boolean_optional" if is_bool else "value",
        negatives=[negative_of(option), *older] if is_bool else [],
        default=default,
        choices=_choices(schema),
        bounds=_bounds(field.metadata),
        parse=parse_name,
        optional=optional,
        deprecated=_deprecated(field.deprecated),
        field=f"ServeConfig.{name}",
        group=group_of(name),
        resolver=name if default is None and name in DERIVED else None,
        evidence=SCHEMA,
    )


def _parts(hint: Any) -> tuple[list[Any], bool]:
    """The members of a union, and whether None is one of them."""
    members = list(get_args(hint)) if get_origin(hint) in (Union, types.UnionType) else [hint]
    return [member for member in members if member is not types.NoneType], types.NoneType in members


def _type(parts: list[Any]) -> tuple[str, str | None]:
    found: list[str] = []
    parse_name = None
    for part in parts:
        base, *metadata = get_args(part) if get_origin(part) is Annotated else (part,)
        converter = next((c for item in metadata if (c := getattr(item, "func", None)) in _CONVERTED), None)
        if converter is not None:
            name, parse_name = _CONVERTED[converter]
        elif get_origin(base) is Literal:
            name = type(get_args(base)[0]).__name__
        elif get_origin(base) is tuple:
            name = f"list[{_type([get_args(base)[0]])[0]}]"
        else:
            name = base.__name__
        found.append(name)
    return "|".join(sorted(set(found))), parse_name


def _choices(schema: dict[str, Any]) -> list[Any] | None:
    """The values that a knob's JSON Schema lists."""
    forms = [schema, *schema.get("anyOf", [])]
    return next((form["enum"] for form in forms if "enum" in form), None)


def _bounds(metadata: list[Any]) -> dict[str, float]:
    found = {name: getattr(item, name, None) for item in metadata for name in BOUNDS if hasattr(item, name)}
    return {name: bound for name, bound in found.items() if bound is not None}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _deprecated(value: Any) -> str | None:
    return "deprecated" if value is True else value if isinstance(value, str) else None


def _environment() -> dict[str, EnvVar]:
    """The variables of this engine's own that its code reads, found in its source."""
    root = Path(__file__).parents[3]
    found: dict[str, EnvVar] = {}
    for folder in _CODE:
        for path in sorted((root / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if "environ" not in text:
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Constant) and re.fullmatch(r"CAMSHAFT_[A-Z_]+", str(node.value)):
                    place = path.relative_to(root).as_posix()
                    found.setdefault(str(node.value), EnvVar(name=str(node.value), evidence=place))
    return found


def overdue(table: Table) -> list[str]:
    """Flags that the table still accepts although its release has reached the one they were to be removed in."""
    found = []
    for flag in table.flags.values():
        removal = re.search(r"removed in (\d+(?:\.\d+)+)", flag.deprecated or "")
        if removal and parse(removal[1]) <= table.version:
            found.append(flag.name)
    return found
