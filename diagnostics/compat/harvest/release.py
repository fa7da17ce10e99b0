"""Builds the flag table of one vLLM release from its unpacked source."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..releases.table import EnvVar, Field, Flag, Refusal, negative_of
from .deprecation import Deprecations
from .environment import environment_variables
from .errors import HarvestError
from .interpret.evaluator import Evaluator
from .interpret.fields import FieldSpec, field_named, fields
from .interpret.source import PackageSource
from .interpret.values import ClassValue, FunctionValue, Unknown
from .kwargs import FIELD, UNREAD, conversion
from .nested import nested_fields
from .parser import Option, Recorder, default_of_option, suppressed
from .plain import choices_of, default_of_value
from .refusals import refusals
from .resolved import Resolvers

TYPE_NAMES = {
    "human_readable": "int",
    "human_readable_or_auto": "int",
    "key_values": "str",
    "json_or_str": "json|str",
    "snake_case": "str",
    "numbers_or_names": "str",
}
# Conversions that the parser of a table makes by their name.
PARSED = {"human_readable", "human_readable_or_auto", "key_values", "numbers_or_names", "snake_case"}


@dataclass
class Harvest:
    """What a release accepts. `unresolved` names what could not be worked out, for a review."""

    flags: dict[str, Flag]
    env: dict[str, EnvVar]
    unresolved: list[str]
    refusals: dict[str, Refusal] = field(default_factory=dict)


def harvest(root: Path) -> Harvest:
    """The flags and environment variables of the release unpacked under `root` (which holds `vllm/`).

    Raises HarvestError when there is no serve command in it.
    """
    tree = PackageSource(root)
    evaluator = Evaluator(tree)
    options = serve_options(evaluator)
    if not options:
        raise HarvestError(f"no `vllm serve` command found under {root}")
    builder = _Builder(evaluator)
    flags = {}
    for option in options:
        flag = builder.flag(option)
        flags.setdefault(flag.name, flag)
    missed = [f"{place}: an add_argument call was not reached" for place in _unreached(tree, options)]
    return Harvest(flags, environment_variables(evaluator), builder.unresolved + missed, builder.refusals())


def serve_options(evaluator: Evaluator) -> list[Option]:
    """The options of `vllm serve`, in the order they are added, whichever file this release adds them in."""
    module = evaluator.tree.module("vllm.entrypoints.cli.serve")
    command = None if module is None else evaluator.module_name(module, "ServeSubcommand")
    if isinstance(command, ClassValue):
        method = evaluator.attribute(command, "subparser_init")
        recorder = Recorder()
        if isinstance(method, FunctionValue):
            evaluator.run(method, [recorder], {})
        return recorder.options
    scripts = evaluator.tree.module("vllm.scripts")
    main = None if scripts is None else evaluator.module_name(scripts, "main")
    if isinstance(main, FunctionValue):
        evaluator.run(main, [], {})
    return next((parser.serve for parser in evaluator.parsers if parser.serve), [])


def _unreached(tree: PackageSource, options: list[Option]) -> list[str]:
    """Calls that add an option, in the modules that hold nothing but the serve command's, and were not followed."""
    reached = {option.evidence for option in options}
    names = ("engine.arg_utils", "entrypoints.openai.cli_args", "entrypoints.common.cli_args")
    modules = [module for name in names if (module := tree.module(f"{tree.package}.{name}")) is not None]
    return [
        module.evidence(node)
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith(".add_argument")
        and not _positional(node)
        and module.evidence(node) not in reached
    ]


def _positional(node: ast.Call) -> bool:
    first = node.args[0] if node.args else None
    return isinstance(first, ast.Constant) and not str(first.value).startswith("-")


class _Builder:
    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self._deprecations = Deprecations(evaluator)
        self._resolvers = Resolvers(evaluator)
        self._inverse = _inverse_prefixes(evaluator.tree)
        self.unresolved: list[str] = []
        # The options, by their names in conditions, behind fields of the release's classes; and those classes.
        self._names: dict[str, list[str]] = {}
        self._classes: dict[str, ClassValue] = {}
        # The same of the parsed options themselves: `given.x` where code computes what is not given.
        self._arguments: dict[str, str] = {}

    def refusals(self) -> dict[str, Refusal]:
        """What the objects behind the options seen so far refuse."""
        for module, name in (("vllm.engine.arg_utils", "EngineArgs"), ("vllm.config", "VllmConfig")):
            cls = self._class(module, name)
            if cls is not None:
                specs = {
                    spec.name: spec for spec in fields(self._evaluator, cls) if spec.name in self._arguments
                }
                self._note(specs)
                self._classes[cls.name] = cls
        return refusals(self._evaluator, self._classes, self._names, self._arguments, self._resolvers)

    def _note(self, specs: Mapping[str, FieldSpec]) -> None:
        for name, spec in specs.items():
            known = self._names.setdefault(spec.qualified, [])
            known += [] if name in known else [name]
            self._classes[spec.owner.name] = spec.owner

    def flag(self, option: Option) -> Flag:
        field: FieldSpec | None = option.kwargs.get(FIELD)
        converted = conversion(option.kwargs.get("type", str))
        kind = option.kind
        behind = field or self._engine_field(option)
        raw = default_of_option(option)
        default = None if suppressed(raw) else self._plain(option, raw)
        keys = nested_fields(self._evaluator, option, field, self._resolvers)
        nested = {name: key for name, (_, key) in keys.items()}
        self._note({option.dest: behind} if behind and converted is not UNREAD else {})
        self._note({f"{option.dest}.{name}": spec for name, (spec, _) in keys.items()})
        resolved = self._resolvers.place(option.dest, behind) if default is None else None
        if converted is not UNREAD:
            self._arguments[option.dest] = f"given.{option.dest}" if resolved else option.dest
        takes_bool = kind in {"store_true", "store_false", "boolean_optional", "store_boolean"}
        return Flag(
            name=option.name,
            type="bool" if takes_bool else _type_name(converted.name, option, nested),
            kind=kind,
            aliases=[text for text in option.strings if text != option.name],
            negatives=self._negatives(option, kind),
            default=default,
            choices=self._choices(option),
            bounds=field.bounds if field else {},
            nargs=_nargs(option),
            parse=_parse_name(converted.name, option),
            optional=converted.optional and not takes_bool,
            deprecated=self._deprecations.of(option, field),
            field=behind.qualified if behind else None,
            group=option.group,
            resolver=option.dest if resolved or isinstance(raw, Unknown) else None,
            nested=nested,
            evidence=option.evidence,
            defined=behind.evidence if behind else "",
            resolved=resolved or "",
        )

    def _plain(self, option: Option, raw: Any) -> Any:
        value = default_of_value(raw)
        if isinstance(value, Unknown):
            self.unresolved.append(f"{option.name}: default {value.text}")
            return None
        return value

    def _choices(self, option: Option) -> list[Any] | None:
        if "choices" not in option.kwargs:
            return None
        found = choices_of(option.kwargs["choices"])
        if found is None:
            self.unresolved.append(f"{option.name}: choices {option.kwargs['choices']}")
        return found

    def _negatives(self, option: Option, kind: str) -> list[str]:
        if kind != "boolean_optional":
            return []
        long = [text for text in option.strings if text.startswith("--")]
        inverses = [
            inverse + text.removeprefix(prefix)
            for text in long
            for prefix, inverse in self._inverse.items()
            if text.startswith(prefix)
        ]
        return [*map(negative_of, long), *inverses]

    def _engine_field(self, option: Option) -> FieldSpec | None:
        """The EngineArgs field behind an option written out by hand."""
        for name in ("EngineArgs", "AsyncEngineArgs"):
            found = field_named(self._evaluator, self._class("vllm.engine.arg_utils", name), option.dest)
            if found is not None:
                return found
        return None

    def _class(self, module_name: str, name: str) -> ClassValue | None:
        module = self._evaluator.tree.module(module_name)
        found = None if module is None else self._evaluator.module_name(module, name)
        return found if isinstance(found, ClassValue) else None


def _inverse_prefixes(tree: PackageSource) -> dict[str, str]:
    """`--enable-` to `--disable-` and back, in releases whose booleans have that form too."""
    module = tree.module("vllm.utils.argparse_utils") or tree.module("vllm.utils")
    for binding in () if module is None else module.bindings.values():
        if isinstance(binding, ast.ClassDef):
            for node in binding.body:
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_inverse_prefixes":
                    return ast.literal_eval(node.value)
    return {}


def _type_name(name: str, option: Option, nested: dict[str, Field]) -> str:
    base = "json" if nested and name == "str" else TYPE_NAMES.get(name, name)
    many = (
        option.kind == "append"
        or option.kwargs.get("nargs") in {"+", "*"}
        or isinstance(option.kwargs.get("nargs"), int)
    )
    return f"list[{base}]" if many else base


def _parse_name(name: str, option: Option) -> str | None:
    if option.kwargs.get("nargs") == "?":
        return "optional_value"
    return name if name in PARSED else None


def _nargs(option: Option) -> str | int | None:
    value = option.kwargs.get("nargs")
    return value if isinstance(value, str | int) else None
