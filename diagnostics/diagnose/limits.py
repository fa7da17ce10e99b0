"""Floors and ceilings: what the device can do at best, whatever the knobs, and where the steps' time goes."""

from __future__ import annotations

import numpy as np

from ...core.arithmetic.memory import GIB
from ...core.arithmetic.sizes import WeightBytes
from ...core.workload import Workload
from ..cost.speculation import SpeculativeCost, break_even_batch
from ..cost.step import StepCost
from ..simulate import PART_NAMES, PARTS, Prepared, Replay
from ..simulate.recorder import why_waiting
from .ceiling import output_ceiling, work_of
from .model import Limit


def hardware_limits(prepared: Prepared, workload: Workload) -> list[Limit]:
    """The least time per token and to the first one, and how many sequences the cache holds."""
    summary = workload.summary()
    context = summary.input_tokens_mean + summary.output_tokens_mean / 2
    cost = prepared.cost
    target = cost.target if isinstance(cost, SpeculativeCost) else cost
    alone = target.decode_step(1, context)
    read = WeightBytes(**prepared.budget.weights).read_by_one_token(prepared.shape)
    limits = [
        Limit(
            "tpot_floor_ms",
            prepared.fastest_token_ms(context),
            "ms",
            f"one decode step, which reads {read / GIB:.1f} GiB of weights: all except most rows of the embedding table",
        ),
        _first_token_floor(target, prepared, workload),
        *_weights_read(prepared, read, alone.total),
        Limit(
            "sequences_held",
            float(prepared.budget.sequences(summary.input_tokens_mean + summary.output_tokens_mean)),
            "sequences",
            "full sequences of this load that the KV cache holds",
        ),
    ]
    limits.append(output_ceiling(prepared, workload))
    if isinstance(cost, SpeculativeCost):
        limits.append(
            Limit(
                "speculation_pays_up_to",
                float(break_even_batch(cost, context, limit=512)),
                "sequences",
                f"above this batch {cost.drafted} drafts at an acceptance of {cost.acceptance:.0%} each cost more than they save",
            )
        )
    return limits


def _weights_read(prepared: Prepared, read: float, alone_ms: float) -> list[Limit]:
    """The time in which one token's weights are read; none where a processor's caches are faster than its memory."""
    took = read / (prepared.hardware.memory_bandwidth_gb_s * 1e9) * 1e3
    if took > alone_ms:
        return []
    why = f"all that one token reads, at the whole bandwidth of {prepared.hardware.name}; a step of one sequence takes"
    return [Limit("weights_read_ms", took, "ms", f"{why} {alone_ms:.1f} ms")]


def _first_token_floor(target: StepCost, prepared: Prepared, workload: Workload) -> Limit:
    """The least time to a first token that so many requests keep as a target asks for.

    By the prompt that the longest few percent exceed, and of it what no earlier request left in the cache.
    """
    work = work_of(workload, prepared.params.enable_prefix_caching)
    place = min(len(work.computed) - 1, int(prepared.targets.share * len(work.computed)))
    which = int(np.argsort(work.computed, kind="stable")[place])
    tokens, cached = max(1, int(work.computed[which])), int(work.cached[which])
    reach = float(np.mean(work.computed >= tokens))
    beside = f" behind {cached:,} cached ones" if cached else ""
    return Limit(
        "ttft_floor_ms",
        target.prefill_step(tokens, cached).total,
        "ms",
        f"the arithmetic of a prompt of {tokens:,} token{'s' if tokens > 1 else ''}{beside}, which {reach:.0%} of the requests reach or exceed",
    )


def seen_limits(seen: Replay) -> list[Limit]:
    """Where step time and waiting time went in the replay as it is."""
    shares = seen.log.shares()
    found = [
        Limit(f"step_share_{name}", shares[name], "share", f"of all step time goes to {PART_NAMES[name]}")
        for name in sorted(PARTS, key=lambda part: -shares[part])
        if shares[name] >= 0.02
    ]
    took = max(float(seen.log.column("end_s").max(initial=0.0)), 1e-9)
    found += [
        Limit(
            f"waiting_{cause}",
            seconds / took,
            "share",
            f"of the time somebody waits: {why_waiting(cause)}",
        )
        for cause, seconds in sorted(seen.log.blocked.items(), key=lambda item: -item[1])
    ]
    return found
