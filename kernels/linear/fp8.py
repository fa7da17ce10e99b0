"""Linear layers with weights in FP8 (e4m3) and inputs quantised as they come.

Weight scales are one number, one an output channel, or one a block of 128 x 128. The first two go to
torch's scaled product on a GPU, which is cuBLASLt's and hard to beat; blocks go to a kernel of our own,
as no scaled product of torch takes them below CUDA 12.9. On a CPU the same arithmetic runs in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..dispatch import Dispatch
from ..quantize_rows import FP8, quantize_rows
from ..silu_mul import silu_mul
from . import InputNorm, check_sizes

BLOCK = 128

_block_product = Dispatch(f"{__package__}.fp8_block", "block_product")


@dataclass(frozen=True, slots=True)
class Fp8Weight:
    """W [out_features, in_features] as values times scales.

    scales, float32: [1] for the whole, [out_features] for each row, or
    [ceil(out_features / 128), ceil(in_features / 128)] for blocks.
    """

    values: torch.Tensor
    scales: torch.Tensor

    def __post_init__(self) -> None:
        rows, columns = self.values.shape
        sizes = [(1,), (rows,), (-(-rows // BLOCK), -(-columns // BLOCK))]
        if self.values.dtype != FP8 or tuple(self.scales.shape) not in sizes:
            raise ValueError(
                f"linear: an FP8 weight of {rows} x {columns} in {self.values.dtype} has scales of "
                f"{tuple(self.scales.shape)}; allowed are {sizes} and {FP8}"
            )

    @property
    def is_blocked(self) -> bool:
        return self.scales.ndim == 2

    def dense(self) -> torch.Tensor:
        """float32 [out_features, in_features]."""
        rows, columns = self.values.shape
        if not self.is_blocked:
            return self.values.float() * self.scales[:, None]
        wide = self.scales.repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :columns]
        return self.values.float() * wide


def quantize_weight(weight: torch.Tensor) -> Fp8Weight:
    """A weight [out_features, in_features] of any float dtype, one scale a row."""
    values, scales = quantize_rows(weight)
    return Fp8Weight(values, scales[:, 0].contiguous())


def join(weights: list[Fp8Weight]) -> Fp8Weight:
    """The rows of several weights in order. Scales of whole tensors become scales of rows.

    Raises ValueError when blocked and other weights meet, or a blocked one ends inside a block.
    """
    if len(weights) == 1:
        return weights[0]
    values = torch.cat([weight.values for weight in weights])
    if not any(weight.is_blocked for weight in weights):
        return Fp8Weight(values, torch.cat([w.scales.expand(w.values.shape[0]) for w in weights]))
    if not all(w.is_blocked for w in weights) or any(w.values.shape[0] % BLOCK for w in weights[:-1]):
        sizes = [tuple(weight.values.shape) for weight in weights]
        raise ValueError(f"linear: FP8 weights of {sizes} cannot share blocks of {BLOCK} rows")
    return Fp8Weight(values, torch.cat([weight.scales for weight in weights]))


class Fp8Linear:
    """y = norm(x) W^T + b, its input in FP8 with a scale a row, or a group of 128 where W has blocks."""

    def __init__(
        self,
        weight: Fp8Weight,
        bias: torch.Tensor | None = None,
        norm: InputNorm | None = None,
        input_scale: torch.Tensor | None = None,
    ) -> None:
        """`input_scale` (float32, one element) is a calibrated scale that the checkpoint brings."""
        self.out_features, self.in_features = weight.values.shape
        if weight.is_blocked and self.in_features % BLOCK:
            raise ValueError(f"linear: blocks of {BLOCK} do not divide {self.in_features} input features")
        self.weight_bytes = weight.values.numel() + weight.scales.numel() * 4
        self._weight, self._bias, self._norm = weight, bias, norm
        self._input_scale = None if weight.is_blocked else input_scale

    def __call__(
        self,
        x: torch.Tensor,
        out: torch.Tensor | None = None,
        *,
        accumulate: bool = False,
        added: torch.Tensor | None = None,
        gated: bool = False,
    ) -> torch.Tensor:
        """As `Linear.__call__`; the product has x's dtype.

        `added` [T, in_features] is added to x in place before the norm. `gated`: x is [T, 2 * in_features],
        gate first, and silu(gate) * up is the input. Both happen while the input is quantised.
        """
        if not gated:
            check_sizes(self, x, out)
        values, scales = quantize_rows(
            x,
            group=BLOCK if self._weight.is_blocked else 0,
            norm=self._norm,
            gated=gated,
            static_scale=self._input_scale,
            added=added,
        )
        product = self._product(values, scales, x.dtype)
        if self._bias is not None:
            product += self._bias
        if out is None:
            return product
        return out.add_(product) if accumulate else out.copy_(product)

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """float32 rows of W."""
        scales = self._weight.scales
        picked = self._weight.values.view(torch.uint8).index_select(0, indices).view(FP8).float()
        if self._weight.is_blocked:
            return picked * scales[indices // BLOCK].repeat_interleave(BLOCK, 1)
        return picked * scales.expand(self.out_features)[indices][:, None]

    def _product(self, values: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        weight = self._weight
        if weight.is_blocked:
            out = torch.empty((len(values), self.out_features), dtype=dtype, device=values.device)
            _block_product(values)(values, scales, weight.values, weight.scales, out)
            return out
        if values.is_cuda and dtype == torch.bfloat16 and not (self.out_features | self.in_features) % 16:
            columns = weight.scales.expand(self.out_features).view(1, -1)
            return torch._scaled_mm(
                values, weight.values.t(), scales, columns.contiguous(), out_dtype=dtype, use_fast_accum=True
            )
        return (
            torch.nn.functional.linear(values.float(), weight.values.float()) * scales * weight.scales
        ).to(dtype)


class Fp8GatedLinear:
    """silu(n Wg^T) * (n Wu^T), both weights joined into one product."""

    def __init__(
        self,
        gate: Fp8Weight,
        up: Fp8Weight,
        norm: InputNorm | None = None,
        input_scale: torch.Tensor | None = None,
    ) -> None:
        self.joined = Fp8Linear(join([gate, up]), None, norm, input_scale)  # gate and up side by side
        self.out_features, self.in_features = gate.values.shape
        self.weight_bytes = self.joined.weight_bytes

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """As `GatedLinear.__call__`."""
        return silu_mul(self.joined(x), out)
