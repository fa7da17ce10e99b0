"""Triton on CUDA: one program a row, which walks its logits a strip at a time.

A row of 128,256 logits is half a megabyte and stays in the second-level cache, so that the up to 32 walks of
a bisection cost no memory bandwidth. Rows without filters walk once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .. import checks
from . import Draws

STRIP = 4096


@triton.jit
def ordered(x):
    """uint32 that orders as the float does."""
    bits = x.to(tl.uint32, bitcast=True)
    return tl.where(bits >> 31 != 0, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def strip(row, start, vocab, temperature, BLOCK: tl.constexpr):
    """(columns, logits over temperature) of one strip; -inf past the end."""
    columns = start + tl.arange(0, BLOCK)
    values = tl.load(row + columns, mask=columns < vocab, other=float("-inf"))
    return columns, values / temperature


@triton.jit
def sample_kernel(
    logits, temperatures, top_ks, top_ps, min_ps, seeds, drawn, out, row_stride, vocab,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (m,)."""
    i = tl.program_id(0)
    row = logits + i.to(tl.int64) * row_stride
    temperature = tl.load(temperatures + i)
    greedy = temperature <= 0
    if greedy:
        temperature = 1.0
    top_k, top_p, min_p = tl.load(top_ks + i), tl.load(top_ps + i), tl.load(min_ps + i)
    filtered = ((top_k > 0) & (top_k < vocab)) | (top_p < 1) | (min_p > 0)
    threshold = tl.zeros([], tl.uint32)
    if filtered & (not greedy):
        peak = float("-inf")
        for start in range(0, vocab, BLOCK):
            _, values = strip(row, start, vocab, temperature, BLOCK)
            peak = tl.maximum(peak, tl.max(values, 0))
        if (top_k > 0) & (top_k < vocab):
            # Largest threshold that at least k logits reach.
            for bit in range(32):
                trial = threshold | (tl.full([], 0x80000000, tl.uint32) >> bit)
                count = 0
                for start in range(0, vocab, BLOCK):
                    columns, values = strip(row, start, vocab, temperature, BLOCK)
                    reach = (ordered(values) >= trial) & (columns < vocab)
                    count += tl.sum(reach.to(tl.int32), 0)
                if count >= top_k:
                    threshold = trial
        if min_p > 0:
            low, best = threshold, tl.full([], 0xFFFFFFFF, tl.uint32)
            for start in range(0, vocab, BLOCK):
                _, values = strip(row, start, vocab, temperature, BLOCK)
                key = tl.where(tl.exp(values - peak) >= min_p, ordered(values), 0xFFFFFFFF)
                best = tl.minimum(best, tl.min(key.to(tl.uint32), 0))
            threshold = tl.maximum(low, best)
        if top_p < 1:
            mass = 0.0
            for start in range(0, vocab, BLOCK):
                _, values = strip(row, start, vocab, temperature, BLOCK)
                weights = tl.where(ordered(values) >= threshold, tl.exp(values - peak), 0.0)
                mass += tl.sum(weights, 0)
            # Largest threshold whose tokens hold the share: below it, one more token is one too many.
            wanted, found = mass * top_p, tl.zeros([], tl.uint32)
            for bit in range(32):
                trial = found | (tl.full([], 0x80000000, tl.uint32) >> bit)
                share = 0.0
                for start in range(0, vocab, BLOCK):
                    _, values = strip(row, start, vocab, temperature, BLOCK)
                    key = ordered(values)
                    inside = (key >= threshold) & (key >= trial)
                    share += tl.sum(tl.where(inside, tl.exp(values - peak), 0.0), 0)
                if share >= wanted:
                    found = trial
            threshold = tl.maximum(threshold, found)

    seed, position = tl.load(seeds + i), tl.load(drawn + i)
    best, token = float("-inf"), 0
    for start in range(0, vocab, BLOCK):
        columns, values = strip(row, start, vocab, temperature, BLOCK)
        scores = values
        if not greedy:
            high = tl.zeros([BLOCK], tl.uint32) + position.to(tl.uint32)
            nothing = tl.zeros([BLOCK], tl.uint32)
            word, _, _, _ = tl.philox(seed, columns.to(tl.uint32), high, nothing, nothing)
            uniform = ((word >> 8).to(tl.float32) + 0.5) * 5.9604644775390625e-08  # 2^-24
            noisy = values - tl.log(-tl.log(uniform))
            scores = tl.where(ordered(values) >= threshold, noisy, float("-inf"))
        highest = tl.max(scores, 0)
        if highest > best:
            best = highest
            token = start + tl.argmax(scores, 0)
    tl.store(out + i, token.to(tl.int64))


def sample(logits: torch.Tensor, draws: Draws, out: torch.Tensor) -> None:
    """As the op. Raises KernelInputError."""
    rows, vocab = logits.shape
    op, device = "sample", logits.device
    for name, tensor, dtypes in (
        ("temperature", draws.temperature, checks.SINGLES), ("top_k", draws.top_k, checks.INTEGERS),
        ("top_p", draws.top_p, checks.SINGLES), ("min_p", draws.min_p, checks.SINGLES),
        ("seed", draws.seed, checks.LONGS), ("position", draws.position, checks.LONGS), ("out", out, checks.LONGS),
    ):  # fmt: skip
        checks.check_tensor(op, name, tensor, device, dtypes, whole=True)
    if rows:
        sample_kernel[(rows,)](
            logits, draws.temperature, draws.top_k, draws.top_p, draws.min_p, draws.seed, draws.position,
            out, logits.stride(0), vocab,
            BLOCK=min(STRIP, triton.next_power_of_2(vocab)), num_warps=8,
        )  # fmt: skip
