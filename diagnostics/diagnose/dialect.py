"""SGLang's names for the knobs that this tool reasons about: read from a command, and given back in a report."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from ...core.places import load_yaml, parse_scalar
from .model import Proof, Report


@cache
def _table() -> dict[str, Any]:
    return load_yaml((Path(__file__).parent / "dialect.yaml").read_text(encoding="utf-8"))


def is_sglang_command(text: str) -> bool:
    """Whether a command line starts SGLang's server."""
    return "sglang.launch_server" in text or bool(re.match(r"\s*sglang\s+serve\b", text))


def read_sglang_command(text: str) -> dict[str, Any]:
    """The options of a command, by SGLang's names in snake case."""
    words = shlex.split(text.replace("\\\n", " "))
    values: dict[str, Any] = {}
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        if not word.startswith("--"):
            continue
        name, equals, told = word[2:].partition("=")
        if not equals and place < len(words) and not words[place].startswith("--"):
            told, equals = words[place], "="
            place += 1
        values[name.replace("-", "_")] = parse_scalar(told) if equals else True
    return values


def speaks_sglang(values: Mapping[str, Any]) -> bool:
    """Whether a configuration has options that only SGLang has."""
    table = _table()
    own = {*table["knobs"], *table["switches"]} - {"model_path"}
    return any(name in own for name in values)


def from_sglang(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options in this tool's names; what it has no name for stays as it is."""
    table, found = _table(), {}
    for name, value in values.items():
        name = table["aliases"].get(name, name)
        if name in table["switches"]:
            knob, off = table["switches"][name]
            found[knob] = off if value else not off
        elif name == "chunked_prefill_size" and isinstance(value, int) and value <= 0:
            found["enable_chunked_prefill"] = False
        else:
            found[table["knobs"].get(name, name)] = value
    return found


def sglang_defaults() -> dict[str, Any]:
    """What SGLang uses for knobs that nobody gives."""
    return dict(_table()["defaults"])


def in_sglang(report: Report) -> Report:
    """The report with SGLang's names for knobs and options."""
    told = report.verdict
    verdict = replace(
        told,
        knob=_knob(told.knob),
        before=_value(told.knob, told.before),
        after=_value(told.knob, told.after),
        beside={
            str(_knob(name)): (_value(name, before), _value(name, after))
            for name, (before, after) in told.beside.items()
        },
        why=_words(told.why),
        advice=_words(told.advice),
        at_the_ends=_words(told.at_the_ends),
    )
    return replace(
        report,
        verdict=verdict,
        alternatives=tuple(_proof(proof) for proof in report.alternatives),
        limits=tuple(replace(limit, why=_words(limit.why)) for limit in report.limits),
        assumptions=tuple(_words(text) for text in report.assumptions),
    )


def _proof(proof: Proof) -> Proof:
    told = proof.proposal
    renamed = replace(
        told,
        knob=" and ".join(str(_knob(part)) for part in told.knob.split(" and ")),
        before=_value(told.knob, told.before),
        after=_value(told.knob, told.after),
        why=_words(told.why),
        advice=_words(told.advice),
        changes={str(_knob(name)): _value(name, value) for name, value in told.turned.items()},
        was={str(_knob(name)): _value(name, value) for name, value in told.was.items()},
    )
    return replace(proof, proposal=renamed)


def _knob(name: str | None) -> str | None:
    if name is None:
        return None
    table = _table()
    switches = {knob: switch for switch, (knob, _) in table["switches"].items()}
    names = {knob: own for own, knob in table["knobs"].items()}
    return names.get(name) or switches.get(name) or name


def _value(knob: str | None, value: Any) -> Any:
    """A knob's value as that of the option: a switch that turns something off is on where the knob is off."""
    off = dict(_table()["switches"].values())
    return value == off[knob] if knob in off and isinstance(value, bool) else value


def _words(text: str) -> str:
    table = _table()
    for word, own in table["words"].items():
        text = text.replace(word, own)
    for own, knob in table["knobs"].items():
        text = re.sub(rf"--{knob.replace('_', '-')}\b", f"--{own.replace('_', '-')}", text)
        text = re.sub(rf"\b{knob}\b", own, text) if "_" in knob else text
    return text
