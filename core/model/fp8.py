"""FP8 weights of a checkpoint, whichever tool wrote them, and weights quantised as they load.

compressed-tensors, fbgemm and modelopt keep `NAME.weight_scale` of one number or one a row beside an e4m3
`NAME.weight`; DeepSeek's and Qwen's own FP8 keep `NAME.weight_scale_inv`, one a block of 128 x 128. All of
them multiply. A static `NAME.input_scale` is of one number. What stays unquantised has no scale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ...kernels.experts import Experts, make_experts
from ...kernels.experts.fp8 import Fp8Experts
from ...kernels.fp8 import FP8
from ...kernels.gated_linear import GatedLinear, make_gated_linear
from ...kernels.linear import InputNorm, Linear, make_linear
from ...kernels.linear.fp8 import Fp8GatedLinear, Fp8Linear, Fp8Weight, join
from ..errors import ModelError

METHODS = frozenset({"compressed-tensors", "fbgemm_fp8", "modelopt", "fp8"})
MXFP4 = "mxfp4"  # of gpt-oss: the experts alone
FP8_CAPABILITY = (8, 9)  # of a GPU: e4m3 products and conversions; Triton refuses them below
SCALES = ("weight_scale", "weight_scale_inv")

Matrix = torch.Tensor | Fp8Weight


def obstacle_in(stored: Mapping[str, Any]) -> str | None:
    """Why a `quantization_config` is not one that loads here; None if it is."""
    method = str(stored.get("quant_method", "unknown"))
    if method not in METHODS | {MXFP4}:
        return method
    if method == "modelopt" and str(stored.get("quant_algo", "FP8")).upper() != "FP8":
        return f"{method} {stored['quant_algo']}"
    if method == "fp8" and stored.get("fmt", "e4m3") != "e4m3":
        return f"{method} {stored['fmt']}"
    if method == "compressed-tensors":
        for group in (stored.get("config_groups") or {}).values():
            weights = group.get("weights") or {}
            if weights.get("type") != "float" or weights.get("num_bits") != 8:
                return f"{method} {weights.get('type')}{weights.get('num_bits')}"
    block = stored.get("weight_block_size")
    return f"{method} in blocks of {block}" if block and list(block) != [128, 128] else None


def stored_weight(values: torch.Tensor, name: str, get: Callable[[str], torch.Tensor | None]) -> Fp8Weight:
    """The weight from its e4m3 values; `get` gives a tensor by name, None where there is none. Raises ModelError."""
    scales = next((found for key in SCALES if (found := get(f"{name}.{key}")) is not None), None)
    if scales is None:
        raise ModelError(f"{name}.weight is in FP8, and has neither {' nor '.join(SCALES)} beside it")
    scales = scales.to(values.device, torch.float32)
    if scales.numel() == 1:
        scales = scales.reshape(1)
    elif scales.ndim == 2 and tuple(scales.shape) == (values.shape[0], 1):
        scales = scales[:, 0]
    try:
        return Fp8Weight(values, scales.contiguous())
    except ValueError as error:
        raise ModelError(f"{name}.weight: {error}") from error


def matrix_linear(
    parts: list[Matrix],
    dtype: torch.dtype,
    bias: torch.Tensor | None,
    norm: InputNorm | None,
    input_scale: torch.Tensor | None,
) -> Linear:
    """One layer over the rows of all parts. Where FP8 does not stay, and where only some are in it, all become
    `dtype`.
    """
    weights = _fp8(parts)
    if weights is not None:
        try:
            return Fp8Linear(join(weights), bias, norm, input_scale)
        except ValueError as error:
            raise ModelError(str(error)) from error
    dense = [_dense(part, dtype) for part in parts]
    return make_linear(torch.cat(dense) if len(dense) > 1 else dense[0], bias, norm)


def matrix_gated(
    gate: Matrix, up: Matrix, dtype: torch.dtype, norm: InputNorm, input_scale: torch.Tensor | None
) -> GatedLinear:
    """As `matrix_linear`, with the gate."""
    weights = _fp8([gate, up])
    if weights is not None:
        try:
            return Fp8GatedLinear(weights[0], weights[1], norm, input_scale)
        except ValueError as error:
            raise ModelError(str(error)) from error
    return make_gated_linear(_dense(gate, dtype), _dense(up, dtype), norm)


def matrix_experts(
    gates: list[Matrix],
    ups: list[Matrix],
    downs: list[Matrix],
    dtype: torch.dtype,
    scales: tuple[torch.Tensor | None, torch.Tensor | None],
) -> Experts:
    """As `matrix_linear`; `scales` are those of the inputs of gate and up, and of down."""
    weights = _fp8([*gates, *ups, *downs])
    try:
        if weights is not None:
            count = len(gates)
            return Fp8Experts(weights[:count], weights[count : 2 * count], weights[2 * count :], *scales)
        return make_experts(*([_dense(part, dtype) for part in parts] for parts in (gates, ups, downs)))
    except ValueError as error:
        raise ModelError(str(error)) from error


def keeps_fp8(device: torch.device) -> bool:
    """Whether FP8 weights stay so there: a CPU and a GPU before Ada have no FP8 arithmetic."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= FP8_CAPABILITY


def _fp8(parts: list[Matrix]) -> list[Fp8Weight] | None:
    """The parts if all are FP8 and lie where they stay so."""
    weights = [part for part in parts if isinstance(part, Fp8Weight)]
    return weights if len(weights) == len(parts) and keeps_fp8(weights[0].values.device) else None


def _dense(part: Matrix, dtype: torch.dtype) -> torch.Tensor:
    return part.dense().to(dtype) if isinstance(part, Fp8Weight) else part


def is_fp8(tensor: torch.Tensor) -> bool:
    """Whether a stored tensor needs a scale to mean anything."""
    return tensor.dtype == FP8
