"""Every kind of step once before the first request: none of those that follow waits for a compiler.

Kernels take another form for few rows than for many, and libraries choose and load theirs by size. Scratch and
buffers are as large afterwards as any step needs them, so that a captured graph never points at what a larger
step replaced.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from ..schedule.plan import StepPlan
from .device_steps import DeviceSteps
from .limits import Limits


@torch.inference_mode()
def rehearse(steps: DeviceSteps, limits: Limits) -> None:
    """Runs `rehearsals`, largest first. What they write lies in block 0 and behind the tokens of rows, and
    nobody holds either yet.
    """
    for plan in rehearsals(limits):
        steps.launch(plan, eager=True).results()


def rehearsals(limits: Limits) -> Iterator[StepPlan]:
    """Prompts of every power of two of tokens, and decodes on both sides of every power of two of sequences."""
    tokens = limits.max_num_batched_tokens
    for total in sorted({*_powers(tokens), tokens}, reverse=True):
        yield _prompts(total, limits)
    most = min(limits.max_num_seqs, tokens)
    sides = {count + more for count in _powers(most) for more in (0, 1) if count + more <= most}
    for count in sorted({*sides, most}, reverse=True):
        yield _plan(np.ones(count, dtype=np.int32), decodes=True)


def _powers(most: int) -> list[int]:
    return [1 << i for i in range(most.bit_length())]


def _prompts(total: int, limits: Limits) -> StepPlan:
    """`total` tokens in as few sequences as hold them."""
    length = max(1, limits.max_model_len - 1)
    count = min(-(-total // length), limits.max_num_seqs)
    lengths = np.full(count, length, dtype=np.int32)
    lengths[-1] = min(length, total - (count - 1) * length)
    return _plan(lengths, decodes=False)


def _plan(lengths: np.ndarray, *, decodes: bool) -> StepPlan:
    count = len(lengths)
    rows = np.arange(count, dtype=np.int32)
    return StepPlan(
        step=-1,
        rows=rows,
        starts=np.zeros(count, dtype=np.int32),
        num_tokens=lengths,
        samples=np.ones(count, dtype=bool),
        num_decodes=count if decodes else 0,
    )
