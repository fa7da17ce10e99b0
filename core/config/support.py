"""What this engine knows by name and cannot serve yet: refused, never ignored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..places import Place
from .schema import EXECUTOR_BACKENDS, KV_CACHE_DTYPES, LOAD_FORMATS, ServeConfig


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A knob, when it asks for too much, and what to do instead."""

    name: str
    asks: Callable[[Any], bool]
    why: str


def _above_one(value: Any) -> bool:
    return value > 1


_PREDICTED = ", or keep it to predict: engine simulate and engine diagnose take it"

UNSUPPORTED: tuple[Unsupported, ...] = (
    Unsupported("tensor_parallel_size", _above_one, f"one device is served; set it to 1{_PREDICTED}"),
    Unsupported("pipeline_parallel_size", _above_one, f"one device is served; set it to 1{_PREDICTED}"),
    Unsupported("data_parallel_size", _above_one, "one engine is served; start one server a device"),
    Unsupported("enable_expert_parallel", bool, "one device is served; remove it"),
    Unsupported(
        "distributed_executor_backend",
        lambda value: value is not None and value not in EXECUTOR_BACKENDS,
        f"one of {', '.join(EXECUTOR_BACKENDS)} is needed",
    ),
    Unsupported(
        "load_format", lambda value: value not in LOAD_FORMATS, f"one of {', '.join(LOAD_FORMATS)} is needed"
    ),
    Unsupported("load_format", lambda value: value == "dummy", "weights are read, never drawn"),
    Unsupported(
        "revision", bool, "the hub's default revision is served; fetch another one and name its folder"
    ),
    Unsupported("download_dir", bool, "hub models lie in the hub's own cache; set HF_HOME to move it"),
    Unsupported("hf_overrides", bool, "change the config.json in the model's folder"),
    Unsupported("hf_config_path", bool, "the config.json beside the weights is read"),
    Unsupported("speculative_config", bool, "speculative decoding is not served; remove it"),
    Unsupported("enable_lora", bool, "adapters are not served; merge them into the weights"),
    Unsupported("trust_remote_code", bool, "code that comes with a model is never run; remove it"),
    Unsupported(
        "kv_cache_dtype",
        lambda value: value not in KV_CACHE_DTYPES,
        f"one of {', '.join(KV_CACHE_DTYPES)} is needed",
    ),
)


def unsupported(config: ServeConfig, places: Mapping[str, Place]) -> list[tuple[str, str]]:
    """(knob, why) for each knob this engine knows and cannot serve, and for a missing model.

    `places`: where the knobs that were written stand.
    """
    found = [
        (
            u.name,
            f"{_place(places, u.name)}{u.name}={getattr(config, u.name)}: known, not supported by this engine: {u.why}",
        )
        for u in UNSUPPORTED
        if u.asks(getattr(config, u.name))
    ]
    if not config.model:
        found.append(("model", "model: missing; a folder, hub id, GGUF file or demo model name is needed"))
    return found


def _place(places: Mapping[str, Place], name: str) -> str:
    return f"{places[name]}: " if name in places else ""
