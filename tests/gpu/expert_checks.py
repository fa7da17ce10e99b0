"""Grouped products of a mixture of experts against each token taken alone."""

from __future__ import annotations

import torch

from camshaft.kernels.experts import route, sort_by_expert
from camshaft.kernels.experts.fp8 import Fp8Experts
from camshaft.kernels.experts.fp8_grouped import ExpertWeights, Groups, reference
from camshaft.kernels.experts.fp8_grouped.triton import grouped_product
from camshaft.kernels.experts.grouping import reference as grouping_reference
from camshaft.kernels.experts.grouping import tiles_of
from camshaft.kernels.experts.grouping import triton as grouping_triton
from camshaft.kernels.experts.routing import reference as routing_reference
from camshaft.kernels.experts.routing import triton as routing_triton
from camshaft.kernels.experts.triton import GroupedExperts
from camshaft.kernels.fp8 import FP8
from camshaft.kernels.linear.fp8 import Fp8Weight, quantize_weight

from .check import TOLERANCE, Check, Place, compare, compare_sums, seed_all


def experts(tokens: int, num_experts: int, top_k: int, hidden: int, inner: int) -> Check:
    def run(place: Place) -> None:
        seed_all(tokens)
        scale = hidden**-0.5
        gates, ups = ([place.tensor(inner, hidden) * scale for _ in range(num_experts)] for _ in range(2))
        downs = [place.tensor(hidden, inner) * inner**-0.5 for _ in range(num_experts)]
        x, out = place.tensor(tokens, hidden), place.tensor(tokens, hidden)
        ids, weights = route(place.tensor(tokens, num_experts), top_k, renormalise=True)
        expected = out.float()
        for t in range(tokens):
            for expert, weight in zip(ids[t].tolist(), weights[t].tolist(), strict=True):
                gate, up = (m[expert].float() @ x[t].float() for m in (gates, ups))
                inner_t = torch.nn.functional.silu(gate) * up
                expected[t] += weight * (downs[expert].float() @ inner_t)
        GroupedExperts(gates, ups, downs)(x, ids, weights, out)
        compare(out, expected, 2 * TOLERANCE[place.dtype])

    return Check(f"experts-{tokens}x{num_experts}of{top_k}-{hidden}-{inner}", run)


def grouping() -> Check:
    """Every place stands once, in a tile of its own expert, also when one expert takes all."""

    def run(place: Place) -> None:
        seed_all(0)
        cases = [
            (torch.randint(0, 6, (37, 2)), 6, 16),
            (torch.full((20, 1), 5), 6, 16),
            (torch.tensor([[0]]), 6, 16),
            (torch.rand(300, 60).topk(8, dim=-1).indices, 60, 64),
            (torch.arange(4).repeat(1024)[:, None], 4, 64),
        ]
        for ids, num_experts, tile in cases:
            ids = ids.contiguous().to(place.device)
            tiles = tiles_of(ids.numel(), num_experts, tile)
            expected, got = (
                [
                    torch.full((size,), -7, dtype=torch.int32, device=place.device)
                    for size in (tiles * tile, tiles)
                ]
                for _ in range(2)
            )
            grouping_reference.sort_by_expert(ids, num_experts, tile, expected[0], expected[1])
            grouping_triton.sort_by_expert(ids, num_experts, tile, got[0], got[1])
            assert torch.equal(got[0], expected[0])
            assert torch.equal(got[1], expected[1])
            _check_groups(ids.reshape(-1).cpu(), got[0].cpu().view(-1, tile), got[1].tolist())

    return Check("experts-grouping", run)


def routing() -> Check:
    """Ids and weights of distinct logits are the reference's; of equal ones each expert is taken once."""

    def run(place: Place) -> None:
        seed_all(0)
        for tokens, num_experts, top_k in ((7, 128, 8), (3, 8, 2), (2, 60, 4), (5, 5, 5)):
            order = torch.stack([torch.randperm(num_experts) for _ in range(tokens)])
            wide = torch.cat([order / 16 - 2, torch.full((tokens, 3), 99.0)], 1).to(place.device, place.dtype)
            logits = wide[:, :num_experts]
            for renormalise in (False, True):
                expected, got = (
                    (
                        torch.full((tokens, top_k), -1, device=place.device),
                        torch.zeros(tokens, top_k, device=place.device),
                    )
                    for _ in range(2)
                )
                routing_reference.route(logits, renormalise, *expected)
                routing_triton.route(logits, renormalise, *got)
                assert torch.equal(got[0], expected[0])
                compare(got[1], expected[1], 1e-5)
            for spoiled in (logits * float("nan"), torch.where(logits > logits.mean(), float("nan"), logits)):
                routing_triton.route(spoiled, True, *got)
                assert all(len(set(row)) == top_k for row in got[0].tolist())
                assert 0 <= int(got[0].min()) <= int(got[0].max()) < num_experts
            routing_triton.route(logits * 0, True, *got)
            assert all(len(set(row)) == top_k for row in got[0].tolist())
            compare(got[1], torch.full((tokens, top_k), 1 / top_k), 1e-5)

    return Check("experts-routing", run)


def _check_groups(flat: torch.Tensor, tiles: torch.Tensor, owners: list[int]) -> None:
    total = len(flat)
    kept = tiles[tiles < total]
    assert sorted(kept.tolist()) == list(range(total))
    for tile, owner in zip(tiles, owners, strict=True):
        mine = tile[tile < total].long()
        assert (owner >= 0) == (len(mine) > 0)
        assert torch.all(flat[mine] == owner)


def fp8_product(rows: int, tile: int, n: int, k: int, *, blocked: bool) -> Check:
    """The grouped kernel against the same numbers multiplied out."""

    def run(place: Place) -> None:
        seed_all(rows)
        num_experts, top_k = 3, 2
        ids = torch.rand(rows, num_experts).topk(top_k, dim=-1).indices.to(place.device)
        groups = Groups(*sort_by_expert(ids, num_experts, tile), rows * top_k, tile)
        size = (num_experts, -(-n // 128), k // 128) if blocked else (num_experts, n)
        weights = ExpertWeights(
            torch.randn(num_experts, n, k).to(FP8).to(place.device), torch.rand(size).to(place.device)
        )
        x = torch.randn(rows, k).to(FP8).to(place.device)
        x_scales = torch.rand(rows, k // 128 if blocked else 1).to(place.device)
        for divisor, row_weights in ((top_k, None), (1, torch.rand(rows * top_k).to(place.device))):
            source, scales = (x, x_scales) if divisor == top_k else (t.repeat(2, 1) for t in (x, x_scales))
            expected, got = (torch.full((rows * top_k, n), 9.0, device=place.device) for _ in range(2))
            reference.grouped_product(source, scales, weights, groups, divisor, row_weights, expected)
            grouped_product(source, scales, weights, groups, divisor, row_weights, got)
            compare_sums(got, expected)
            if place.device.type == "cpu":
                compare(got, expected, 1e-4)

    return Check(f"experts-fp8-{rows}t{tile}-{n}x{k}{'-blocks' if blocked else ''}", run)


def far_expert() -> Check:
    """An expert whose weight lies more than 2^31 bytes behind the first one's; no other is touched."""

    def run(place: Place) -> None:
        seed_all(8)
        rows, n, k = 4, 128, 16384
        last = 2**31 // (n * k)
        values = torch.empty((last + 1, n, k), dtype=FP8, device=place.device)
        values[last] = torch.randn(n, k).to(FP8).to(place.device)
        weights = ExpertWeights(values, torch.ones((last + 1, n), device=place.device))
        places = torch.arange(16, dtype=torch.int32, device=place.device).clamp_max(rows)
        groups = Groups(places, torch.tensor([last], dtype=torch.int32, device=place.device), rows, 16)
        x, scales = torch.randn(rows, k).to(FP8).to(place.device), torch.ones(rows, 1, device=place.device)
        expected, got = (torch.full((rows, n), 9.0, device=place.device) for _ in range(2))
        reference.grouped_product(x, scales, weights, groups, 1, None, expected)
        grouped_product(x, scales, weights, groups, 1, None, got)
        compare_sums(got, expected)

    return Check("experts-fp8-far", run)


def fp8_experts(kind: str) -> Check:
    """All of it against the same experts in float32: what is lost is FP8's precision and no more."""

    def run(place: Place) -> None:
        seed_all(2)
        tokens, num_experts, top_k, hidden, inner = 11, 4, 2, 256, 128
        sizes = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
        weights = {
            name: [narrow(torch.randn(size) / size[1] ** 0.5, kind, place) for _ in range(num_experts)]
            for name, size in sizes.items()
        }
        x, out = place.tensor(tokens, hidden), place.tensor(tokens, hidden)
        ids, shares = route(place.tensor(tokens, num_experts), top_k, renormalise=True)
        dense = {name: [weight.dense() for weight in part] for name, part in weights.items()}
        expected = torch.zeros_like(out, dtype=torch.float32)
        for t in range(tokens):
            for expert, share in zip(ids[t].tolist(), shares[t].tolist(), strict=True):
                gate, up = (dense[name][expert] @ x[t].float() for name in ("gate", "up"))
                expected[t] += share * (dense["down"][expert] @ (torch.nn.functional.silu(gate) * up))
        before = out.float().clone()
        scales = (torch.full((1,), 0.03, device=place.device),) * 2 if kind == "whole" else (None, None)
        Fp8Experts(weights["gate"], weights["up"], weights["down"], *scales)(x, ids, shares, out)
        error = (out.float() - before - expected).norm() / expected.norm()
        assert error < 0.06, f"relative error {error:.3f}"

    return Check(f"experts-fp8-{kind}", run)


def narrow(dense: torch.Tensor, kind: str, place: Place) -> Fp8Weight:
    """A weight with the scales that a kind of checkpoint keeps."""
    dense = dense.to(place.device)
    if kind == "row":
        return quantize_weight(dense)
    rows, columns = dense.shape
    size = (1,) if kind == "whole" else (rows // 128, columns // 128)
    return Fp8Weight((dense * 64).to(FP8), torch.full(size, 1 / 64, device=place.device))


FP8_CHECKS = [
    fp8_product(9, 16, 200, 256, blocked=False),
    fp8_product(9, 16, 192, 256, blocked=True),
    fp8_product(5, 16, 64, 200, blocked=False),
    fp8_product(70, 64, 136, 128, blocked=False),
    fp8_product(70, 64, 256, 256, blocked=True),
    far_expert(),
    *(fp8_experts(kind) for kind in ("whole", "row", "blocks")),
]
CHECKS = [
    experts(9, 8, 2, 128, 96),
    experts(40, 2, 1, 64, 64),
    experts(1, 4, 4, 96, 200),
    grouping(),
    routing(),
    *FP8_CHECKS,
]
