"""Time of matrix products: a roofline with the efficiency that measurement found for that shape."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...core.quantization import Quantization, dtype_bytes
from ...core.shape import Gemm
from .hardware import HardwareSheet


class GemmTimer:
    """Times products of one device in one weight format.

    Weight-only formats read fewer bytes and multiply in the 16-bit type; a type the device cannot
    multiply in is treated the same way.
    """

    def __init__(self, hardware: HardwareSheet, quantization: Quantization, dtype: str) -> None:
        wanted = quantization.activations if quantization.bits else dtype
        peaks = hardware.compute_tflops
        self.compute = wanted if wanted in peaks else dtype if dtype in peaks else "bfloat16"
        curves = hardware.gemm
        self.curve = curves.get(self.compute) or curves.get(
            _SIMILAR.get(self.compute, ""), curves["bfloat16"]
        )
        self._weight_bytes = quantization.bits / 8 if quantization.bits else dtype_bytes(dtype)
        self._input_bytes = 1.0 if self.compute in ("fp8", "int8") else dtype_bytes(dtype)
        self._bandwidth = hardware.memory_bandwidth_gb_s * 1e3  # bytes per microsecond
        self._peak = peaks[self.compute] * 1e6  # FLOPs per microsecond
        narrower = quantization.bits and quantization.bits / 8 < self._input_bytes
        self._dense_peak = self._peak * (hardware.unpacked_share if narrower else 1.0)
        reached = (
            GROUPED_COMPUTE_SHARE if hardware.has_own_products else GROUPED_COMPUTE_SHARE / OLD_PRODUCTS_SHARE
        )
        self._grouped_peak = self._peak * reached
        self._grid = np.log(np.asarray(self.curve.efficiency_percent) / 100)
        self._axes = [np.log2(axis) for axis in (self.curve.tokens, self.curve.n, self.curve.k)]

    def efficiency(self, tokens: float, n: float, k: float) -> float:
        """Share of the roofline, interpolated in the logarithm of all three sides."""
        return float(np.exp(_interpolate(self._grid, self._axes, (tokens, n, k))))

    def time_us(self, gemm: Gemm, tokens: float) -> float:
        """Microseconds of ONE such product over `tokens` rows."""
        if tokens <= 0:
            return 0.0
        moved = gemm.n * gemm.k * self._weight_bytes + tokens * (gemm.k * self._input_bytes + gemm.n * 2)
        roof = max(moved / self._bandwidth, 2 * tokens * gemm.n * gemm.k / self._dense_peak)
        return self.curve.floor_us + roof / self.efficiency(tokens, gemm.n, gemm.k)

    def grouped_time_us(
        self, gemm: Gemm, tokens: float, experts: int, experts_per_token: int, devices: int = 1
    ) -> float:
        """Microseconds of one expert product over all experts that `tokens` rows visit, in one kernel.

        devices: among how many whole experts are spread; this is the time of the busiest.
        """
        if tokens <= 0:
            return 0.0
        visited = visited_experts(tokens, experts, experts_per_token) / devices
        rows = tokens * experts_per_token / devices * (BUSIEST_DEVICE if devices > 1 else 1.0)
        moved = visited * gemm.n * gemm.k * self._weight_bytes
        moved += rows * (gemm.k * self._input_bytes + gemm.n * 2)
        share = self.efficiency(
            max(1.0, rows / visited), min(gemm.n * visited, float(self.curve.n[-1])), gemm.k
        )
        read_us = moved / self._bandwidth / (share * GROUPED_READ_SHARE)
        compute_us = 2 * rows * gemm.n * gemm.k / self._grouped_peak
        return self.curve.floor_us + max(read_us, compute_us)


def visited_experts(tokens: float, experts: int, experts_per_token: int) -> float:
    """How many of a layer's experts `tokens` tokens choose between them.

    Drawn evenly and independently, E (1 - (1 - k/E)^tokens). Tokens of a batch agree more than that and some
    experts are chosen more often, so that the number grows as if there were fewer tokens.
    """
    return experts * (1 - (1 - experts_per_token / experts) ** tokens**ROUTING_SPREAD)


# A grouped expert product against a dense one: rows are gathered and experts are uneven. The compute share is
# of the peak. These and the spread are common to all mixtures of experts in the published H100 points.
GROUPED_READ_SHARE = 0.85
GROUPED_COMPUTE_SHARE = 0.2
ROUTING_SPREAD = 0.86  # power of the number of tokens

# Of Hopper's peak, what products issued as on earlier architectures reach, as grouped kernels do (Luo et al. 2024,
# microbenchmarks of Hopper: mma against wgmma). Where there is no other way to issue them, their share is higher by it.
OLD_PRODUCTS_SHARE = 0.63
# Rows of the device whose experts are chosen most, over the mean, where devices hold whole experts: published
# throughput with expert parallelism is 3 to 7 % below that without it (Qwen3-235B on A100 and H100, GLM-4.6 on A100).
BUSIEST_DEVICE = 1.5

_SIMILAR = {"float16": "bfloat16", "int8": "fp8"}


def _interpolate(grid: np.ndarray, axes: Sequence[np.ndarray], point: Sequence[float]) -> float:
    """Multilinear interpolation of `grid` at log2 of `point`, clamped to the edges."""
    value = grid
    for axis, coordinate in zip(axes, point, strict=True):
        if len(axis) == 1:
            value = value[0]
            continue
        at = min(max(float(np.log2(coordinate)), axis[0]), axis[-1])
        high = min(max(int(np.searchsorted(axis, at)), 1), len(axis) - 1)
        part = (at - axis[high - 1]) / (axis[high] - axis[high - 1])
        value = value[high - 1] * (1 - part) + value[high] * part
    return float(value)
