"""Grouped products of a mixture of experts against each token taken alone."""

from __future__ import annotations

import torch

from camshaft.kernels.experts import route
from camshaft.kernels.experts.triton import GroupedExperts, sort_by_expert

from .check import TOLERANCE, Check, Place, compare, seed_all


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
        for ids in (torch.randint(0, 6, (37, 2)), torch.full((20, 1), 5), torch.tensor([[0]])):
            places, owners = sort_by_expert(ids.to(place.device), 6, 16)
            flat, total = ids.reshape(-1), ids.numel()
            tiles = places.cpu().view(-1, 16)
            kept = tiles[tiles < total]
            assert sorted(kept.tolist()) == list(range(total))
            for tile, owner in zip(tiles, owners.tolist(), strict=True):
                mine = tile[tile < total].long()
                assert (owner >= 0) == (len(mine) > 0)
                assert torch.all(flat[mine] == owner)

    return Check("experts-grouping", run)


CHECKS = [experts(9, 8, 2, 128, 96), experts(40, 2, 1, 64, 64), experts(1, 4, 4, 96, 200), grouping()]
