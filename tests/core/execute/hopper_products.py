"""Products and counts that torch has kernels for on Hopper, on the CPU, with what these demand of their arguments."""

from __future__ import annotations

from typing import Any

import torch


def scaled_product(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    scale_result: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """As `torch._scaled_mm` on Hopper, in float32; asserts what that demands (aten/src/ATen/native/cuda/ScaledBlas.cpp)."""
    (rows, k), n = a.shape, b.shape[1]
    assert a.dtype == b.dtype == torch.float8_e4m3fn
    assert b.shape[0] == k
    assert a.stride() == (k, 1), "the left side is not row by row"
    assert b.stride() == (1, k), "the right side is not column by column"
    assert k % 16 == n % 16 == 0, (k, n)
    assert not a.data_ptr() % 16
    assert not b.data_ptr() % 16
    assert scale_a.dtype == scale_b.dtype == torch.float32
    by_row = scale_a.numel() > 1 or scale_b.numel() > 1
    if by_row:
        assert (tuple(scale_a.shape), tuple(scale_b.shape)) == ((rows, 1), (1, n))
        assert scale_a.is_contiguous()
        assert scale_b.is_contiguous()
        assert out_dtype == torch.bfloat16
    made = ((a.float() @ b.float()) * scale_a * scale_b).to(out_dtype or torch.bfloat16)
    if out is None:
        return made
    assert out.shape == made.shape
    assert out.dtype == made.dtype
    assert out.is_contiguous()
    return out.copy_(made)


def grouped_product(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """As `torch._grouped_mm` of rows with the matrix of each row's group; asserts what its descriptors demand."""
    assert offs.dtype == torch.int32
    assert a.dtype == b.dtype == torch.bfloat16
    for x in (a, b):
        wide = [stride for stride in x.stride() if stride != 1]
        assert x.stride(-1) == 1 or x.stride(-2) == 1, x.stride()
        assert not any(stride * x.itemsize % 16 for stride in wide), x.stride()
        assert not x.data_ptr() % 16
    begins = [0, *offs.tolist()]
    parts = [a[i:j] @ one for i, j, one in zip(begins, begins[1:], b, strict=False)]
    return torch.cat([*parts, a.new_zeros(len(a) - begins[-1], b.shape[-1])])


def histogram(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Of integers too, as on a GPU."""
    return torch.histc(x.float(), *args, **kwargs).to(x.dtype)


HOPPERS = {"_scaled_mm": scaled_product, "_grouped_mm": grouped_product, "histc": histogram}
