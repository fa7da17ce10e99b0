from __future__ import annotations

import pytest
import torch

from camshaft.kernels.gated_linear import make_gated_linear
from camshaft.kernels.linear import InputNorm, make_linear

# (out_features, in_features): below a tile, a ragged last block, several depths, the demo model's
SIZES = [(1, 1), (50, 40), (100, 300), (960, 576), (64, 1030)]


def exact(x: torch.Tensor, weight: torch.Tensor, norm: InputNorm | None) -> torch.Tensor:
    wide = x.double()
    if norm is not None:
        wide = wide / (wide.pow(2).mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight.double()
    return wide @ weight.double().t()


def weights(n: int, k: int) -> tuple[torch.Tensor, torch.Tensor, InputNorm]:
    torch.manual_seed(n * 10_000 + k)
    return torch.randn(n, k) / k**0.5, torch.randn(n), InputNorm(torch.rand(k) + 0.5, 1e-5)


@pytest.mark.parametrize(("n", "k"), SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_linear_is_the_product(n: int, k: int, dtype: torch.dtype) -> None:
    weight, bias, norm = weights(n, k)
    x = torch.randn(37, k)
    tolerance = 2e-5 if dtype == torch.float32 else 6e-2
    for b, m in ((None, None), (bias, None), (None, norm), (bias, norm)):
        layer = make_linear(
            weight.to(dtype),
            b if b is None else b.to(dtype),
            m and InputNorm(m.weight.to(dtype), m.eps),
        )
        expected = exact(x.to(dtype), weight.to(dtype), m) + (0 if b is None else b)
        got = layer(x.to(dtype))
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=tolerance)
        held = torch.randn(37, n).to(dtype)
        out = held.clone()
        assert layer(x.to(dtype), out, accumulate=True) is out
        torch.testing.assert_close(out.double(), held.double() + expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_a_row_has_the_same_bits_in_every_batch(n: int, k: int) -> None:
    weight, bias, norm = weights(n, k)
    layer, gated = make_linear(weight, bias, norm), make_gated_linear(weight, weight.flip(0), norm)
    x = torch.randn(130, k)
    whole, gated_whole = layer(x), gated(x)
    for count in (1, 2, 6, 7, 13, 14, 15, 16, 17, 29, 64):
        for first in (0, 66):
            rows = slice(first, first + count)
            assert torch.equal(layer(x[rows].clone()), whole[rows]), (count, first)
            assert torch.equal(gated(x[rows].clone()), gated_whole[rows]), (count, first)


@pytest.mark.parametrize(("n", "k"), SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gated_linear_is_silu_of_one_product_times_the_other(n: int, k: int, dtype: torch.dtype) -> None:
    gate, _, norm = weights(n, k)
    up = torch.randn(n, k) / k**0.5
    x = torch.randn(19, k).to(dtype)
    op = make_gated_linear(gate.to(dtype), up.to(dtype), InputNorm(norm.weight.to(dtype), norm.eps))
    expected = torch.nn.functional.silu(exact(x, gate.to(dtype), norm)) * exact(x, up.to(dtype), norm)
    tolerance = 5e-5 if dtype == torch.float32 else 6e-2
    torch.testing.assert_close(op(x).double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_give_the_weight_back(dtype: torch.dtype) -> None:
    weight = torch.randn(71, 24).to(dtype)
    chosen = torch.tensor([0, 70, 3, 3, 33])
    assert torch.equal(make_linear(weight.clone()).rows(chosen), weight[chosen])


def test_no_rows_at_all() -> None:
    assert make_linear(torch.randn(8, 4))(torch.empty(0, 4)).shape == (0, 8)
    assert make_gated_linear(torch.randn(8, 4), torch.randn(8, 4))(torch.empty(0, 4)).shape == (0, 8)


def test_sizes_that_do_not_fit_are_refused() -> None:
    layer = make_linear(torch.randn(8, 4))
    with pytest.raises(ValueError, match="x is \\(2, 5\\)"):
        layer(torch.randn(2, 5))
    with pytest.raises(ValueError, match="out is \\(2, 9\\)"):
        layer(torch.randn(2, 4), torch.empty(2, 9))
    with pytest.raises(ValueError, match="do not fit"):
        make_linear(torch.randn(8, 4), torch.randn(4))
    with pytest.raises(ValueError, match="do not fit"):
        make_linear(torch.randn(8, 4), None, InputNorm(torch.randn(8), 1e-5))
    with pytest.raises(ValueError, match="gated_linear"):
        make_gated_linear(torch.randn(8, 4), torch.randn(8, 5))
