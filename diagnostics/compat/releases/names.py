"""Which release knows which parser, attention backend, loader, quantization and connector, decoded from `names.json`.

The names are read from the registries and enumerations in the releases' sources.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

# Options whose values name parts of the engine.
NAMED = frozenset(
    {
        "--attention-backend",
        "--kv-cache-dtype",
        "--kv-transfer-config",
        "--load-format",
        "--quantization",
        "--reasoning-parser",
        "--tool-call-parser",
    }
)
Lives = list[tuple[str, str | None]]


@cache
def names(engine: str) -> dict[str, dict[str, Lives]]:
    """Option -> name -> stretches of releases (first, first without) that know it."""
    if engine != "vllm":
        return {}
    data = Path(__file__).with_name("names.json").read_bytes()
    return msgspec.json.decode(data, type=dict[str, dict[str, Lives]])
