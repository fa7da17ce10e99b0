"""What this engine knows by name and cannot serve yet: refused, never ignored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .schema import ServeConfig

if TYPE_CHECKING:
    from .sources import Entry


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A knob, when it asks for too much, and what to do instead."""

    name: str
    asks: Callable[[Any], bool]
    why: str


def _above_one(value: Any) -> bool:
    return value > 1


UNSUPPORTED: tuple[Unsupported, ...] = (
    Unsupported("tensor_parallel_size", _above_one, "one device is served; set it to 1"),
    Unsupported("pipeline_parallel_size", _above_one, "one device is served; set it to 1"),
    Unsupported("data_parallel_size", _above_one, "one engine is served; start one server a device"),
    Unsupported("enable_expert_parallel", bool, "one device is served; remove it"),
    Unsupported(
        "distributed_executor_backend",
        lambda v: v == "ray",
        "workers are not spread over machines; remove it",
    ),
    Unsupported("speculative_config", bool, "speculative decoding is not served; remove it"),
    Unsupported("enable_lora", bool, "adapters are not served; merge them into the weights"),
    Unsupported("trust_remote_code", bool, "code that comes with a model is never run; remove it"),
    Unsupported(
        "kv_cache_dtype", lambda v: v == "fp8_e5m2", "the cache is auto, fp8 (e4m3) or a 16- or 32-bit type"
    ),
)


def refuse_unsupported(config: ServeConfig, entries: Mapping[str, Entry]) -> None:
    """Raises ConfigError naming each knob this engine knows and cannot serve, and a missing model."""
    lines = [
        f"{_place(entries, u.name)}{u.name}={getattr(config, u.name)}: known, not supported by this engine: {u.why}"
        for u in UNSUPPORTED
        if u.asks(getattr(config, u.name))
    ]
    if not config.model:
        lines.append("model: missing; a folder, hub id, GGUF file or demo model name is needed")
    if lines:
        raise ConfigError("\n".join(lines))


def _place(entries: Mapping[str, Entry], name: str) -> str:
    return f"{entries[name].place}: " if name in entries else ""
