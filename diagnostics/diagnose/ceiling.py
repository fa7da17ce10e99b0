"""The most output tokens a second that a configuration can give under a load: a bound, not an estimate.

Every part of a step's time is bounded from below by itself. Parts that depend on how many tokens a step has are
taken at the best size that the slots, the token budget and the cache allow on average, prompts computed beside
decodes; attention is paid for each token; waiting, ramps, launches and evictions are nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import numpy as np

from ...core.workload import Workload, WorkloadRequest
from ..cost.speculation import SpeculativeCost, tokens_per_step
from ..simulate import Prepared
from .model import Limit

READ_REQUESTS = 1024  # of the load, whose lengths stand for all


@dataclass(frozen=True, slots=True)
class Work:
    """What a load asks of an engine. Arrays have one entry a request; shared prefixes are computed and held once."""

    outputs: np.ndarray
    computed: np.ndarray  # prompt tokens that no earlier request left in the cache
    cached: np.ndarray  # prompt tokens before them
    held: np.ndarray  # prompt tokens whose blocks nobody else uses

    @property
    def decode_contexts(self) -> np.ndarray:
        """Tokens that each decode attends to, of all requests one after the other."""
        prompts = self.computed + self.cached
        told = [prompt + np.arange(1, out) for prompt, out in zip(prompts, self.outputs, strict=True)]
        return np.concatenate(told) if told else np.empty(0)

    @property
    def held_steps(self) -> float:
        """Tokens in the cache, summed over the decodes of all requests."""
        decodes = self.outputs - 1
        return float((decodes * self.held + decodes * self.outputs / 2).sum())


def work_of(workload: Workload, reuses_prefixes: bool) -> Work:
    """The work of the load's first requests."""
    requests = list(islice(workload.requests(), READ_REQUESTS))
    owners: dict[int, set[int]] = defaultdict(set)
    for request in requests:
        for segment in request.segments:
            owners[segment.content].add(request.session if request.session >= 0 else -2 - request.index)
    seen: dict[int, int] = {}
    rows = []
    for request in requests:
        cached = _cached(request, seen) if reuses_prefixes else 0
        shared = sum(s.tokens for s in request.segments if len(owners[s.content]) > 1)
        held = request.input_tokens - (shared if reuses_prefixes else 0)
        rows.append((request.output_tokens, request.input_tokens - cached, cached, held))
    return Work(*np.array(rows, dtype=np.int64).reshape(-1, 4).T)


def _cached(request: WorkloadRequest, seen: dict[int, int]) -> int:
    """Leading prompt tokens that earlier requests computed, never the last one; and marks this request's own."""
    cached, leading = 0, True
    for segment in request.segments:
        known = min(segment.tokens, seen.get(segment.content, 0))
        cached += known if leading else 0
        leading = leading and known == segment.tokens
        seen[segment.content] = max(segment.tokens, seen.get(segment.content, 0))
    seen[request.answer] = max(request.output_tokens, seen.get(request.answer, 0))
    return min(cached, request.input_tokens - 1)


def output_ceiling(prepared: Prepared, workload: Workload) -> Limit:
    """Output tokens a second of all copies together, which no replay of the load exceeds."""
    copies = int(prepared.value("data_parallel_size") or 1)
    work = work_of(workload, prepared.params.enable_prefix_caching)
    outputs = float(work.outputs.sum())
    capacity = prepared.setup(workload, copies).params.num_blocks * prepared.settings.block_size
    bounds = _least_steps(prepared, work, capacity)
    if workload.concurrency:
        together = max(1, min(workload.concurrency, len(work.outputs)) // copies)
        bounds.append((outputs / _gained(prepared) / together, "there are clients"))
    steps, what = max(bounds)
    took_ms = _least_ms(prepared, work, max(1.0, steps))
    return Limit(
        "output_ceiling_tokens_per_s",
        copies * 1e3 * outputs / took_ms,
        "tokens/s",
        f"{outputs / max(1.0, steps):,.0f} sequences a step on average, as many as {what}, and each prompt's "
        f"{work.computed.mean():,.0f} tokens computed beside them",
    )


def _least_steps(prepared: Prepared, work: Work, capacity: int) -> list[tuple[float, str]]:
    """The fewest steps that slots, budget and cache let the load take, each with its name."""
    params, gained = prepared.params, _gained(prepared)
    outputs, prompts = float(work.outputs.sum()), float(work.computed.sum())
    longest = int((work.computed + work.cached).max(initial=1))
    budget = max(params.max_num_batched_tokens, 1 if params.enable_chunked_prefill else longest)
    return [
        (outputs / gained / params.max_num_seqs, "the slots hold"),
        ((outputs / gained + prompts) / budget, "the token budget allows"),
        (work.held_steps / gained / max(1, capacity), "the cache's blocks hold"),
    ]


def _least_ms(prepared: Prepared, work: Work, steps: float) -> float:
    """The least time of the load in at least so many steps."""
    cost, gained = prepared.cost, _gained(prepared)
    target = cost.target if isinstance(cost, SpeculativeCost) else cost
    verified = cost.drafted + 1 if isinstance(cost, SpeculativeCost) else 1
    decodes = float((work.outputs - 1).sum())
    tokens = decodes * verified + float(work.computed.sum())
    samples = decodes * verified + len(work.outputs)
    took = tokens * _cheapest(lambda size: target.tokens_ms(size) + target.planning_floor_ms, tokens / steps)
    took += samples * _cheapest(target.samples_ms, samples / steps)
    took += target.attention_ms(work.decode_contexts, work.computed, work.cached)
    took += float(work.outputs.sum()) * prepared.hardware.host.sequence_us / 1e3
    return took / gained


def _gained(prepared: Prepared) -> float:
    """Tokens that a decode gives in a step."""
    cost = prepared.cost
    return tokens_per_step(cost.drafted, cost.acceptance) if isinstance(cost, SpeculativeCost) else 1.0


def _cheapest(took_ms: Callable[[int], float], most: float) -> float:
    """The least time of one of many, in steps that have at most `most` of them on average.

    Steps may be larger and smaller than their average: what counts is the lower convex hull of the times.
    """
    top = max(8.0, 4 * most)
    sizes = sorted({1, 2, 4, *(int(-(-(8 * 1.12**i) // 8) * 8) for i in range(200) if 8 * 1.12**i <= top)})
    hull = _lower_hull([(float(size), took_ms(size)) for size in sizes])
    x, y = np.array(hull).T
    points = [max(1.0, most), *x[x <= most]]
    return min(float(np.interp(point, x, y)) / point for point in points)


def _lower_hull(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The lower convex hull of points in ascending order."""
    hull: list[tuple[float, float]] = []
    for x, y in points:
        while len(hull) >= 2 and (hull[-1][1] - hull[-2][1]) * (x - hull[-2][0]) >= (y - hull[-2][1]) * (
            hull[-1][0] - hull[-2][0]
        ):
            hull.pop()
        hull.append((x, y))
    return hull
