"""What a configuration has of a device's memory, and which of two ways the engine goes where it has both."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ...core.arithmetic.memory import (
    ESTIMATE_ERROR,
    GIB,
    DeviceMemory,
    Measured,
    MemoryBudget,
    MemorySettings,
    memory_budget,
)
from ...core.arithmetic.shape import ModelShape
from ...core.errors import ConfigError
from ..cost.hardware import HardwareSheet
from .engines import EngineKind

LEAN_COPIES = 4.0  # of the logits, by a sampler that does not sort them


@dataclass(frozen=True, slots=True)
class Room:
    """The budget, and what it rests on."""

    budget: MemoryBudget
    sorts_logits: bool
    flashinfer: bool
    offloaded_bytes: int


def room_of(
    shape: ModelShape,
    hardware: HardwareSheet,
    settings: MemorySettings,
    engine: EngineKind,
    offload_gib: Any,
    flashinfer: bool,
    assumptions: list[str],
) -> Room:
    """The memory of one device. What is assumed beyond the settings is added to `assumptions`.

    Raises ConfigError for an offload that is no number.
    """
    memory = DeviceMemory(total_bytes=hardware.memory_bytes)
    rule = engine.memory_rule(hardware)
    lean = replace(rule, sampler_copies=LEAN_COPIES) if engine.may_use_flashinfer else rule
    budget = memory_budget(shape, memory, settings, lean if flashinfer else rule)
    offloaded = _offloaded(offload_gib, budget, hardware, assumptions)
    measured = Measured(weights=budget.weights_bytes - offloaded) if offloaded else None
    plain = memory_budget(shape, memory, settings, rule, measured)
    other = memory_budget(shape, memory, settings, lean, measured)
    if not plain.fits and other.fits and engine.may_use_flashinfer:
        flashinfer = True
        more = (plain.activation_bytes - other.activation_bytes) / GIB
        assumptions.append(
            f"FlashInfer's sampler is installed, as in vLLM's images; without it {engine.describe()} sorts the logits, which "
            f"takes {more:.1f} GiB more, and this does not start"
        )
    flashinfer = flashinfer and engine.may_use_flashinfer
    return Room(other if flashinfer else plain, engine.sorts_logits and not flashinfer, flashinfer, offloaded)


def within_error(budget: MemoryBudget) -> str:
    """That what is missing is less than the arithmetic may be off by; empty where it is more, or nothing is missing."""
    error = ESTIMATE_ERROR * budget.usable_bytes
    if budget.kv_given or not 0 < budget.missing_bytes <= error:
        return ""
    return (
        f"that is within the error of this arithmetic, {ESTIMATE_ERROR:.0%} of the memory or {error / GIB:.1f} GiB: it may start as "
        "it is, and its log then says how much the cache holds"
    )


def _offloaded(told: Any, budget: MemoryBudget, hardware: HardwareSheet, assumptions: list[str]) -> int:
    """Bytes of each device's weights that vLLM keeps in the host's memory, at most all of them."""
    try:
        asked = int(float(told or 0) * GIB)
    except (TypeError, ValueError):
        raise ConfigError(f"(given): cpu_offload_gb: a number of GiB is needed, not {told!r}") from None
    offloaded = min(max(0, asked), budget.weights_bytes)
    if offloaded:
        assumptions.append(
            f"--cpu-offload-gb: {offloaded / GIB:.1f} GiB of each device's weights lie in the host's memory and every step "
            f"reads them over its link at {hardware.host_link_gb_s:g} GB/s; nobody measured such a step"
        )
    return offloaded
