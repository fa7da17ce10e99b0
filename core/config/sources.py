"""Reads a configuration file or preset, keeps the place of every key, and lays overrides on top."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from ..errors import ConfigError
from ..places import Place, parse_scalar, parse_yaml, read_text, read_yaml
from ..wording import as_given, complaint, nearest
from .schema import NEGATIVES, SWITCHES, ServeConfig
from .support import unsupported

Purpose = Literal["serve", "inspect"]

PRESETS = Path(__file__).resolve().parents[2] / "presets" / "serving"


@dataclass(frozen=True, slots=True)
class Entry:
    """One key as written, and who wrote it."""

    key: str  # snake case
    value: Any
    place: Place
    origin: Literal["given", "preset"]
    spelled: str  # the key as it stands in the file

    @property
    def named(self) -> str:
        """Where the key stands, and the key; a place on the command line is the key itself."""
        place = str(self.place)
        return place if place.endswith(self.spelled) else f"{place}: {self.spelled}"


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration as given: nothing derived yet."""

    config: ServeConfig
    source: Path | None
    preset: str | None
    entries: Mapping[str, Entry]  # the keys that were written, by field name
    # vLLM knobs that this engine lacks; always empty for `serve`, which refuses them
    foreign: Mapping[str, Entry] = field(default_factory=dict)
    policy_wins: bool = False  # the policy's own knobs win over every key that was written

    def origin(self, name: str) -> Literal["given", "preset"] | None:
        """Who wrote a key; None where nobody did."""
        return self.entries[name].origin if name in self.entries else None


def load_config(
    source: str | Path | Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | Iterable[str] = (),
    *,
    purpose: Purpose = "serve",
) -> LoadedConfig:
    """Reads a YAML file, a preset's name or a mapping; `overrides` are `key=value` strings or a mapping.

    `serve` refuses what this engine knows and cannot do yet; `inspect` (simulate, diagnose, check-flags)
    accepts it. Raises ConfigError with a line for every refused key: file, line, column and the nearest known key.
    """
    path, preset, entries = _read(source)
    merged = {entry.key: entry for entry in entries}
    for entry in _override_entries(overrides):
        _apply_override(merged, entry)
    foreign = {key: entry for key, entry in merged.items() if key not in ServeConfig.model_fields}
    refused = [(key, line) for key, entry in foreign.items() if (line := _refusal(entry, purpose))]
    known = {key: entry for key, entry in merged.items() if key not in foreign}
    config, problems = _validate(known)
    refused += problems
    if purpose == "serve" and config is not None:
        written = {key: entry.place for key, entry in known.items()}
        refused += [found for found in unsupported(config, written) if found[0] not in dict(problems)]
    if config is None or refused:
        order = {key: position for position, key in enumerate(merged)}
        refused.sort(key=lambda found: order.get(found[0], len(order)))
        raise ConfigError("\n".join(line for _, line in refused))
    return LoadedConfig(config, path, preset, known, foreign)


def with_policy(loaded: LoadedConfig, policy: str) -> LoadedConfig:
    """The same configuration under another policy, whose own knobs win over everything that was written."""
    entries = {**loaded.entries, "policy": Entry("policy", policy, Place("policy"), "given", "policy")}
    config = loaded.config.model_copy(update={"policy": policy})
    return replace(loaded, config=config, entries=entries, policy_wins=True)


def preset_names() -> list[str]:
    """Names of the serving presets that ship with the package."""
    return sorted(file.stem for file in PRESETS.glob("*.yaml"))


def find_source(source: str | Path) -> tuple[Path, str | None]:
    """The file that `source` means, and the preset's name if it is one. Raises ConfigError."""
    path = Path(source)
    if os.path.isfile(path):  # False for a name that no file can have, where Path raises
        return path, None
    text = str(source)
    bare = text.removesuffix(".yaml").removesuffix(".yml")
    if path.name == text and bare in preset_names():
        return PRESETS / f"{bare}.yaml", bare
    if os.path.exists(path):
        kind = "a folder" if os.path.isdir(path) else "no file (a pipe or a device)"
        raise ConfigError(
            f"{text or path}: is {kind}; a configuration is a YAML file or the name of a preset"
        )
    hint = nearest(bare, preset_names())
    raise ConfigError(f"{text}: no such file or preset{hint} (presets: {', '.join(preset_names())})")


def _read(source: str | Path | Mapping[str, Any] | None) -> tuple[Path | None, str | None, list[Entry]]:
    if source is None:
        return None, None, []
    if isinstance(source, Mapping):
        place = Place("(given)")
        entries = [
            _unnegated(Entry(knob_name(str(key)), value, place, "given", str(key)))
            for key, value in source.items()
        ]
        return None, *_with_base(entries, None)
    path, preset = find_source(source)
    entries = read_entries(path, "preset" if preset else "given")
    base, entries = _with_base(entries, path)
    return path, preset or base, entries


def _with_base(entries: list[Entry], path: Path | None) -> tuple[str | None, list[Entry]]:
    """Puts the values of the preset that the key `preset` names under the file's own."""
    named = [entry for entry in entries if entry.key == "preset"]
    if not named:
        return None, entries
    entry = named[0]
    if not isinstance(entry.value, str):
        raise ConfigError(f"{entry.place}: preset: the name of a preset is needed, not {entry.value!r}")
    try:
        base_path, base_name = find_source(entry.value)
    except ConfigError as error:
        raise ConfigError(f"{entry.place}: preset: {error}") from error
    if path is not None and base_path.resolve() == path.resolve():
        raise ConfigError(f"{entry.place}: preset: a file cannot be its own preset")
    base = read_entries(base_path, "preset")
    nested = [e for e in base if e.key == "preset"]
    if nested:
        raise ConfigError(f"{nested[0].place}: preset: a preset cannot build on another")
    return base_name or str(base_path), [*base, *(e for e in entries if e.key != "preset")]


def read_entries(path: Path, origin: Literal["given", "preset"] = "given") -> list[Entry]:
    """Every top-level key of a YAML file with its place; duplicates are refused. Raises ConfigError."""
    text = read_text(path)
    _refuse_manifest(path, text)
    document = parse_yaml(text, path.name if origin == "preset" else str(path))
    entries: dict[str, Entry] = {}
    for key, value in document.value.items():
        entry = _unnegated(Entry(knob_name(key), value, document.place([key]), origin, key))
        if entry.key in entries:
            first = entries[entry.key]
            raise ConfigError(
                f"{entry.place}: {key}: given twice; first as {first.spelled} on line {first.place.line}"
            )
        entries[entry.key] = entry
    return list(entries.values())


# By the keys that say so.
_MANIFESTS = (
    ("a Kubernetes manifest", {"apiVersion", "kind"}),
    ("a compose file", {"services"}),
    *(("Helm values", {key}) for key in ("image", "replicaCount", "servingEngineSpec", "vllmConfig")),
)


def _refuse_manifest(path: Path, text: str) -> None:
    """Raises ConfigError for a file that starts a server among other things, whether or not it is one YAML document."""
    keys = set(re.findall(r"^([A-Za-z]+) *:", text, re.MULTILINE))
    for kind, marks in _MANIFESTS:
        if marks <= keys:
            raise ConfigError(
                f"{path}: is {kind}, no configuration: engine check-flags and engine diagnose read it; to serve, "
                "write the server's own flags as keys of a YAML file"
            )


def knob_name(key: str) -> str:
    """A key or an option as knobs are called: `max_num_seqs` of `max-num-seqs` and of `--max-num-seqs`."""
    return key.strip().removeprefix("--").replace("-", "_")


def _unnegated(entry: Entry) -> Entry:
    """`no-enable-prefix-caching: true`, vLLM's way to switch a flag off, as `enable_prefix_caching: false`."""
    positive = NEGATIVES.get(entry.key, entry.key.removeprefix("no_"))
    written = {"true": True, "false": False}.get(str(entry.value).lower())
    if positive == entry.key or positive not in SWITCHES or written is None:
        return entry
    return replace(entry, key=positive, value=not written)


def _override_entries(overrides: Mapping[str, Any] | Iterable[str]) -> list[Entry]:
    place = Place("--set")
    if isinstance(overrides, Mapping):
        return [
            _unnegated(Entry(knob_name(k), v, place, "given", k))
            for k, v in overrides.items()
            if v is not None
        ]
    entries: list[Entry] = []
    for text in [overrides] if isinstance(overrides, str) else overrides:
        key, equals, value = text.partition("=")
        if not text.isascii() and text != text.encode("utf-8", "replace").decode():
            raise ConfigError(f"--set {text!r}: is not UTF-8")
        if not equals or not key.strip():
            raise ConfigError(f"--set {text}: key=value is needed, e.g. --set max_num_seqs=64")
        parsed = parse_scalar(value)
        typed = key if key.startswith("--") else f"--set {key.strip()}"
        place = Place(typed)
        entries.append(_unnegated(Entry(knob_name(key), parsed, place, "given", key.removeprefix("--"))))
    return entries


def _apply_override(merged: dict[str, Entry], entry: Entry) -> None:
    """Replaces a key, or one inner key where it is dotted (`policy.chunk_tokens`)."""
    name, dot, inner = entry.key.partition(".")
    if not dot:
        merged[name] = entry
        return
    current = merged[name].value if name in merged else _default(name)
    if name == "policy" and isinstance(current, str):
        current = _policy_mapping(current, entry)
    if current is None:
        current = {}
    if not isinstance(current, Mapping):
        raise ConfigError(f"{entry.place}: {name} is {current!r}, which has no inner keys")
    changed = _nested(current, inner.split("."), entry.value)
    merged[name] = Entry(name, changed, entry.place, entry.origin, entry.spelled)


def _default(name: str) -> Any:
    field = ServeConfig.model_fields.get(name)
    return {} if field is None else field.default


def _policy_mapping(source: str, entry: Entry) -> dict[str, Any]:
    """A named policy written out, so that one of its keys can be changed."""
    from ...policies.base import PolicyError
    from ...policies.registry import load_policy

    try:
        return load_policy(source).model_dump(exclude_unset=True)
    except PolicyError as error:
        raise ConfigError(f"{entry.named}: {error}") from error


def _nested(mapping: Mapping[str, Any], keys: Sequence[str], value: Any) -> dict[str, Any]:
    if not keys[1:]:
        return {**mapping, keys[0]: value}
    inner = mapping.get(keys[0])
    if isinstance(inner, str):  # a policy's part by its bare name
        inner = {"name": inner}
    return {
        **mapping,
        keys[0]: _nested(inner if isinstance(inner, Mapping) else {}, keys[1:], value),
    }


@cache
def vllm_names() -> frozenset[str]:
    """Flags of vLLM's releases, snake case: known by name even where this engine has no such knob."""
    return frozenset(read_yaml(Path(__file__).parent / "vllm_names.yaml").value["names"])


def _refusal(entry: Entry, purpose: Purpose) -> str | None:
    """Why a key that this engine does not have is refused; None where it is vLLM's and only read."""
    if entry.key.removeprefix("no_") in SWITCHES or entry.key in NEGATIVES:
        return f"{entry.named}: true or false is needed{as_given(entry.value)}"
    if entry.key.partition(".")[0].removeprefix("no_") in vllm_names() or entry.key in vllm_names():
        if purpose == "inspect":
            return None
        return (
            f"{entry.named}: a knob of vLLM that this engine does not have; remove it to serve "
            "(simulate, diagnose and check-flags read it)"
        )
    hint = nearest(entry.key, ServeConfig.model_fields, "; `engine config schema` lists every key")
    return f"{entry.named}: unknown key{hint}"


def _validate(entries: Mapping[str, Entry]) -> tuple[ServeConfig | None, list[tuple[str, str]]]:
    """The configuration of the keys that have usable values, and (key, why) for each that has not."""
    problems: list[tuple[str, str]] = []
    usable = dict(entries)
    while True:
        try:
            return ServeConfig.model_validate({key: entry.value for key, entry in usable.items()}), problems
        except ValidationError as error:
            found = [(str(problem["loc"][0]), _say(problem, entries)) for problem in error.errors()]
            problems += found
            usable = {key: entry for key, entry in usable.items() if key not in dict(found)}


def _say(problem: Any, entries: Mapping[str, Entry]) -> str:
    """One line for one pydantic finding: place, key, what was given, what is allowed."""
    key = str(problem["loc"][0])
    entry = entries[key]
    return f"{entry.named}: {complaint(problem)}{as_given(entry.value)}"
