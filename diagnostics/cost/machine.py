"""From measured steps to the curves of a machine's sheet.

    step = products by tokens + head by tokens drawn + attention of decodes + attention of chunks

Products and head are free at every size that was measured; attention is linear in the tokens that decodes
attend to and in the pairs of chunks. All are fitted together to the relative error of the median steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.arithmetic.products import Gemm, dense_gemms, head_gemm
from ...core.arithmetic.quantization import dtype_bytes
from ...core.arithmetic.shape import ModelShape
from ...core.arithmetic.sizes import kv_bytes_per_token
from ...core.errors import CapacityError, ConfigError
from .fit import relative_nnls
from .probe import Point


@dataclass(frozen=True, slots=True)
class Machine:
    """Plain figures of the machine: bytes/s of a copy (read and write counted) and FLOP/s of a product."""

    bandwidth: float
    flops: float


@dataclass(frozen=True, slots=True)
class Fitted:
    """What the steps are made of, in milliseconds."""

    products: dict[int, float]  # by tokens of the step
    head: dict[int, float]  # by tokens drawn
    context_token: float  # for each token that a decode attends to
    pair: float  # for each pair of a chunk's token with one it attends to
    mean_error: float  # of the median steps, as a share

    def step_ms(self, point: Point) -> float:
        """The time of a step; sizes between measured ones are interpolated."""
        return (
            _between(self.products, point.total_tokens)
            + (_between(self.head, point.samples) if point.samples else 0.0)
            + self.context_token * point.context_tokens
            + self.pair * point.pairs
        )


def fit_steps(medians: Mapping[Point, float]) -> Fitted:
    """The parts of the steps. Raises CapacityError if there are too few of them."""
    tokens = sorted({point.total_tokens for point in medians if not (point.decodes and point.chunks)})
    # A size of head is free only where the same tokens were also computed without it.
    silent = {point.total_tokens for point in medians if not point.samples}
    drawn = sorted({point.samples for point in medians if point.samples and point.samples in silent})
    if len(tokens) < 2 or not drawn:
        raise CapacityError("too few kinds of steps were measured to tell what they are made of")
    rows, times = [], []
    for point, ms in medians.items():
        row = [*_hats(tokens, point.total_tokens), *_hats(drawn, point.samples)]
        rows.append([*row, point.context_tokens, point.pairs])
        times.append(ms)
    found, error = relative_nnls(np.array(rows, dtype=float), np.array(times))
    count = len(tokens)
    return Fitted(
        dict(zip(tokens, found[:count], strict=True)),
        dict(zip(drawn, found[count:-2], strict=True)),
        found[-2],
        found[-1],
        error,
    )


def _hats(nodes: Sequence[int], at: int) -> list[float]:
    """Weights of the nodes when a value at `at` is interpolated; beyond the ends in proportion to `at`."""
    weights = [0.0] * len(nodes)
    if at <= 0:
        return weights
    if at >= nodes[-1]:
        weights[-1] = at / nodes[-1]
    elif at <= nodes[0]:
        weights[0] = 1.0
    else:
        high = int(np.searchsorted(nodes, at, side="right"))
        part = (at - nodes[high - 1]) / (nodes[high] - nodes[high - 1])
        weights[high - 1], weights[high] = 1 - part, part
    return weights


def _between(values: Mapping[int, float], at: int) -> float:
    nodes = sorted(values)
    return sum(weight * values[node] for node, weight in zip(nodes, _hats(nodes, at), strict=True) if weight)


def curves(fitted: Fitted, machine: Machine, shape: ModelShape, dtype: str) -> dict[str, Any]:
    """The sheet's curves for one model and type. Raises ConfigError for a mixture of experts."""
    if shape.num_experts:
        raise ConfigError(f"{shape.name} is a mixture of experts: calibrate with a dense model")
    source = f"measured with {shape.name} in {dtype}"
    error = round(100 * fitted.mean_error, 1)
    per_token = kv_bytes_per_token(shape, dtype)
    per_pair = 4 * shape.num_heads * shape.head_dim * shape.num_kv_layers
    return {
        "gemm": {dtype: _gemm_grid(fitted, machine, shape, dtype) | {"source": source}},
        "decode_attention": {
            "bfloat16": {
                "floor_us": 0.0,
                "us_per_kv_head": 0.0,
                "us_per_head": 0.0,
                "bandwidth_share": _share(per_token / machine.bandwidth, fitted.context_token),
                "mean_error_percent": error,
                "source": source,
            }
        },
        "prefill_attention": {
            "bfloat16": {
                "floor_us": 0.0,
                "us_per_mega_element": 0.0,
                "compute_share": _share(per_pair / machine.flops, fitted.pair),
                "mean_error_percent": error,
                "source": source,
            }
        },
    }


def _share(ideal_s: float, found_ms: float) -> float:
    """Of the machine's peak; attention too fast to be seen costs next to nothing."""
    return float(f"{min(1000.0, ideal_s * 1e3 / max(found_ms, 1e-12)):.4g}")


def _gemm_grid(fitted: Fitted, machine: Machine, shape: ModelShape, dtype: str) -> dict[str, Any]:
    """Efficiencies by tokens, for the layers' products and, beyond their width, for the head."""
    element, head = dtype_bytes(dtype), head_gemm(shape)
    gemms = dense_gemms(shape)
    widest = max(g.n for g in gemms)

    def roof_ms(gemm: Gemm, rows: int) -> float:
        moved = (gemm.n * gemm.k + rows * gemm.k) * element + rows * gemm.n * 2
        return max(moved / machine.bandwidth, 2 * rows * gemm.n * gemm.k / machine.flops) * 1e3

    def layers_percent(tokens: int) -> float:
        roof = sum(g.count * roof_ms(g, tokens) for g in gemms)
        return _percent(roof, _between(fitted.products, tokens))

    def head_percent(tokens: int) -> float:
        tokens = min(tokens, max(fitted.head))
        return _percent(roof_ms(head, tokens), _between(fitted.head, tokens))

    nodes = sorted({*fitted.products, *fitted.head})
    both = head.n > widest
    grid = [[[layers_percent(t)], [head_percent(t)]] if both else [[layers_percent(t)]] for t in nodes]
    return {
        "floor_us": 0.0,
        "tokens": nodes,
        "n": [widest, head.n] if both else [head.n],
        "k": [1],
        "efficiency_percent": grid,
    }


def _percent(roof_ms: float, ms: float) -> float:
    return float(f"{100 * roof_ms / max(ms, roof_ms * 1e-3):.4g}")
