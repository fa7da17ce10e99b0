"""Plain torch: sorts, filters, and adds the same noise as the kernel, from the same counters."""

from __future__ import annotations

import torch

from . import Draws

MASK = 0xFFFFFFFF


def philox(seed: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """First word, int64 in [0, 2^32), of Philox 4x32-10 (Salmon et al., SC 2011) at counter (low, high, 0, 0)."""
    key = [seed & MASK, (seed >> 32) & MASK]
    zero = torch.zeros_like(low + high)
    c0, c1, c2, c3 = low + zero, high + zero, zero, zero
    for _ in range(10):
        high0, low0 = _wide(c0, 0xD2511F53)
        high1, low1 = _wide(c2, 0xCD9E8D57)
        c0, c1, c2, c3 = high1 ^ c1 ^ key[0], low1, high0 ^ c3 ^ key[1], low0
        key = [(key[0] + 0x9E3779B9) & MASK, (key[1] + 0xBB67AE85) & MASK]
    return c0


def _wide(x: torch.Tensor, factor: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(high, low) 32 bits of x * factor, both below 2^32, without leaving int64."""
    lower = (x & 0xFFFF) * factor
    upper = (x >> 16) * factor + (lower >> 16)
    return upper >> 16, ((upper & 0xFFFF) << 16) | (lower & 0xFFFF)


def gumbel(word: torch.Tensor) -> torch.Tensor:
    """float32 noise, finite, from a 32-bit word, whose top 23 bits become a number strictly between 0 and 1: with
    one more, the half that is added would round the largest up to 1.
    """
    uniform = ((word >> 9).float() + 0.5) * 2.0**-23
    return -torch.log(-torch.log(uniform))


def kept(scaled: torch.Tensor, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """bool [vocab]: what the filters leave of one row."""
    keep = scaled > float("-inf")
    if 0 < top_k < len(scaled):
        keep &= scaled >= scaled.topk(top_k).values[-1]
    weights = (scaled - scaled.max()).exp()
    if min_p > 0:
        keep &= weights >= min_p
    if top_p < 1:
        ordered, _ = (weights * keep).sort(descending=True)
        before = ordered.cumsum(0) - ordered
        last = ordered[(before < top_p * ordered.sum()).sum() - 1]
        keep &= weights >= last
    return keep


def sample(logits: torch.Tensor, draws: Draws, out: torch.Tensor) -> None:
    columns = torch.arange(logits.shape[1], device=logits.device)
    for i, row in enumerate(logits):
        temperature = float(draws.temperature[i])
        if temperature <= 0:
            out[i] = row.argmax()
            continue
        scaled = row / temperature
        keep = kept(scaled, int(draws.top_k[i]), float(draws.top_p[i]), float(draws.min_p[i]))
        noise = gumbel(philox(draws.seed[i], columns, draws.position[i]))
        out[i] = torch.where(keep, scaled + noise, float("-inf")).argmax()
