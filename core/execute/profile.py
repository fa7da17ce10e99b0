"""What a device's memory is needed for, found by using it: one forward pass and one draw of the largest size."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from ..arithmetic.memory import GIB, Measured
from ..model.base import Model
from ..model.batch import ForwardBatch, PagedCache
from ..request import SamplingParams
from ..sample.on_device import CHUNK, DeviceSampler
from .accelerator import Accelerator
from .graphs import DecodeGraphs
from .rows import RowState

log = logging.getLogger("camshaft.memory")
log.setLevel(logging.INFO)  # a few lines a start, whatever other libraries are held to


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest step that will ever run."""

    num_batched_tokens: int
    num_seqs: int
    model_len: int


@torch.inference_mode()
def profile(
    model: Model,
    cache: PagedCache,
    rows: RowState,
    sampler: DeviceSampler,
    accelerator: Accelerator,
    largest: Largest,
    weights_bytes: int,
    others_bytes: int,
) -> Measured:
    """What was found on the device, graphs not yet. `cache` is a small one; `weights_bytes` are the model's, and
    `others_bytes` were in use before this process took any. Raises torch.OutOfMemoryError if not even this fits.
    """
    before = accelerator.allocated_bytes()
    accelerator.reset_peak()
    logits = model.forward(largest_batch(largest, rows), cache)
    draw_largest(logits, rows, sampler)
    del logits
    accelerator.synchronize()
    peak = accelerator.peak_bytes()
    accelerator.release_cached()
    kept = accelerator.allocated_bytes() - before  # buffers that the model keeps: the peak holds them already
    # Code, rows, what the allocator rounds up.
    rest = accelerator.used_bytes() - weights_bytes - others_bytes - kept
    return Measured(weights=weights_bytes, activations=peak - before, context=max(0, rest))


def largest_batch(largest: Largest, rows: RowState) -> ForwardBatch:
    """Prompts without a slot in the cache, as many and as long as a step takes at most; logits of each."""
    n = min(largest.num_seqs, largest.num_batched_tokens)
    total = min(largest.num_batched_tokens, n * largest.model_len)
    lengths = np.full(n, total // n)
    lengths[: total % n] += 1
    ends = np.concatenate([[0], np.cumsum(lengths)])
    positions = np.arange(total) - np.repeat(ends[:-1], lengths)
    longest = int(lengths.max())
    sent = rows.send(ends, lengths, positions, ends[1:] - 1)
    return ForwardBatch(
        tokens=torch.zeros(total, dtype=torch.int64, device=rows.device),
        positions=sent[2].long(),
        slots=torch.full((total,), -1, dtype=torch.int64, device=rows.device),
        query_starts=sent[0],
        context_lens=sent[1],
        block_tables=torch.zeros((n, -(-longest // rows.block_size)), dtype=torch.int32, device=rows.device),
        logit_indices=sent[3].long(),
        num_decodes=0,
        max_query_len=longest,
        max_context_len=longest,
    )


def draw_largest(logits: torch.Tensor, rows: RowState, sampler: DeviceSampler) -> None:
    """A draw for all rows of logits, as many of them as are handled at once with everything a row may ask for."""
    count = len(logits)
    every = np.arange(count, dtype=np.int32)
    lengths = np.full(count, rows.tokens.shape[1] - 1, dtype=np.int32)  # penalties look at all that is known
    asks = SamplingParams(top_k=40, top_p=0.9, repetition_penalty=1.1, logprobs=20)
    plain = SamplingParams(top_k=40, top_p=0.9)
    prompt, nothing = np.zeros(1, dtype=np.int32), np.empty(0, dtype=np.int32)
    for row in every.tolist():
        sampler.add(row, asks if row < CHUNK else plain, prompt, nothing)
    sampler.flush()
    drawn = sampler.draw(logits, *rows.send(every, lengths))
    sampler.finish(logits, drawn, every, lengths, sampler.special(every))
    for row in every.tolist():
        sampler.remove(row)


def estimate_graphs(graphs: DecodeGraphs, accelerator: Accelerator, count: int) -> int:
    """Bytes that `count` graphs will take, from trial captures by `graphs`, which has the one or two largest sizes.

    Graphs point at the cache, so they are captured for good after it is sized; they share one pool, so a
    further one takes little beyond what the largest took, and none more than the one above it.
    """
    graphs.warm()
    accelerator.release_cached()
    used = [accelerator.used_bytes()]
    graphs.capture(lambda: used.append(accelerator.used_bytes()))
    first, *further = (max(0, after - before) for before, after in pairwise(used))
    return graphs.buffer_bytes + first + (count - 1) * max(further, default=0)


def tell(predicted: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Logs where the memory goes, each figure beside its prediction."""
    parts = [
        f"{name} {abs(found[name]) / GIB:.2f} ({abs(predicted[name]) / GIB:.2f})"
        for name in ("weights", "activation peak", "context", "graphs", "KV cache")
    ]
    log.info("memory in GiB as measured (as predicted): %s", ", ".join(parts))
