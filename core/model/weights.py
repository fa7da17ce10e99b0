"""Reads the weights of a decoder by name, checked, laid out and on the device that multiplies by them."""

from __future__ import annotations

import torch

from ...kernels.experts import Experts
from ...kernels.experts.mxfp4 import BIAS, GROUP, Mxfp4Weight, make_mxfp4_experts
from ...kernels.gated_linear import GatedLinear
from ...kernels.linear import InputNorm, Linear
from ...kernels.linear.fp8 import quantize_weight
from ..errors import ModelError
from .base import WeightSource
from .fp8 import Matrix, is_fp8, matrix_experts, matrix_gated, matrix_linear, stored_weight


class Loader:
    """Reads named weights, checks their sizes, and moves them to one device and dtype, tensor by tensor.

    With `quantize_fp8`, matrices of the layers become FP8 as they arrive; embedding and head stay.
    """

    def __init__(
        self, weights: WeightSource, device: torch.device, dtype: torch.dtype, *, quantize_fp8: bool = False
    ) -> None:
        self._weights, self._device, self._dtype = weights, device, dtype
        self.quantize_fp8 = quantize_fp8
        self._names = frozenset(weights.names())

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def tensor(self, name: str, *size: int) -> torch.Tensor:
        """The tensor called `name`, of exactly `size`. Raises ModelError."""
        found = self._sized(name, size)
        if is_fp8(found):
            raise ModelError(f"{name} is in FP8, which only linear layers may be")
        return found.to(device=self._device, dtype=self._dtype)

    def matrix(self, name: str, rows: int, columns: int) -> Matrix:
        """The weight of the linear layer called `name`, in FP8 if it is stored so. Raises ModelError."""
        found = self._sized(f"{name}.weight", (rows, columns))
        if is_fp8(found):
            return stored_weight(found.to(self._device), name, self._optional)
        dense = found.to(device=self._device, dtype=self._dtype)
        return quantize_weight(dense) if self.quantize_fp8 and _is_quantisable(name) else dense

    def _sized(self, name: str, size: tuple[int, ...]) -> torch.Tensor:
        found = self._weights.get(name)
        if tuple(found.shape) != size:
            raise ModelError(f"{name}: its size is {tuple(found.shape)}, the config says {size}")
        return found

    def _optional(self, name: str) -> torch.Tensor | None:
        return self._weights.get(name).to(self._device) if name in self else None

    def _input_scale(self, names: list[str]) -> torch.Tensor | None:
        """One calibrated scale for layers that share their input: the largest; None unless all have one."""
        found = [self._optional(f"{name}.input_scale") for name in names]
        scales = [scale.float().reshape(-1) for scale in found if scale is not None and scale.numel() == 1]
        return torch.cat(scales).max().reshape(1) if len(scales) == len(names) else None

    def vector(self, name: str, size: int) -> torch.Tensor:
        """As `tensor`, of one dimension, in memory of its own."""
        return self.tensor(name, size).clone()

    def norm(self, name: str, size: int, eps: float) -> InputNorm:
        """The RMSNorm called `name`."""
        return InputNorm(self.vector(f"{name}.weight", size), eps)

    def linear(
        self, rows: dict[str, int], in_features: int, *, bias: bool = False, norm: InputNorm | None = None
    ) -> Linear:
        """One linear layer whose rows are those of the named ones, so many of each, in order."""
        parts = [self.matrix(name, size, in_features) for name, size in rows.items()]
        biases = [self.vector(f"{name}.bias", size) for name, size in rows.items()] if bias else []
        joined = torch.cat(biases) if biases else None
        return matrix_linear(parts, self._dtype, joined, norm, self._input_scale(list(rows)))

    def gated(self, gate: str, up: str, rows: int, columns: int, norm: InputNorm) -> GatedLinear:
        """The first half of a SwiGLU layer, from the names of its two linear layers."""
        parts = self.matrix(gate, rows, columns), self.matrix(up, rows, columns)
        return matrix_gated(*parts, self._dtype, norm, self._input_scale([gate, up]))

    def experts(self, gates: list[str], ups: list[str], downs: list[str], inner: int, hidden: int) -> Experts:
        """The experts of a layer, from the names of their linear layers: gate and up [inner, hidden]."""
        gate, up = ([self.matrix(name, inner, hidden) for name in names] for names in (gates, ups))
        down = [self.matrix(name, hidden, inner) for name in downs]
        scales = self._input_scale([*gates, *ups]), self._input_scale(downs)
        return matrix_experts(gate, up, down, self._dtype, scales)

    def packed_experts(
        self, name: str, experts: int, inner: int, hidden: int, swiglu: tuple[float, float]
    ) -> Experts:
        """The experts of a layer that lie together in MXFP4; `swiglu` is its limit and its slope."""
        gate_up = self._packed(f"{name}.gate_up_proj", experts, 2 * inner, hidden)
        down = self._packed(f"{name}.down_proj", experts, hidden, inner)
        try:
            return make_mxfp4_experts(gate_up, down, self._dtype, *swiglu)
        except ValueError as error:
            raise ModelError(f"{name}: {error}") from error

    def _packed(self, name: str, *size: int) -> Mxfp4Weight:
        """The weight [experts, rows, columns] called `name`, and its bias, on the device."""
        groups = (*size[:2], size[2] // GROUP)
        bias = self.tensor(f"{name}_bias", *size[:2])
        blocks = self._sized(f"{name}_blocks", (*groups, GROUP // 2)).to(self._device)
        scales = self._sized(f"{name}_scales", groups).to(self._device)
        try:
            made = Mxfp4Weight(blocks, scales, bias)
        except ValueError as error:
            raise ModelError(f"{name}_blocks: {error}") from error
        largest = 6 * 2.0 ** (int(scales.max()) - BIAS)  # of four bits the largest number is 6
        if largest > torch.finfo(self._dtype).max:
            raise ModelError(
                f"{name}_scales: its largest leaves the range of {self._dtype}; the file is damaged, or needs another dtype"
            )
        return made

    def kv_scales(self, attention: str) -> tuple[float, float]:
        """Calibrated scales of K and V for the attention called so; 1 where a checkpoint has none above zero.

        compressed-tensors keeps them beside the projections, modelopt within, older ones one for both.
        """
        k = self._scale((f"{attention}.k_scale", f"{attention}.k_proj.k_scale", f"{attention}.kv_scale"))
        v = self._scale((f"{attention}.v_scale", f"{attention}.v_proj.v_scale", f"{attention}.kv_scale"))
        return k, v

    def _scale(self, names: tuple[str, ...]) -> float:
        """The first that is there, the largest of its heads if it has one for each; writers put -1 for none."""
        found = next((self._weights.get(name) for name in names if name in self), None)
        scale = float(found.float().max()) if found is not None and found.numel() else 1.0
        return scale if 0 < scale < float("inf") else 1.0


def _is_quantisable(name: str) -> bool:
    """Layers, but no router: a wrong choice of experts costs more than its few bytes."""
    return name.startswith("model.layers.") and not name.endswith((".mlp.gate", ".block_sparse_moe.gate"))
