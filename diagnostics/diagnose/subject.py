"""What is diagnosed: a configuration of any form, read leniently, with what is known about where it runs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ...core.arithmetic.model_sheets import model_names, shape_named
from ...core.arithmetic.shape import ModelShape
from ...core.config import LoadedConfig, ServeConfig, find_source, load_config, preset_names
from ...core.config.sources import knob_name, vllm_names
from ...core.errors import CamshaftError, ConfigError
from ...core.places import read_yaml
from ..compat.checks.context import Context
from ..compat.facts.unknown import Unknown
from ..compat.inputs.base import Configuration
from ..compat.inputs.read import read_command, read_path
from ..compat.parsing.placeholders import holds_placeholder, is_open, known_part
from ..compat.releases.versions import resolve as release_of
from ..compat.run import guess_engine, image_release
from ..cost.devices import Device, find_device
from ..cost.hardware import HardwareSheet, load_hardware
from ..evidence import Evidence, asked_instead, differences, require_same_model, taken_from_server
from ..simulate import EngineKind
from ..simulate.devices import NAME_ONE, named_in, taken_from_name, unnamed_device
from .dialect import from_sglang, is_sglang_command, read_sglang_command, speaks_sglang


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A configuration with its surroundings; `shape` and `hardware` are None where nobody knows them."""

    label: str
    given: Mapping[str, Any]  # knobs in snake case, as written
    engine: EngineKind
    shape: ModelShape | None = None
    hardware: HardwareSheet | None = None
    gpu: str | None = None  # as people name it
    device: Device | None = None  # as the flag checker knows it
    configuration: Configuration | None = None  # for the flag checker
    overridden: frozenset[str] = frozenset()  # knobs that are not as the configuration writes them
    bare: str | None = None  # what it means that only a model was named
    differs: tuple[str, ...] = ()  # where what was seen is not of this configuration
    sglang: bool = False  # the server is SGLang's: knobs are read and told in its names
    notes: tuple[str, ...] = field(default=())

    @property
    def known(self) -> bool:
        """Whether step times can be computed rather than fitted."""
        return self.shape is not None and self.hardware is not None


def read_subject(
    source: str | None,
    evidence: Evidence,
    *,
    engine: str | None = None,
    version: str | None = None,
    gpu: str | None = None,
    model: str | None = None,
    overrides: Iterable[str] = (),
) -> Subject:
    """The configuration with everything the evidence adds where it is silent; `overrides` are `key=value`.

    Raises ConfigError for a configuration that cannot be read, EvidenceError or ModelError for a GPU or a
    model that was named and that nobody knows.
    """
    values, configuration, own, notes = _read(source, version)
    sglang = bool(source and is_sglang_command(source)) or speaks_sglang(values)
    sglang = sglang or (evidence.engine == "sglang" and not values)
    values = from_sglang(values) if sglang else values
    require_same_model(model or _text(values.get("model")), values.get("served_model_name"), evidence)
    otherwise = differences(values, evidence)
    values.update({difference.knob: difference.ran for difference in otherwise})
    for setting in evidence.settings:
        if setting.name not in values and _is_knob(setting.name):
            values[setting.name] = setting.value
    if sglang:
        engine, configuration = "vllm", None
    image = _image_version(configuration)
    named = version or _text(values.pop("version", None)) or image
    stated = version or evidence.version or named
    if image is not None and stated == image:
        notes.append(f"vLLM {stated}, by the tag of its image")
    kind = _engine(engine, stated, own, evidence)
    written = _known(values, notes)
    values = _overridden(written, tuple(overrides))
    differs = [*taken_from_server(otherwise), *asked_instead(differences(values, evidence))]
    if evidence.version and named not in (None, evidence.version):
        differs.append(f"what was seen is of {evidence.version} and {named} is named: judged as {stated}")
    device = evidence.gpu if gpu is None else gpu
    hardware = _hardware(device, gpu is not None, notes)
    if device is None and own and source is not None:
        hardware = _unnamed(Path(source), values, notes)
        device = None if hardware is None else hardware.name
    shape = _shape(model or str(values.get("model") or ""), model is not None, notes)
    alone = own and configuration is None and kind.name == "camshaft" and engine is None
    return Subject(
        bare=judged_as_own(source) if alone and source is not None else None,
        label=source or "the observed server",
        given=values,
        engine=kind,
        shape=shape,
        hardware=hardware,
        gpu=device,
        device=_device(device),
        configuration=configuration,
        overridden=frozenset(name for name, value in values.items() if written.get(name) != value),
        differs=tuple(differs),
        sglang=sglang,
        notes=tuple(notes),
    )


def judged_as_own(name: str) -> str | None:
    """That a model named alone is judged as this engine serves it; None for a preset, which says whose it is."""
    try:
        find_source(name)
    except ConfigError:
        return "a model alone, with this engine's defaults; --engine vllm predicts vLLM's"
    return None


def named_config(name: str, overrides: Iterable[str] = ()) -> LoadedConfig:
    """What a word means: a preset, or a model alone with every knob at its default.

    Raises ConfigError with the nearest of both.
    """
    try:
        find_source(name)
    except ConfigError:
        _require_model(name)
        return load_config({"model": name}, overrides, purpose="inspect")
    return load_config(name, overrides, purpose="inspect")


def _require_model(name: str) -> None:
    try:
        shape_named(name)
    except CamshaftError as error:
        if os.path.exists(name):
            raise ConfigError(f"{name}: {error}") from error
        known = [*preset_names(), *model_names()]
        near = get_close_matches(name.rsplit("/", 1)[-1].lower(), known, n=3, cutoff=0.5)
        hint = f"; nearest: {', '.join(near)}" if near else ""
        raise ConfigError(
            f"{name}: no such file, preset or model{hint} (`engine config list presets` and `models` list them; a "
            "folder with the config.json of any other model will do)"
        ) from error


@contextmanager
def placed(subject: Subject) -> Iterator[None]:
    """Complaints about a value that was handed on say where it was written: file, line and column, or the command."""
    try:
        yield
    except ConfigError as error:
        found = re.match(r"\(given\): ([\w.-]+): (.*)", str(error), re.DOTALL)
        if found is None:
            raise
        raise ConfigError(f"{_written(subject.label, found[1])}: {found[2]}", error.knob) from error


def _written(source: str, knob: str) -> str:
    """`file:2:1: max-num-seqs` of a YAML file, else the source and the knob as an option."""
    path = Path(source)
    if os.path.isfile(path) and path.suffix in (".yaml", ".yml"):
        try:
            document = read_yaml(path)
        except ConfigError:
            return f"{source}: {knob}"
        for key in document.value:
            if knob_name(str(key)) == knob:
                return f"{document.place((key,))}: {key}"
    return f"{source}: --{knob.replace('_', '-')}" if len(source.split()) > 1 else f"{source}: {knob}"


def _read(
    source: str | None, version: str | None
) -> tuple[dict[str, Any], Configuration | None, bool, list[str]]:
    """Values, the checker's view, whether it is this engine's own, and notes."""
    notes: list[str] = []
    if source is None:
        return {}, None, False, notes
    if is_sglang_command(source):
        return read_sglang_command(source), None, False, notes
    if not os.path.isfile(source):  # False for a name that no file can have, where Path raises
        if "serve" in source.split() or "vllm" in source:
            configuration = read_command(source)[0]
            own = configuration.engine == "camshaft"
            return _values(configuration, version, notes), configuration, own, notes
        return _written_values(named_config(source)), None, True, notes
    path = Path(source)
    try:
        configuration = read_path(path, None)[0]
    except CamshaftError:
        configuration = None
    if configuration is not None and (configuration.words or configuration.typed):
        own = configuration.engine == "camshaft"
        return _values(configuration, version, notes), configuration, own, notes
    told = read_yaml(path).value if path.suffix in (".yaml", ".yml", ".json") else None
    if not isinstance(told, Mapping):
        raise ConfigError(f"{source}: no configuration: a YAML mapping, a preset or a command is needed")
    values = {knob_name(str(key)): value for key, value in told.items()}
    own = configuration is not None and guess_engine(configuration) == "camshaft"
    if "preset" in values or "policy" in values:
        return _written_values(load_config(path, purpose="inspect")), configuration, True, notes
    return values, configuration, own, notes


def _written_values(loaded: LoadedConfig) -> dict[str, Any]:
    return {name: entry.value for name, entry in {**loaded.entries, **loaded.foreign}.items()}


def _overridden(values: Mapping[str, Any], overrides: tuple[str, ...]) -> dict[str, Any]:
    """The values with `key=value` texts on top. Raises ConfigError for a key that is no knob."""
    if not overrides:
        return dict(values)
    return _written_values(load_config(values, overrides, purpose="inspect"))


def _values(configuration: Configuration, version: str | None, notes: list[str]) -> dict[str, Any]:
    """The options of a command or manifest, as the parser of its release reads them.

    What it refuses stays as written; what only a running shell knows is noted and left out.
    """
    target, _ = release_of(configuration.engine, version or _image_version(configuration))
    context = Context(configuration, configuration.engine, None, target, {}, None)
    values = {name: value for name, value in context.values.items() if value is not None}
    for use in context.parsed.uses:
        if use.value is not values.get(use.flag.dest) or not is_open(use.value):
            continue
        written = " ".join(word.text for word in use.values)
        if not isinstance(use.value, Unknown):
            notes.append(f"{use.spelled} {written}: known in part only where it runs; that is left out")
            values[use.flag.dest] = known_part(use.value)
        elif holds_placeholder(written) or any(word.opaque for word in use.values):
            notes.append(f"{use.spelled} {written}: known only where it runs; left out")
            del values[use.flag.dest]
        else:
            values[use.flag.dest] = written
    return values


def _image_version(configuration: Configuration | None) -> str | None:
    if configuration is None or configuration.engine != "vllm":
        return None
    release = image_release(configuration)
    return None if release is None else str(release)


def _is_knob(name: str) -> bool:
    return name in ServeConfig.model_fields or name in vllm_names() or name == "num_speculative_tokens"


def _known(values: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """The knobs that some release has; the rest is told and left out."""
    kept: dict[str, Any] = {}
    for name, value in values.items():
        positive = name.removeprefix("no_")
        if name == "speculative" and value:
            kept["speculative_config"] = dict(value) if isinstance(value, Mapping) else {"method": str(value)}
        elif positive != name and positive in ServeConfig.model_fields and isinstance(value, bool):
            kept[positive] = not value
        elif value is None:
            continue
        elif _is_knob(name):
            kept[name] = value
        else:
            notes.append(f"{name}: {value}: no knob of vLLM or of this engine; left out")
    return _with_drafts(kept, notes)


def _with_drafts(values: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """The values with vLLM's separate options of drafting, which it had until 0.8, as one `speculative_config`."""
    drafted = values.get("num_speculative_tokens")
    if not drafted or values.get("speculative_config"):
        return values
    told: dict[str, Any] = {"num_speculative_tokens": int(drafted)}
    drafter = str(values.get("speculative_model") or "")
    if drafter == "[ngram]":
        told["method"] = "ngram"
    elif drafter and _has_sheet(drafter):
        told["model"] = drafter
    elif drafter:
        notes.append(
            f"speculative_model: {drafter} has no sheet here: its drafts are taken to cost as a head's"
        )
    apart = ("num_speculative_tokens", "speculative_model")
    return {
        **{name: value for name, value in values.items() if name not in apart},
        "speculative_config": told,
    }


def _has_sheet(model: str) -> bool:
    try:
        shape_named(model)
    except CamshaftError:
        return False
    return True


def _engine(named: str | None, version: str | None, own: bool, evidence: Evidence) -> EngineKind:
    name = named or evidence.engine or ("camshaft" if own else "vllm")
    if name == "sglang":
        name = "vllm"
    return EngineKind("camshaft" if name == "camshaft" else "vllm", version)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _hardware(name: str | None, required: bool, notes: list[str]) -> HardwareSheet | None:
    if not name:
        return None
    try:
        return load_hardware(name)
    except CamshaftError as error:
        if required:
            raise
        notes.append(f"{error}; step times are fitted from the evidence")
        return None


def _unnamed(source: Path, values: Mapping[str, Any], notes: list[str]) -> HardwareSheet | None:
    """The device of a configuration of this engine's, which is not named anywhere."""
    try:
        found = unnamed_device(source.stem, _text(values.get("device")))
    except CamshaftError as error:
        notes.append(str(error))
        return None
    if found is None:
        notes.append(f"the device is not known. {NAME_ONE}")
    elif os.path.isfile(source) and named_in(source.stem) is not None:
        notes.append(taken_from_name(source.name, found))
    return found


def _device(name: str | None) -> Device | None:
    try:
        return find_device(name) if name else None
    except CamshaftError:
        return None


def _shape(name: str, required: bool, notes: list[str]) -> ModelShape | None:
    if not name:
        return None
    try:
        return shape_named(name)
    except CamshaftError as error:
        if required:
            raise
        notes.append(f"model {name!r}: {str(error).split(';')[0]}")
        return None
