"""FP8: quantised rows, and linear layers whose weights have one, a row's or a block's scale."""

from __future__ import annotations

import torch

from camshaft.kernels import launch
from camshaft.kernels.fp8 import FP8
from camshaft.kernels.linear import InputNorm
from camshaft.kernels.linear.fp8 import Fp8Linear, Fp8Weight, quantize_weight
from camshaft.kernels.linear.fp8_product import reference as product_reference
from camshaft.kernels.linear.fp8_product import triton as product_triton
from camshaft.kernels.quantize_rows import reference
from camshaft.kernels.quantize_rows.triton import quantize_rows

from .check import Check, Place, compare, compare_sums, replaced, seed_all


def _outputs(rows: int, width: int, group: int, place: Place) -> tuple[torch.Tensor, torch.Tensor]:
    values = torch.zeros((rows, width), dtype=FP8, device=place.device)
    return values, torch.full((rows, width // group if group else 1), -1.0, device=place.device)


def quantized(
    rows: int,
    width: int,
    group: int,
    *,
    norm: bool = False,
    gated: bool = False,
    static: bool = False,
    residual: bool = False,
) -> Check:
    """Scales agree, and values to within the last place: the order of a sum may tip a rounding."""

    def run(place: Place) -> None:
        seed_all(rows + width)
        x = place.tensor(rows, 2 * width + 16)[:, : 2 * width if gated else width]
        x[-1] = 0
        weight = InputNorm(place.tensor(width), 1e-5) if norm else None
        scale = torch.tensor([0.01], device=place.device) if static else None
        added, mine = place.tensor(rows, width) if residual else None, x.clone()
        expected, got = (_outputs(rows, width, group, place) for _ in range(2))
        reference.quantize_rows(x, group, weight, gated, scale, expected[0], expected[1], added)
        quantize_rows(mine, group, weight, gated, scale, got[0], got[1], added)
        assert torch.equal(mine, x), "the sum that is kept differs"
        compare(got[1], expected[1], 1e-5)
        kept = torch.ones_like(expected[0], dtype=torch.bool)
        if place.device.type == "cpu":
            kept = expected[0].view(torch.uint8) % 8 != 0  # the interpreter loses carries
        # e4m3 keeps three bits behind the leading one: neighbours differ by an eighth at most.
        compare(got[0].float()[kept], expected[0].float()[kept], 0.126)
        same = (got[0].view(torch.uint8) == expected[0].view(torch.uint8))[kept].float().mean()
        assert same > 0.98, f"only {same:.2%} of the values are the same"

    flags = (("norm", norm), ("gated", gated), ("static", static), ("residual", residual))
    extras = "".join(f"-{name}" for name, on in flags if on)
    return Check(f"quantize-rows-{rows}x{width}-g{group}{extras}", run)


def product(rows: int, out_features: int, in_features: int, *, blocked: bool, sms: int = 0) -> Check:
    """The kernel of our own, also where several programs share a tile's depth; `sms` stands for the device's."""

    def run(place: Place) -> None:
        seed_all(rows)
        counted = launch.num_sms(place.device)
        groups, blocks = in_features // 128, (-(-out_features // 128), in_features // 128)
        x, x_scales = torch.randn(rows, in_features).to(FP8), torch.rand(rows, groups if blocked else 1)
        weight = torch.randn(out_features, in_features).to(FP8)
        w_scales = torch.rand(blocks if blocked else (out_features,))
        inputs = [t.to(place.device) for t in (x, x_scales, weight, w_scales)]
        expected, got, again = (torch.full((rows, out_features), 9.0, device=place.device) for _ in range(3))
        product_reference.fp8_product(inputs[0], inputs[1], inputs[2], inputs[3], expected)
        with replaced(launch, "num_sms", lambda device: sms or counted):
            for out in (got, again):
                product_triton.fp8_product(inputs[0], inputs[1], inputs[2], inputs[3], out)
        compare_sums(got, expected)
        if place.device.type == "cpu":
            compare(got, expected, 3e-4)
        assert torch.equal(got, again), "two runs differ"
        arrived = product_triton.ARRIVED(inputs[0].device, sms or counted)
        assert not arrived.any(), "a counter of arrivals was left"

    extras = ("-blocks" if blocked else "") + (f"-on{sms}" if sms else "")
    return Check(f"fp8-product-{rows}x{in_features}x{out_features}{extras}", run)


def shared_depth() -> Check:
    """Programs fill the SMs and no more, and no share is too short to pay for joining."""

    def run(place: Place) -> None:
        for tiles, blocks, sms, expected in ((32, 64, 132, 4), (40, 64, 132, 3), (224, 64, 132, 1), (4, 32, 132, 4), (1, 7, 132, 1)):  # fmt: skip
            assert product_triton.shares_of(tiles, blocks, sms) == expected

    return Check("fp8-product-shares", run)


def layer(kind: str) -> Check:
    """A whole layer against its weight in float32: what is lost is FP8's precision and no more."""

    def run(place: Place) -> None:
        seed_all(1)
        rows, n, k = 5, 256, 384
        dense = torch.randn(n, k, device=place.device) / k**0.5
        if kind == "row":
            weight = quantize_weight(dense)
        elif kind == "whole":
            scale = dense.abs().max().reshape(1) / 448
            weight = Fp8Weight((dense / scale).to(FP8), scale)
        else:
            weight = Fp8Weight((dense * 64).to(FP8), torch.full((2, 3), 1 / 64, device=place.device))
        norm, bias = InputNorm(place.tensor(k).abs(), 1e-5), place.tensor(n)
        x, out = place.tensor(rows, k), place.tensor(rows, n)
        expected = out.float() + torch.nn.functional.linear(
            torch.nn.functional.rms_norm(x.float(), (k,), norm.weight.float(), norm.eps), dense, bias.float()
        )
        linear = Fp8Linear(weight, bias, norm)
        linear(x, out, accumulate=True)
        error = (out.float() - expected).norm() / expected.norm()
        assert error < 0.04, f"relative error {error:.3f}"
        rows_of = linear.rows(torch.tensor([0, n - 1], device=place.device))
        compare(rows_of, weight.dense()[[0, n - 1]], 1e-6)

    return Check(f"fp8-linear-{kind}", run)


CHECKS = [
    quantized(3, 256, 0),
    quantized(2, 384, 128, norm=True),
    quantized(3, 1000, 0, gated=True),
    quantized(2, 33024, 0, gated=True),
    quantized(2, 33024, 128, gated=True),
    quantized(2, 40000, 0, static=True),
    quantized(2, 320, 0, norm=True, static=True),
    quantized(3, 384, 0, norm=True, residual=True),
    quantized(2, 256, 128, norm=True, residual=True),
    product(5, 192, 256, blocked=True),
    product(70, 128, 128, blocked=True),
    product(130, 200, 384, blocked=True),
    product(1, 2100, 2048, blocked=True, sms=40),
    product(64, 150, 3200, blocked=True, sms=12),
    product(3, 200, 256, blocked=False),
    product(70, 300, 2176, blocked=False, sms=8),
    product(17, 2304, 2048, blocked=False, sms=30),
    shared_depth(),
    *(layer(kind) for kind in ("whole", "row", "blocks")),
]
