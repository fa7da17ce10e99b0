"""Parameters of a model by the product's own arithmetic of weights."""

from __future__ import annotations

from camshaft.core.arithmetic.quantization import quantization_named
from camshaft.core.arithmetic.shape import ModelShape
from camshaft.core.arithmetic.sizes import weight_bytes


def parameters(shape: ModelShape) -> tuple[float, float]:
    """All of them, and those that one token passes: its experts alone."""
    held = weight_bytes(shape, dtype="float32", quantization=quantization_named(None))
    idle = held.experts * (1 - shape.experts_per_token / shape.num_experts) if shape.num_experts else 0
    return held.total / 4, (held.total - idle) / 4
