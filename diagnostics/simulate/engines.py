"""What an engine fills in where a configuration is silent, and how it schedules: this one, and vLLM by release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...core.arithmetic.graph_sizes import capture_sizes, vllm_capture_sizes
from ...core.arithmetic.memory import MemoryRule
from ...core.arithmetic.memory_rules import sorts_logits, vllm_rule
from ...core.config import rule_of
from ...core.releases import vllm_release
from ..cost.hardware import HardwareSheet

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
        major, minor = vllm_release(self.version or NEWEST_VLLM)[:2]
        return major, minor

    def captures(
        self, max_num_seqs: int, batched: int | None, sizes: Sequence[int] | None, limit: int | None
    ) -> tuple[int, ...]:
        """Batch sizes that it captures as graphs, ascending, where graphs are on."""
        if self.name == "vllm":
            version = self.version or NEWEST_VLLM
            return vllm_capture_sizes(version, max_num_seqs, batched, sizes=sizes, limit=limit)
        return capture_sizes(max_num_seqs, sizes=sizes, limit=limit)

    def memory_rule(self, hardware: HardwareSheet | None) -> MemoryRule:
        """How it counts memory; on a GPU where the device is not known."""
        if self.name == "vllm":
            return vllm_rule(self.version or NEWEST_VLLM)
        return rule_of("cpu" if hardware is not None and hardware.device_type == "cpu" else "cuda")

    @property
    def sorts_logits(self) -> bool:
        """Whether drawing with top-k or top-p sorts the logits of each row."""
        return self.name != "vllm" or sorts_logits(self.version or NEWEST_VLLM)

    @property
    def may_use_flashinfer(self) -> bool:
        """Whether the release draws with FlashInfer's sampler where that is installed (vLLM 0.9.0 to 0.11.0)."""
        return self.name == "vllm" and (0, 9) <= vllm_release(self.version or NEWEST_VLLM) < (0, 11, 1)

    def describe(self) -> str:
        return self.name if self.version is None else f"{self.name} {self.version}"


def vllm_defaults(engine: EngineKind, hardware: HardwareSheet, values: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM's API-server values for the knobs that scheduling and memory need, where `values` has none.

    Source: arg_utils.py of 0.8.0 to 0.33.0. `values` holds what the configuration gives, and `max_model_len` always.
    """
    release = engine.release
    v1 = release >= (0, 8)
    chunked = bool(values.get("enable_chunked_prefill", v1 or values["max_model_len"] > 32768))
    batched, seqs = _batch_defaults(engine, hardware)
    if not chunked:
        batched = max(batched, values["max_model_len"], 2048)
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


def _batch_defaults(engine: EngineKind, hardware: HardwareSheet) -> tuple[int, int]:
    """Tokens and sequences of a step. V1 began with 1,024 sequences on every device; from 0.8.4 on the device decides."""
    version, name, memory = (
        vllm_release(engine.version or NEWEST_VLLM),
        hardware.name.lower(),
        hardware.memory_gib,
    )
    if version < (0, 8):
        return 512, 256
    if version < (0, 8, 5):
        large = "h100" in name or "h200" in name
    else:
        large = memory >= 70 and (version < (0, 9) or "a100" not in name)
        large = large and (version < (0, 33) or hardware.compute_capability != "12.1")
    if version >= (0, 28) and memory >= 160:
        return 16384, 1024
    return 8192 if large else 2048, 1024 if large or version < (0, 8, 4) else 256


def watermark(engine: EngineKind) -> float | None:
    """Share of blocks kept free when a request starts; None is the scheduler's own default."""
    if engine.name == "camshaft":
        return None
    return 0.01 if engine.release < (0, 8) else 0.0
