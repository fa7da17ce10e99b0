"""Figures a person has at hand: `key=value` on the command line, or a file that holds them.

A file is YAML or JSON: either a plain mapping of figures, or a mapping with `metrics`, `workload`,
`hardware`, `config`, `log` and `version`. What is not understood is kept as a note, never guessed.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...core.config import ServeConfig
from ...core.errors import EvidenceError
from ...core.places import load_yaml
from ...core.wording import nearest
from ..results import unit_missing
from .logs import read_log_lines
from .model import Evidence, LoadHints, Setting
from .vocabulary import figure, lacks_unit, understand, vocabulary

_SECTIONS = {"metrics", "workload", "hardware", "config", "log", "version", "engine", "observed"}


def read_observed(told: Iterable[str]) -> Evidence:
    """Evidence from `--observed` arguments, each `key=value` or a file's path. Raises EvidenceError."""
    evidence = Evidence()
    for argument in told:
        name, equals, value = argument.partition("=")
        if equals and not os.path.isfile(argument):
            if not name.strip() or not value.strip():
                raise EvidenceError(f"--observed {argument!r}: expected key=value, such as ttft_p99_s=4.2")
            evidence = evidence.merge(_argument(argument, name.strip(), value.strip()))
        else:
            evidence = evidence.merge(_read_file(Path(argument)))
    return evidence


def _argument(argument: str, name: str, value: str) -> Evidence:
    """One `key=value`, which must be understood: nobody reads a note about a mistyped word. Raises EvidenceError."""
    read = observed_mapping({name: value}, "--observed")
    if not read.notes:
        return read
    meaning = understand(name)
    if meaning is not None and lacks_unit(value, meaning):
        units = ("s", "ms") if meaning.unit == "ms" else ("GiB", "MiB")
        raise EvidenceError(f"--observed {unit_missing(argument, units)}")
    if meaning is not None:
        raise EvidenceError(
            f"--observed {argument!r}: {value!r} is no number and no word such as low or rising"
        )
    asked = vocabulary()["asked"]
    near = nearest(name, [*asked, *vocabulary()["figures"], *ServeConfig.model_fields])
    listed = textwrap.fill(", ".join(asked), 100, initial_indent="  ", subsequent_indent="  ")
    raise EvidenceError(f"--observed {argument!r}: no figure this tool knows{near or '.'} It knows\n{listed}")


def _read_file(path: Path) -> Evidence:
    try:
        told = load_yaml(path.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise EvidenceError(f"{path}: {error.strerror}; --observed takes key=value or a file") from error
    except ValueError as error:
        raise EvidenceError(f"{path}: {error}") from error
    if not isinstance(told, Mapping):
        raise EvidenceError(f"{path}: a mapping of figures is needed, not a {type(told).__name__}")
    return observed_mapping(told, path.name)


def observed_mapping(told: Mapping[str, Any], source: str) -> Evidence:
    """Evidence from a mapping: plain figures, or sections of them."""
    if not (_SECTIONS & told.keys()):
        return _metrics(told, source)
    evidence = Evidence(
        engine=_text(told.get("engine")) or None,
        version=_version(told.get("version") or told.get("versions")),
    )
    plain = {key: value for key, value in told.items() if key not in _SECTIONS and key != "versions"}
    for section in (plain, told.get("metrics"), told.get("observed")):
        if isinstance(section, Mapping):
            evidence = evidence.merge(_metrics(section, source))
    if (load := told.get("workload")) is not None:
        evidence.load.append(read_load(load, source))
    if (hardware := told.get("hardware")) is not None:
        _hardware(hardware, evidence)
    if isinstance(config := told.get("config"), Mapping):
        evidence.settings += [Setting(name=str(k), value=v, source=source) for k, v in config.items()]
        evidence.version = evidence.version or _version(config.get("version"))
    if lines := told.get("log"):
        text = lines if isinstance(lines, list) else str(lines).splitlines()
        evidence = evidence.merge(read_log_lines([str(line) for line in text], source))
    return evidence


def _metrics(told: Mapping[str, Any], source: str) -> Evidence:
    evidence = Evidence()
    for name, value in told.items():
        key = str(name)
        if key == "sweep" and isinstance(value, list):
            rows = [row for row in value if isinstance(row, Mapping)]
            evidence.sweep += [_row(row) for row in rows]
            unread = {str(k): v for row in rows for k, v in row.items() if figure(str(k), v, source) is None}
            evidence.notes += [
                f"{source}: sweep, {k} = {v}: {_unread(k, v)}; left out" for k, v in unread.items()
            ]
        elif isinstance(value, Mapping):
            nested = {f"{key}_{inner}": item for inner, item in value.items()}
            evidence = evidence.merge(_metrics(nested, source))
        elif key.replace("-", "_") in ServeConfig.model_fields:
            evidence.settings.append(Setting(name=key.replace("-", "_"), value=value, source=source))
        elif (read := figure(key, value, source)) is not None:
            evidence.figures.append(read)
        else:
            evidence.notes.append(f"{source}: {key} = {value}: {_unread(key, value)}; left out")
    return evidence


def _unread(name: str, value: Any) -> str:
    meaning = understand(name)
    if meaning is not None and lacks_unit(value, meaning):
        return "its unit is missing"
    return "not a figure this tool knows"


def _row(row: Mapping[str, Any]) -> dict[str, float]:
    """One load level of a sweep, in canonical names."""
    values: dict[str, float] = {}
    for name, value in row.items():
        read = figure(str(name), value, "sweep")
        if read is not None and read.value is not None:
            values[read.name] = read.value
    return values


def _hardware(told: Any, evidence: Evidence) -> None:
    if isinstance(told, Mapping):
        name = told.get("gpu") or told.get("name") or told.get("device")
        evidence.gpu = _text(name) or None
        count = told.get("count") or told.get("gpus")
        evidence.gpu_count = int(count) if isinstance(count, int | float) else None
        return
    text = _text(told)
    if many := re.match(r"\s*(\d+)\s*x\s*(.+)", text):
        evidence.gpu_count, evidence.gpu = int(many[1]), many[2].strip()
    else:
        evidence.gpu = text or None


def _text(value: Any) -> str:
    return "" if value is None else str(value).strip()


def _version(told: Any) -> str | None:
    """The release in a text such as `vllm >= 0.9.2`; the newest bound that is met is not guessed."""
    text = _text(told.get("engine") if isinstance(told, Mapping) else told)
    found = re.search(r"\d+\.\d+(?:\.\d+)?", text)
    return found[0] if found else None


def read_load(told: Any, source: str) -> LoadHints:
    """What a description of a load says: a mapping, or a sentence with lengths and counts in it."""
    if not isinstance(told, Mapping):
        return _with_dataset(_load_from_text(_text(told), source))
    values: dict[str, Any] = {}
    words = []
    for name, value in told.items():
        key = str(name).lower()
        meaning = understand(key)
        number = _count(value)
        if key in ("requests", "num_prompts", "num_requests", "prompts"):
            values["requests"] = int(number) if number else None
        elif meaning is not None and number is not None and meaning.name in _LOAD_FIELDS:
            field, kind = _LOAD_FIELDS[meaning.name]
            values[field] = kind(number)
        else:
            words.append(f"{name}: {value}")
    text = "; ".join(words)
    said = _load_from_text(text, source)
    hints = LoadHints(
        **{name: values.get(name, getattr(said, name)) for name in _LOAD_NAMES},
        shared_prefix=said.shared_prefix,
        dataset=said.dataset,
        text=text,
        source=source,
    )
    return _with_dataset(hints)


_LOAD_FIELDS = {
    "concurrency": ("concurrency", int),
    "request_per_s": ("request_rate_per_s", float),
    "completed_per_s": ("request_rate_per_s", float),
    "input_tokens": ("input_tokens", int),
    "output_tokens": ("output_tokens", int),
    "running": ("concurrency", int),
}
_LOAD_NAMES = ("concurrency", "request_rate_per_s", "requests", "input_tokens", "output_tokens")


def _count(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    found = re.fullmatch(r"\s*~?\s*([\d,.]+)\s*([kKmM]?)\s*(?:tokens?)?\s*", _text(value))
    return (
        float(found[1].replace(",", "")) * {"k": 1e3, "m": 1e6}.get(found[2].lower(), 1.0) if found else None
    )


def _load_from_text(text: str, source: str) -> LoadHints:
    """Lengths, counts and shared prefixes from a sentence; only what is said in so many words."""
    low = text.lower()
    lengths = [
        (float(m[1].replace(",", "")) * {"k": 1e3, "m": 1e6}.get(m[2], 1.0), m.start())
        for m in re.finditer(r"~?\s*(\d[\d,]*(?:\.\d+)?)\s*([km]?)[-\s]*(?:token|tok\b)", low)
    ]
    inputs = outputs = None
    for tokens, place in lengths:
        around = low[max(0, place - 40) : place + 40]
        if re.search(r"output|generat|answer|completion", around) and not re.search(
            r"input|prompt|prefill|context", around
        ):
            outputs = outputs or int(tokens)
        else:
            inputs = max(inputs or 0, int(tokens))
    clients = re.search(r"(\d+)\s*(?:concurrent|clients|users|streams|sessions at once)", low)
    rate = re.search(r"(\d+(?:\.\d+)?)\s*(?:req/s|rps|qps|requests? (?:a|per) second)", low)
    shared = (
        True
        if re.search(r"shared prefix|same prefix|system prompt|grouped by .*prefix|multi-?turn", low)
        else None
    )
    if re.search(r"no shared prefix|no common prefix|without shared", low):
        shared = False
    known = next((name for name in vocabulary()["datasets"] if name in low), None)
    return LoadHints(
        concurrency=int(clients[1]) if clients else None,
        request_rate_per_s=float(rate[1]) if rate else None,
        input_tokens=inputs,
        output_tokens=outputs,
        shared_prefix=shared,
        dataset=known,
        text=text,
        source=source,
    )


def _with_dataset(hints: LoadHints) -> LoadHints:
    """Fills lengths that were not told from the named data set's means."""
    if hints.dataset is None:
        return hints
    row = vocabulary()["datasets"][hints.dataset]
    return replace(
        hints,
        input_tokens=hints.input_tokens or row["input"],
        output_tokens=hints.output_tokens or row["output"],
        source=f"{hints.source}; lengths of {hints.dataset}" if not hints.input_tokens else hints.source,
    )
