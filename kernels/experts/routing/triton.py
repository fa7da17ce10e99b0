"""Triton on CUDA: one warp a token, its logits in registers; the largest is taken out as often as needed."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ... import checks, launch


@triton.jit
def route_kernel(
    logits, ids, weights, row_stride, num_experts,
    EXPERTS: tl.constexpr, TOP_K: tl.constexpr, CHOICES: tl.constexpr, RENORMALISE: tl.constexpr,
):  # fmt: skip
    """Grid (T,). EXPERTS is num_experts, and CHOICES is TOP_K, rounded up to a power of two. A row with numbers that
    are none gets experts all the same, each once.
    """
    token = tl.program_id(0).to(tl.int64)
    which, choice = tl.arange(0, EXPERTS), tl.arange(0, CHOICES)
    inside = which < num_experts
    values = tl.load(logits + token * row_stride + which, mask=inside, other=float("-inf")).to(tl.float32)
    left = tl.exp(values - tl.max(values, 0))
    total = tl.sum(left, 0)
    left = tl.where(left == left, left, 0.0)
    left = tl.where(inside, left, -1.0)
    chosen, heaviest = tl.zeros([CHOICES], tl.int32), tl.zeros([CHOICES], tl.float32)
    for j in range(TOP_K):
        best = tl.argmax(left, 0)
        chosen = tl.where(choice == j, best, chosen)
        heaviest = tl.where(choice == j, tl.max(left, 0), heaviest)
        left = tl.where(which == best, -1.0, left)
    if RENORMALISE:
        total = tl.sum(heaviest, 0)
    at, mask = token * TOP_K + choice, choice < TOP_K
    tl.store(ids + at, chosen.to(tl.int64), mask=mask)
    tl.store(weights + at, heaviest / total, mask=mask)


def route(logits: torch.Tensor, renormalise: bool, ids: torch.Tensor, weights: torch.Tensor) -> None:
    """As the op. Raises KernelInputError."""
    (tokens, num_experts), top_k = logits.shape, ids.shape[1]
    checks.check_tensor("route", "logits", logits, ids.device, checks.HALVES)
    checks.check_tensor("route", "ids", ids, ids.device, checks.LONGS, whole=True)
    checks.check_tensor("route", "weights", weights, ids.device, checks.SINGLES, whole=True)
    checks.check_size("route", "ids", ids, (tokens, top_k))
    checks.check_size("route", "weights", weights, (tokens, top_k))
    if tokens:
        route_kernel[(tokens,)](
            logits, ids, weights, logits.stride(0), num_experts,
            EXPERTS=launch.next_power_of_2(num_experts), TOP_K=top_k, CHOICES=launch.next_power_of_2(top_k),
            RENORMALISE=renormalise, num_warps=1,
        )  # fmt: skip
