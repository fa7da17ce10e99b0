"""Policy files, and the parts they name. Third-party parts and policies come in by entry point.

A package offers them in the entry-point group `camshaft.policies`; the object is a subclass of one of the
parts (policies/parts.py) or a callable that makes a whole Policy from its parameters. Installing a package
activates nothing: a policy file has to name it.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .base import API_VERSION, Admission, Budget, Events, Key, Policy, PolicyError, RequestView, StepView
from .parts import Batching, Chunking, Order, Part, Victim, describe

ENTRY_POINT_GROUP = "camshaft.policies"

_HERE = Path(__file__).parent
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's takes no half of a surrogate pair
_KINDS: dict[str, type[Part]] = {
    "order": Order,
    "victim": Victim,
    "chunking": Chunking,
    "batching": Batching,
}

_MEMBERS = [name for name in vars(Policy) if not name.startswith("_")]

Named = str | dict[str, Any]  # a part's name, or a mapping with `name` and its parameters


class Knobs(BaseModel):
    """Configuration values that a policy file brings; one given explicitly in the configuration wins."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    max_num_seqs: int | None = Field(default=None, gt=0)
    max_num_batched_tokens: int | None = Field(default=None, gt=0)
    enable_chunked_prefill: bool | None = None
    long_prefill_token_threshold: int | None = Field(default=None, ge=0)
    max_wait_s: float | None = Field(default=None, gt=0)

    def given(self) -> dict[str, Any]:
        """The knobs that the file sets."""
        return self.model_dump(exclude_none=True)


class PolicyFile(BaseModel):
    """One policy file."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    api_version: Literal[1] = API_VERSION
    name: str
    description: str = ""
    order: Named = "fcfs"
    victim: Named = "latest"
    chunking: Named = "fixed"
    batching: Named = "continuous"
    plugin: Named | None = None  # a whole policy by entry point, instead of the four parts
    knobs: Knobs = Knobs()

    def build(self) -> Policy:
        """A fresh policy. Raises PolicyError for unknown parts and wrong parameters."""
        if self.plugin is not None:
            return _build_plugin(self.plugin)
        made = {kind: _build_part(kind, getattr(self, kind)) for kind in _KINDS}
        return ComposedPolicy(self.name, **made)  # type: ignore[arg-type]


class ComposedPolicy:
    """A policy made of four parts; implements `base.Policy`."""

    def __init__(
        self, name: str, *, order: Order, victim: Victim, chunking: Chunking, batching: Batching
    ) -> None:
        self.name = name
        self.order, self.victim, self.chunking, self.batching = order, victim, chunking, batching
        self.dynamic = order.dynamic
        self.accounts = order.accounts or batching.accounts
        self.order_key = order.key
        self.victim_key = victim.key
        self.admit: Callable[[RequestView, StepView], Admission] = batching.admit
        self.step_budget: Callable[[StepView], Budget] = self._padded if batching.pads else chunking.budget

    order_key: Callable[[RequestView, StepView], Key]
    victim_key: Callable[[RequestView, StepView], Key]

    def on_events(self, events: Events) -> None:
        for part in (self.order, self.batching):
            part.on_events(events)

    def _padded(self, step: StepView) -> Budget:
        return self.chunking.budget(step)._replace(pad=True)


def names() -> list[str]:
    """Names of the policy files that come with the engine."""
    return sorted(path.stem for path in _HERE.glob("*.yaml"))


def load_policy(source: str | Path | Mapping[str, Any]) -> PolicyFile:
    """A policy by name, by file, or given inline. Raises PolicyError that says what is wrong and allowed."""
    if isinstance(source, Mapping):
        return _validate({"name": "inline", **source}, "policy")
    path = Path(source)
    if path.suffix not in (".yaml", ".yml") and str(source) in names():
        path = _HERE / f"{source}.yaml"
    if not os.path.isfile(path):  # False for a name that no file can have, where Path raises
        known = f"known are {', '.join(names())}, or a file's path"
        raise PolicyError(f"no policy {str(source)!r}: {known}{_hint(str(source), names())}")
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise PolicyError(f"{path}: not readable as YAML: {error}") from error
    if not isinstance(data, dict):
        raise PolicyError(f"{path}: a policy file is a mapping, this is {type(data).__name__}")
    return _validate({"name": path.stem, **data}, str(path))


def parts(kind: str) -> dict[str, type[Part]]:
    """The parts of one kind that come with the engine, by name."""
    folder = _HERE / kind
    found: dict[str, type[Part]] = {}
    for path in sorted(folder.glob("[!_]*.py")):
        module = import_module(f".{kind}.{path.stem}", __package__)
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, _KINDS[kind]) and value is not _KINDS[kind]:
                found[value.name] = value
    return found


def catalogue() -> dict[str, list[dict[str, Any]]]:
    """Every built-in part by kind, with what it does and its parameters."""
    return {kind: [{"name": name, **describe(part)} for name, part in parts(kind).items()] for kind in _KINDS}


def plugins() -> dict[str, Any]:
    """Names that installed packages offer; nothing is imported."""
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}


def _validate(data: dict[str, Any], where: str) -> PolicyFile:
    try:
        policy = PolicyFile.model_validate(data)
    except ValidationError as error:
        raise PolicyError(f"{where}: {_first(error, PolicyFile)}") from error
    try:
        policy.build()  # wrong parts are a mistake of the file, told when it is read
    except PolicyError as error:
        raise PolicyError(f"{where}: {error}") from error
    return policy


def _split(named: Named) -> tuple[str, dict[str, Any]]:
    if isinstance(named, str):
        return named, {}
    parameters = dict(named)
    name = parameters.pop("name", None)
    if not isinstance(name, str):
        example = "a part's name, or {name: adaptive, itl_target_ms: 30}"
        raise PolicyError(f"expected {example}, not {named!r}")
    if not all(isinstance(key, str) for key in parameters):
        raise PolicyError(f"{name}: its parameters need names: {named!r}")
    return name, parameters


def described(kind: str, name: str) -> dict[str, Any]:
    """What a part does and its parameters, one of an installed package imported for it. Raises PolicyError."""
    return describe(_part(kind, name))


def _part(kind: str, name: str) -> type[Part]:
    known = parts(kind)
    part = known.get(name)
    if part is None and name in plugins():
        part = _load(kind, name)
        if not (isinstance(part, type) and issubclass(part, _KINDS[kind])):
            raise PolicyError(f"{kind}: the plug-in {name!r} is no subclass of {_KINDS[kind].__name__}")
    if part is None:
        raise PolicyError(f"{kind}: no {name!r}; known are {', '.join(known)}{_hint(name, known)}")
    return part


def _build_part(kind: str, named: Named) -> Part:
    name, parameters = _split(named)
    part = _part(kind, name)
    try:
        return part(**parameters)
    except ValidationError as error:
        raise PolicyError(f"{kind} {name!r}: {_first(error, part)}") from error
    except Exception as error:  # a third party's own code
        raise _not_made(kind, name, error) from error


def _build_plugin(named: Named) -> Policy:
    name, parameters = _split(named)
    if name not in plugins():
        hint = _hint(name, plugins())
        raise PolicyError(f"plugin: no installed package offers {name!r} in {ENTRY_POINT_GROUP}{hint}")
    make = _load("plugin", name)
    try:
        policy = make(**parameters)
        lacks = [member for member in _MEMBERS if not hasattr(policy, member)]
    except Exception as error:
        raise _not_made("plugin", name, error) from error
    if lacks:
        raise PolicyError(f"plugin {name!r} is no policy (policies/base.py): it lacks {', '.join(lacks)}")
    return policy


def _load(kind: str, name: str) -> Any:
    """What an entry point names. Raises PolicyError where it cannot be imported."""
    try:
        return plugins()[name].load()
    except Exception as error:
        raise _not_made(kind, name, error) from error


def _hint(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _not_made(kind: str, name: str, error: Exception) -> PolicyError:
    return PolicyError(f"{kind} {name!r} cannot be made: {type(error).__name__}: {error}")


def _first(error: ValidationError, model: type[BaseModel]) -> str:
    """The first complaint of pydantic in a sentence."""
    problem = error.errors(include_url=False, include_input=False)[0]
    key = ".".join(str(part) for part in problem["loc"])
    if model is PolicyFile and problem["loc"][0] in (*_KINDS, "plugin"):
        return f"{problem['loc'][0]}: a name is needed, or a mapping of `name` and parameters"
    if problem["type"] == "extra_forbidden":
        known = ", ".join(model.model_fields) or "none"
        return f"unknown key {key!r}; known are {known}"
    return f"{key}: {problem['msg']}"
