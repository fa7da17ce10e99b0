"""How each release's parser reads words and settings files, decoded from `dialects.yaml`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from .versions import Version, parse


class Dialect(msgspec.Struct, frozen=True):
    """The features of one release's parser; `dialects.yaml` explains the values."""

    yaml_false: str = "negated"
    yaml_list: str = "words"
    yaml_mapping: str = "json"
    dotted: str = "any"
    optimization: str = "flag"
    serve_model: str = "moved"
    json_pairs: str = "no"
    compilation: str = "json"
    unknown_keys: str = "refused"
    unknown_compilation_keys: str = "refused"
    unknown_speculative_keys: str = "refused"


@cache
def _features(engine: str) -> dict[str, list[tuple[Version, str, str]]]:
    packed = msgspec.json.decode(Path(__file__).with_name("dialects.json").read_bytes())
    table = packed.get(engine) or {}
    return {
        name: [(parse(row["since"]), row["value"], row["evidence"]) for row in rows]
        for name, rows in table.items()
    }


def dialect(engine: str, version: Version) -> Dialect:
    """The parser features of a release."""
    chosen: dict[str, str] = {}
    for name, rows in _features(engine).items():
        for since, value, _ in rows:
            if since <= version:
                chosen[name] = value
    return Dialect(**{name: chosen[name] for name in Dialect.__struct_fields__ if name in chosen})


def evidence(engine: str, version: Version, feature: str) -> str | None:
    """Release and file behind one feature's value at a release."""
    found = None
    for since, _, text in _features(engine).get(feature, []):
        if since <= version:
            found = f"{version} {text}"
    return found
