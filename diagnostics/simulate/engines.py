"""What an engine fills in where a configuration is silent, and how it schedules: this one, and vLLM by release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...core.errors import ConfigError
from ...core.memory import CAMSHAFT_CPU, CAMSHAFT_CUDA, MemoryRule, vllm_rule
from ..cost.hardware import Hardware

EngineName = Literal["camshaft", "vllm"]
NEWEST_VLLM = "0.33.0"


@dataclass(frozen=True, slots=True)
class EngineKind:
    """An engine at a release."""

    name: EngineName = "camshaft"
    version: str | None = None

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor number; vLLM's newest where none was told. Raises ConfigError."""
        text = self.version or NEWEST_VLLM
        try:
            major, minor = (int(part) for part in text.removeprefix("v").split(".")[:2])
        except ValueError:
            raise ConfigError(f"version {text!r} is not of the form 0.18.0") from None
        return major, minor

    def memory_rule(self, hardware: Hardware) -> MemoryRule:
        if self.name == "vllm":
            return vllm_rule(self.version or NEWEST_VLLM)
        return CAMSHAFT_CPU if hardware.device_type == "cpu" else CAMSHAFT_CUDA

    def describe(self) -> str:
        return self.name if self.version is None else f"{self.name} {self.version}"


def vllm_defaults(engine: EngineKind, hardware: Hardware, values: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM's API-server values for the knobs that scheduling and memory need, where `values` has none.

    Source: arg_utils.py of 0.10.0, 0.18.0 and 0.33.0. `values` holds what the configuration gives, and
    `max_model_len` always.
    """
    release, memory = engine.release, hardware.memory_gib
    v1 = release >= (0, 8)
    large = memory >= 70 and "a100" not in hardware.name.lower()
    huge = memory >= 160 and release >= (0, 28)
    batched = 16384 if huge else 8192 if large and v1 else 2048 if v1 else 512
    chunked = bool(values.get("enable_chunked_prefill", v1 or values["max_model_len"] > 32768))
    if not chunked:
        batched = max(batched, values["max_model_len"], 2048)
    seqs = 1024 if large and release >= (0, 10) else 256
    defaults = {
        "max_num_batched_tokens": batched,
        "max_num_seqs": min(seqs, values.get("max_num_batched_tokens", batched)),
        "enable_chunked_prefill": chunked,
        "enable_prefix_caching": v1,
        "gpu_memory_utilization": vllm_rule(engine.version or NEWEST_VLLM).default_utilization,
        "block_size": 16,
        "long_prefill_token_threshold": 0,
        "scheduler_reserve_full_isl": release >= (0, 19),
        "async_scheduling": release >= (0, 14),
    }
    return {name: value for name, value in defaults.items() if values.get(name) is None}


def captured_batches(
    max_num_seqs: int, sizes: Sequence[int] | None = None, limit: int | None = None
) -> list[int]:
    """Batches that vLLM captures as graphs, ascending; [0] for none.

    1, 2, 4, every 8 up to 256 and every 16 beyond, up to the smaller of 512 and twice `max_num_seqs`, or up to
    `limit` (max_cudagraph_capture_size); `sizes` replaces them (config/vllm.py of 0.12.0 and 0.33.0).
    """
    if sizes:
        return sorted(int(size) for size in sizes)
    top = min(2 * max_num_seqs, 512) if limit is None else limit
    grid = [1, 2, 4, *range(8, 257, 8), *range(272, top + 1, 16)]
    return [size for size in grid if size <= top] or [0]


def watermark(engine: EngineKind) -> float | None:
    """Share of blocks kept free when a request starts; None is the scheduler's own default."""
    if engine.name == "camshaft":
        return None
    return 0.01 if engine.release < (0, 8) else 0.0
