"""Packs the rules' YAML into the file the checker loads: ``python -m camshaft.diagnostics.compat.rules.pack``.

A YAML record holds, beside the fields of `records.Rule`, what only maintenance needs: `fingerprint` (how the code is
found in a release), and `examples` (one configuration that meets the rule, one that does not).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from ..releases.storage import rows
from .conditions import ConditionError, compile_condition
from .locate import Fingerprint
from .records import RULES_FOLDER, Rule, TermRange

COMMAND = "python -m camshaft.diagnostics.compat.rules.pack"


_WORDS = ("terms", "defaults", "default_evidence")


class Example(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A configuration at one release: flags given (snake_case), environment, facts of model and device."""

    version: str
    flags: dict[str, Any] = {}
    env: dict[str, str] = {}
    model: dict[str, Any] = {}
    device: str | None = None


class Examples(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`fails` meets the rule with certainty; `passes` is a near neighbour that does not."""

    fails: Example
    passes: Example


class Source(msgspec.Struct, frozen=True):
    """A rule with what only its maintenance needs."""

    rule: Rule
    fingerprint: list[Fingerprint]
    examples: Examples


def _read(path: Path) -> Any:
    from ....core.places import load_yaml

    return load_yaml(path.read_text(encoding="utf-8"))


@cache
def sources(engine: str) -> list[Source]:
    """Every rule of an engine from its YAML, in file order; raises `ConditionError` on a malformed record."""
    folder = RULES_FOLDER / engine
    records = [
        (path, row)
        for path in sorted(folder.glob("*.yaml"))
        if path.stem not in _WORDS
        for row in _read(path)
    ]
    return [_source(path, row) for path, row in records]


def _source(path: Path, row: dict[str, Any]) -> Source:
    try:
        kept = dict(row)
        fingerprint = msgspec.convert(kept.pop("fingerprint"), list[Fingerprint])
        examples = msgspec.convert(kept.pop("examples"), Examples)
        kept["when"] = compile_condition(kept["when"])
        kept["culprits"] = {flag: compile_condition(text) for flag, text in kept.get("culprits", {}).items()}
        kept["versions"] = [_range(entry) for entry in kept["versions"]]
        return Source(msgspec.convert(kept, Rule), fingerprint, examples)
    except (KeyError, msgspec.ValidationError, ConditionError) as error:
        raise ConditionError(f"{path.name}, {row.get('code', '?')}: {error}") from error


def _range(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "when": compile_condition(entry["when"])} if "when" in entry else entry


def words(engine: str, name: str) -> dict[str, list[TermRange]]:
    """The `terms` or `defaults` of an engine: a plain text holds for all releases, a list gives ranges."""
    path = RULES_FOLDER / engine / f"{name}.yaml"
    raw: dict[str, Any] = _read(path) if path.is_file() else {}
    return {
        word: [_term(part) for part in (value if isinstance(value, list) else [value])]
        for word, value in raw.items()
    }


def default_fingerprints(engine: str) -> dict[str, list[Fingerprint]]:
    """How the code behind each computed default is found, by flag."""
    path = RULES_FOLDER / engine / "default_evidence.yaml"
    return msgspec.convert(_read(path) if path.is_file() else {}, dict[str, list[Fingerprint]])


def _term(part: Any) -> TermRange:
    entry = part if isinstance(part, dict) else {"value": part}
    return msgspec.convert({**entry, "value": compile_condition(str(entry["value"]))}, TermRange)


def pack(engine: str) -> bytes:
    """The packed rule set, one record a line."""
    meanings = {name: dict(sorted(words(engine, name).items())) for name in ("terms", "defaults")}
    rules = [source.rule for source in sources(engine)]
    return rows({"generated_by": COMMAND, **meanings, "rules": rules}, 2).encode() + b"\n"


def engines() -> list[str]:
    """Engines that have rules."""
    return sorted(path.name for path in RULES_FOLDER.iterdir() if any(path.glob("*.yaml")))


def main() -> None:
    for engine in engines():
        (RULES_FOLDER / f"{engine}.json").write_bytes(pack(engine))


if __name__ == "__main__":
    main()
