"""Linear layers with weights in FP8 (e4m3) and inputs quantised as they come.

Weight scales are one number, one an output channel, or one a block of 128 x 128. On a GPU torch's scaled product
(cuBLASLt or CUTLASS) takes the first two, and a kernel of our own (`fp8_product`) the last, as no scaled product of
torch takes them below CUDA 12.9. A decode step's few rows may go either way: what is faster is measured once a
shape (`fastest`). On a CPU the same arithmetic runs in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..dispatch import Dispatch
from ..fp8 import BLOCK, FP8
from ..quantize_rows import quantize_rows
from ..silu_mul import silu_mul
from . import InputNorm, check_sizes
from .fastest import Fastest

_own_product = Dispatch(f"{__package__}.fp8_product", "fp8_product")
_fastest = Fastest()


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
        # Made here, as a captured graph must not: one scale a channel.
        self._columns = (
            weight.scales if weight.is_blocked else weight.scales.expand(self.out_features).contiguous()
        )

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
        if out is not None and not accumulate and out.dtype == x.dtype:
            product = out
        else:
            product = torch.empty((len(x), self.out_features), dtype=x.dtype, device=x.device)
        self._multiply(values, scales, product)
        if self._bias is not None:
            product += self._bias
        if out is None or out is product:
            return product
        return out.add_(product) if accumulate else out.copy_(product)

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """float32 rows of W."""
        scales = self._weight.scales
        picked = self._weight.values.view(torch.uint8).index_select(0, indices).view(FP8).float()
        if self._weight.is_blocked:
            return picked * scales[indices // BLOCK].repeat_interleave(BLOCK, 1)
        return picked * scales.expand(self.out_features)[indices][:, None]

    def _multiply(self, values: torch.Tensor, scales: torch.Tensor, out: torch.Tensor) -> None:
        weight, rows = self._weight.values, len(values)
        if self._weight.is_blocked:
            _own_product(values)(values, scales, weight, self._columns, out)
            return
        ways = (
            [self._by_torch] if out.dtype == torch.bfloat16 and not any(n % 16 for n in weight.shape) else []
        )
        if not self.in_features % BLOCK:
            ways.append(self._by_own)
        if not values.is_cuda or not ways:
            out.copy_(torch.nn.functional.linear(values.float(), weight.float()) * scales * self._columns)
        else:
            key = (weight.device, weight.shape, max(16, 1 << (rows - 1).bit_length()))
            _fastest(key, ways, values, scales, out)(values, scales, out)

    def _by_own(self, values: torch.Tensor, scales: torch.Tensor, out: torch.Tensor) -> None:
        _own_product(values)(values, scales, self._weight.values, self._columns, out)

    def _by_torch(self, values: torch.Tensor, scales: torch.Tensor, out: torch.Tensor) -> None:
        columns = self._columns.view(1, -1)
        if self._input_scale is not None and self._weight.scales.numel() == 1:
            scales, columns = self._input_scale, self._weight.scales
        torch._scaled_mm(  # pyright: ignore[reportPrivateImportUsage]
            values,
            self._weight.values.t(),
            scales,
            columns,
            out_dtype=out.dtype,
            use_fast_accum=True,
            out=out,
        )


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
