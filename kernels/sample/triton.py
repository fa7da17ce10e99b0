"""Triton on CUDA: one program a row, which walks its logits a strip at a time.

A row of 128,256 logits is half a megabyte and stays in the second-level cache, so that the 16 walks of a search
cost no memory bandwidth. Rows without filters walk once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .. import checks, launch
from . import Draws

STRIP = 8192


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
def peak_of(row, vocab, temperature, BLOCK: tl.constexpr):
    """Largest logit over temperature."""
    peak = float("-inf")
    for start in range(0, vocab, BLOCK):
        _, values = strip(row, start, vocab, temperature, BLOCK)
        peak = tl.maximum(peak, tl.max(values, 0))
    return peak


@triton.jit
def amounts(row, start, vocab, temperature, peak, floor, BY_WEIGHT: tl.constexpr, BLOCK: tl.constexpr):
    """(keys, what each token of a strip counts): 1, or its weight beside the likeliest; 0 of keys below `floor`."""
    columns, values = strip(row, start, vocab, temperature, BLOCK)
    keys = ordered(values)
    amount = tl.zeros([BLOCK], tl.float32) + 1
    if BY_WEIGHT:
        amount = tl.exp(values - peak)
    return keys, tl.where((keys >= floor) & (columns < vocab), amount, 0.0)


@triton.jit
def total_of(row, vocab, temperature, peak, floor, BLOCK: tl.constexpr):
    """Weight of all tokens with a key of `floor` or more."""
    total = 0.0
    for start in range(0, vocab, BLOCK):
        _, amount = amounts(row, start, vocab, temperature, peak, floor, True, BLOCK)
        total += tl.sum(amount, 0)
    return total


@triton.jit
def search(row, vocab, temperature, peak, floor, wanted, BY_WEIGHT: tl.constexpr, BLOCK: tl.constexpr):
    """Largest key such that tokens with it or a larger one count `wanted` or more. Two bits a walk."""
    found = tl.zeros([], tl.uint32)
    for walk in range(16):
        step = tl.full([], 0x40000000, tl.uint32) >> (2 * walk)
        one, two, three = found | step, found | (step * 2), found | (step * 3)
        # Summed over threads once a walk: a sum of them all takes longer than the work on a strip.
        from_one = tl.zeros([BLOCK], tl.float32)
        from_two, from_three = from_one, from_one
        for start in range(0, vocab, BLOCK):
            keys, amount = amounts(row, start, vocab, temperature, peak, floor, BY_WEIGHT, BLOCK)
            from_one += tl.where(keys >= one, amount, 0.0)
            from_two += tl.where(keys >= two, amount, 0.0)
            from_three += tl.where(keys >= three, amount, 0.0)
        if tl.sum(from_three, 0) >= wanted:
            found = three
        elif tl.sum(from_two, 0) >= wanted:
            found = two
        elif tl.sum(from_one, 0) >= wanted:
            found = one
    return found


@triton.jit
def least_likely(row, vocab, temperature, peak, min_p, BLOCK: tl.constexpr):
    """Smallest key of the tokens at least `min_p` times as likely as the likeliest."""
    least = tl.full([], 0xFFFFFFFF, tl.uint32)
    for start in range(0, vocab, BLOCK):
        _, values = strip(row, start, vocab, temperature, BLOCK)
        key = tl.where(tl.exp(values - peak) >= min_p, ordered(values), 0xFFFFFFFF)
        least = tl.minimum(least, tl.min(key.to(tl.uint32), 0))
    return least


@triton.jit
def threshold_of(row, vocab, temperature, top_k, top_p, min_p, BLOCK: tl.constexpr):
    """Smallest key that all filters leave: top-k, then min-p, then top-p of what is left."""
    threshold = tl.zeros([], tl.uint32)
    peak = peak_of(row, vocab, temperature, BLOCK)
    if (top_k > 0) & (top_k < vocab):
        threshold = search(row, vocab, temperature, peak, threshold, top_k.to(tl.float32), False, BLOCK)
    if min_p > 0:
        threshold = tl.maximum(threshold, least_likely(row, vocab, temperature, peak, min_p, BLOCK))
    if top_p < 1:
        wanted = total_of(row, vocab, temperature, peak, threshold, BLOCK) * top_p
        nucleus = search(row, vocab, temperature, peak, threshold, wanted, True, BLOCK)
        threshold = tl.maximum(threshold, nucleus)
    return threshold


@triton.jit
def gumbel(seed, columns, position, BLOCK: tl.constexpr):
    """Noise of each column: of the first word of Philox at counter (column, position, 0, 0)."""
    nothing = tl.zeros([BLOCK], tl.uint32)
    word, _, _, _ = tl.philox(seed, columns.to(tl.uint32), nothing + position.to(tl.uint32), nothing, nothing)
    # 23 bits: with one more, the half that is added would round the largest number up to 1, whose noise is infinite.
    uniform = ((word >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07  # 2^-23
    return -tl.log(-tl.log(uniform))


@triton.jit(do_not_specialize=["temperatures", "top_ks", "top_ps", "min_ps", "seeds", "drawn", "out"])
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
        threshold = threshold_of(row, vocab, temperature, top_k, top_p, min_p, BLOCK)

    seed, position = tl.load(seeds + i), tl.load(drawn + i)
    best, token = float("-inf"), 0
    for start in range(0, vocab, BLOCK):
        columns, scores = strip(row, start, vocab, temperature, BLOCK)
        if not greedy:
            noisy = scores + gumbel(seed, columns, position, BLOCK)
            scores = tl.where(ordered(scores) >= threshold, noisy, float("-inf"))
        highest = tl.max(scores, 0)
        if highest > best:
            best = highest
            token = start + tl.argmax(scores, 0)
    tl.store(out + i, token.to(tl.int64))


def most_registers(row_stride: int) -> int | None:
    """Registers of a thread; None leaves it to the assembler. Logits that are read one by one need more addresses, and
    on an A100 it would rather spill some than let fewer programs on an SM.
    """
    return 128 if row_stride % 16 else None


def sample(logits: torch.Tensor, draws: Draws, out: torch.Tensor) -> None:
    """As the op. Raises KernelInputError."""
    rows, vocab = logits.shape
    op, device = "sample", logits.device
    checks.check_tensor(op, "logits", logits, device, checks.SINGLES)
    for name, tensor, dtypes in (
        ("temperature", draws.temperature, checks.SINGLES), ("top_k", draws.top_k, checks.INTEGERS),
        ("top_p", draws.top_p, checks.SINGLES), ("min_p", draws.min_p, checks.SINGLES),
        ("seed", draws.seed, checks.LONGS), ("position", draws.position, checks.LONGS), ("out", out, checks.LONGS),
    ):  # fmt: skip
        checks.check_tensor(op, name, tensor, device, dtypes, whole=True)
        checks.check_size(op, name, tensor, (rows,))
    if rows:
        sample_kernel[(rows,)](
            logits, draws.temperature, draws.top_k, draws.top_p, draws.min_p, draws.seed, draws.position,
            out, logits.stride(0), vocab,
            BLOCK=min(STRIP, launch.next_power_of_2(vocab)), num_warps=16, maxnreg=most_registers(logits.stride(0)),
        )  # fmt: skip
