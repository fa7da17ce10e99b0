"""Rotary position tables, with the frequency scalings that checkpoints ask for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..arithmetic.shape import ModelShape
from ..errors import ModelError

Scaling = Mapping[str, Any]


def cos_sin_table(shape: ModelShape, max_positions: int) -> torch.Tensor:
    """float32 [max_positions, head_dim]: cosines in the first half, sines in the second.

    Raises ModelError naming a scaling that is not known here or a parameter that it lacks.
    """
    frequencies, amplitude = inverse_frequencies(shape)
    angles = torch.outer(torch.arange(max_positions, dtype=torch.float32), frequencies)
    return torch.cat([angles.cos(), angles.sin()], dim=-1) * amplitude


def inverse_frequencies(shape: ModelShape) -> tuple[torch.Tensor, float]:
    """Angle per position of each dimension pair, float32 [head_dim / 2], and the factor on cos and sin."""
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.int64).float() / shape.head_dim
    plain = 1.0 / (shape.rope_theta**exponents)
    scaling = shape.rope_scaling
    if not scaling:
        return plain, 1.0
    kind = str(scaling.get("rope_type") or scaling.get("type"))
    if kind not in SCALINGS:
        raise ModelError(
            f"{shape.name}: rope scaling {kind!r} is not known; known: {', '.join(sorted(SCALINGS))}"
        )
    try:
        return SCALINGS[kind](plain, scaling, shape)
    except KeyError as error:
        raise ModelError(f"{shape.name}: rope scaling {kind!r} lacks {error}") from error


def _linear(plain: torch.Tensor, scaling: Scaling, shape: ModelShape) -> tuple[torch.Tensor, float]:
    """Position interpolation (arXiv 2306.15595)."""
    return plain / float(scaling["factor"]), 1.0


def _llama3(plain: torch.Tensor, scaling: Scaling, shape: ModelShape) -> tuple[torch.Tensor, float]:
    """Llama 3.1: long wavelengths are stretched, short ones kept, those between blended."""
    factor = float(scaling["factor"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    original = float(scaling["original_max_position_embeddings"])
    turns = original * plain / (2 * math.pi)  # rotations over the original context
    blend = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - blend) * plain / factor + blend * plain, 1.0


def _yarn(plain: torch.Tensor, scaling: Scaling, shape: ModelShape) -> tuple[torch.Tensor, float]:
    """YaRN (arXiv 2309.00071, sections 3.2 and 3.4), with DeepSeek's factors on cos and sin (arXiv 2405.04434)."""
    original = float(scaling.get("original_max_position_embeddings") or shape.max_position_embeddings)
    factor = float(scaling["factor"] or shape.max_position_embeddings / original)
    dims = shape.head_dim

    def dimension_of(rotations: float) -> float:
        return dims * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(shape.rope_theta))

    low, high = (
        dimension_of(float(scaling.get("beta_fast") or 32)),
        dimension_of(float(scaling.get("beta_slow") or 1)),
    )
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    ramp = ((torch.arange(dims // 2).float() - low) / max(high - low, 0.001)).clamp(0, 1)
    return plain / factor * ramp + plain * (1 - ramp), _yarn_amplitude(factor, scaling)


def _yarn_amplitude(factor: float, scaling: Scaling) -> float:
    def grown(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    given, above, below = (scaling.get(key) for key in ("attention_factor", "mscale", "mscale_all_dim"))
    if given is not None:
        return float(given)
    return grown(float(above)) / grown(float(below)) if above and below else grown(1.0)


def _dynamic(plain: torch.Tensor, scaling: Scaling, shape: ModelShape) -> tuple[torch.Tensor, float]:
    """Scaled beyond the positions that the model was made for, which are all that are served."""
    return plain, 1.0


SCALINGS: dict[str, Callable[[torch.Tensor, Scaling, ModelShape], tuple[torch.Tensor, float]]] = {
    "dynamic": _dynamic,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
