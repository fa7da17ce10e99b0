"""Measures the machine it stands on, through an opened executor, and writes its hardware sheet.

Steps are timed whole, so the curve of products holds everything a step does beside attention and head, for the
model that was loaded; it carries over to other models as far as their steps are made of products too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from ...core.arithmetic.memory import GIB
from ...core.arithmetic.shape import ModelShape
from .hardware import HardwareSheet
from .machine import Machine
from .step import CostSettings, StepCost
from .trial import ServedStep, jitter, ratios

NARROWEST_BAND = 3.0  # percent; a small load served once cannot show less


def measure_machine(mebibytes: int = 256, side: int = 1024) -> Machine:
    """Best of five large copies and of five float32 products, by numpy."""
    source = np.ones(mebibytes * 2**20 // 8)
    target = np.empty_like(source)
    copies = [_seconds(lambda: np.copyto(target, source)) for _ in range(5)]
    left, right = (np.ones((side, side), dtype=np.float32) for _ in range(2))
    products = [_seconds(lambda: left @ right) for _ in range(5)]
    return Machine(2 * source.nbytes / min(copies), 2 * side**3 / min(products))


def _seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def machine_sheet(
    name: str,
    memory_bytes: int,
    machine: Machine,
    measured: dict[str, Any],
    host_us: tuple[float, float],
    dtype: str,
) -> dict[str, Any]:
    """The whole sheet. measured: its curves; host_us: microseconds of a step, and of each sequence in it."""
    return {
        "name": name,
        "aliases": [],
        "source": "measured on this machine by `engine calibrate`",
        "device_type": "cpu",
        "memory_gib": round(memory_bytes / GIB, 2),
        "memory_bandwidth_gb_s": round(machine.bandwidth / 1e9, 2),
        "compute_tflops": {dtype: round(machine.flops / 1e12, 4)},
        "l2_mib": 0,
        "compute_capability": "cpu",
        "host": {
            "step_us": round(host_us[0], 1),
            "unhidden_us": round(host_us[0], 1),
            "sequence_us": round(max(0.0, host_us[1]), 2),
            "layer_launch_us": 0,
            "eager_layer_launch_us": 0,
            "request_latency_us": 2000,
            "frontend_request_us": 2000,
            "frontend_token_us": 50,
            "source": "between steps of a small load served here; requests typical of this engine's HTTP process",
        },
        "error_band": {
            "tpot_percent": 10,
            "ttft_percent": 15,
            "moe_tpot_percent": 30,
            "moe_ttft_percent": 40,
            "source": "typical of a machine just calibrated; `engine simulate --check-against here` measures it",
        },
        "elementwise": {
            "floor_us": 0,
            "bandwidth_share": 1000,
            "sort_us_per_mega_logit": 0,
            "source": "contained in the products' curve",
        },
        **measured,
    }


def with_trial(
    sheet: dict[str, Any], shape: ModelShape, dtype: str, steps: Sequence[ServedStep]
) -> dict[str, Any]:
    """The sheet with what served steps show, in their order: its error, and their scatter."""
    cost = StepCost(shape, msgspec.convert(sheet, HardwareSheet), cpu_settings(dtype))
    decodes, chunks = ratios(steps, cost)
    band = {
        **sheet["error_band"],
        "tpot_percent": _band(decodes),
        "ttft_percent": _band(chunks),
        "source": f"mean error over {len(steps)} steps of a small load served before and after the calibration",
    }
    scatter = jitter(decodes, chunks)
    return {**sheet, "error_band": band, **({"jitter": scatter} if scatter else {})}


def _band(ratios: np.ndarray) -> float:
    """Mean absolute error of predicted steps, in percent."""
    error = float(np.mean(np.abs(1 / ratios - 1))) if len(ratios) else 0.0
    return max(NARROWEST_BAND, round(100 * error, 1))


def cpu_settings(dtype: str) -> CostSettings:
    """How steps are timed on a machine that was calibrated."""
    return CostSettings(dtype=dtype, max_graph_size=0, sorted_sampling=False)
