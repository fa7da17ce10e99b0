"""Time of matrix products: a roofline with the efficiency that measurement found for that shape."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, lgamma
from statistics import NormalDist

import numpy as np

from ...core.arithmetic.products import Gemm
from ...core.arithmetic.quantization import Quantization, dtype_bytes
from ...core.errors import ConfigError
from .hardware import HardwareSheet


class GemmTimer:
    """Times products of one device in one weight format.

    Weight-only formats read fewer bytes and multiply in the 16-bit type; a type the device cannot
    multiply in is treated the same way. Raises ConfigError for a type of which the sheet says nothing.
    """

    def __init__(self, hardware: HardwareSheet, quantization: Quantization, dtype: str) -> None:
        wanted = quantization.activations if quantization.bits else dtype
        peaks = hardware.compute_tflops
        self.wanted = wanted
        self.compute = wanted if wanted in peaks else dtype if dtype in peaks else "bfloat16"
        curves = hardware.gemm
        alike = (self.compute, _SIMILAR.get(self.compute, ""), "bfloat16")
        curve = next((curves[name] for name in alike if name in curves), None)
        if curve is None or self.compute not in peaks:
            raise ConfigError(
                f"{hardware.name}: its sheet times products in {', '.join(peaks)} and none in {self.compute}; "
                f"give another sheet, or dtype {next(iter(peaks))}"
            )
        self.curve = curve
        self._weight_bytes = quantization.bits / 8 if quantization.bits else dtype_bytes(dtype)
        self._input_bytes = 1.0 if self.compute in ("fp8", "int8") else dtype_bytes(dtype)
        self._bandwidth = hardware.memory_bandwidth_gb_s * 1e3  # bytes per microsecond
        self._peak = peaks[self.compute] * 1e6  # FLOPs per microsecond
        unpacked = bool(quantization.bits) and quantization.bits / 8 < self._input_bytes
        own = hardware.has_own_products
        unpacking = hardware.unpacked_share * (OLD_PRODUCTS_SHARE if own else 1.0) if unpacked else 1.0
        self._dense_peak = self._peak * hardware.products_share * unpacking
        kind = "unpacked" if unpacked else "8 bit" if self._input_bytes == 1.0 else "16 bit"
        self._grouped_peak = self._peak * GROUPED_COMPUTE_SHARE[kind][own]
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
        visited = visited_experts(tokens, experts, experts_per_token)
        rows = tokens * experts_per_token / devices
        if devices > 1:
            visited = _busiest(visited, experts, devices)
            rows *= BUSIEST_DEVICE
        moved = visited * gemm.n * gemm.k * self._weight_bytes
        moved += rows * (gemm.k * self._input_bytes + gemm.n * 2)
        read_us = moved / self._bandwidth / GROUPED_READ_SHARE
        compute_us = 2 * rows * gemm.n * gemm.k / self._grouped_peak
        both = read_us**OVERLAP_POWER + compute_us**OVERLAP_POWER
        return self.curve.floor_us + both ** (1 / OVERLAP_POWER)


def visited_experts(tokens: float, experts: int, experts_per_token: int) -> float:
    """How many of a layer's experts `tokens` tokens choose between them, some experts being liked better than others.

    The share of tokens that choose an expert is beta distributed with mean k/E and first parameter EVENNESS, so that
    none of n choose it with the beta-binomial chance of none.
    """
    liked, passed = EVENNESS, EVENNESS * (experts / experts_per_token - 1)
    if passed <= 0:
        return float(experts)
    none = lgamma(passed + tokens) - lgamma(passed) + lgamma(liked + passed) - lgamma(liked + passed + tokens)
    return experts * (1 - exp(none))


def _busiest(visited: float, experts: int, devices: int) -> float:
    """Visited experts of the device that has most of them: the expected largest of normal draws (Blom 1958)."""
    share = visited / devices
    scatter = (share * (1 - 1 / devices) * (1 - visited / experts)) ** 0.5
    most = NormalDist().inv_cdf((devices - 0.375) / (devices + 0.25))
    return min(experts / devices, share + most * scatter)


# How evenly real tokens choose experts: of MiniMax-M2.5 and gpt-oss-120b at 4 to 64 sequences on H100 (the published
# points), whose steps with 32 and 64 even choice makes 9 to 15 % too long, and both alike at the same k/E.
EVENNESS = 1.5

# A grouped expert product reads at this share of the bandwidth, multiplies at this share of the peak (before Hopper, from
# it on), and hides the shorter of the two only in part: (read^p + compute^p)^(1/p). From times of whole expert layers in
# vLLM's pull requests 24700 and 39902 (H100), 44818 (H200), 40542 and 55511 (A100), 53710 and 53819 (L40S), between
# those of tuned and of default tiles. Weights unpacked in the kernel: dense Marlin on A100 (2497); points of gpt-oss.
GROUPED_READ_SHARE = 0.87
GROUPED_COMPUTE_SHARE = {"16 bit": (0.54, 0.39), "8 bit": (0.4, 0.18), "unpacked": (0.33, 0.18)}
OVERLAP_POWER = 1.7

# Of Hopper's peak, what products issued as on earlier architectures reach, as those that unpack weights are (Luo et al.
# 2024, microbenchmarks of Hopper: mma against wgmma).
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
