"""A mixture of experts against its formula, on the processor."""

from __future__ import annotations

import pytest
import torch

from camshaft.kernels.experts import make_experts


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_every_row_gets_the_weighted_sum_of_its_experts(rows: int) -> None:
    draw = torch.Generator().manual_seed(rows)
    gates, ups, downs = (
        [torch.randn(size, generator=draw) / 8 for _ in range(4)] for size in ((48, 32), (48, 32), (32, 48))
    )
    x = torch.randn(rows, 32, generator=draw)
    ids = torch.stack([torch.arange(rows) % 4, (torch.arange(rows) + 1) % 4], dim=1)
    weights = torch.rand(rows, 2, generator=draw)
    residual = torch.randn(rows, 32, generator=draw)
    expected = residual.clone()
    for row in range(rows):
        for expert, weight in zip(ids[row].tolist(), weights[row], strict=True):
            inner = torch.nn.functional.silu(gates[expert] @ x[row]) * (ups[expert] @ x[row])
            expected[row] += weight * (downs[expert] @ inner)
    got = make_experts(gates, ups, downs)(x, ids, weights, residual)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
