"""Every knob turned once, without looking for symptoms: what the replays alone can decide."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ..simulate import Replay
from .model import Bottleneck, Proposal
from .situation import Situation

MOST_SLOTS = 1024  # vLLM's own default on large devices
LESS_LEFT = (
    "gpu_memory_utilization 0.95 leaves little for NCCL and neighbours: watch for out-of-memory errors"
)
CHUNK = 2048  # prompt tokens a step, where the budget that is given is that of whole prompts


def turns(situation: Situation, seen: Replay) -> list[Proposal]:
    """One or two turns of each knob that could matter to what the replay as it is shows."""
    return [
        *_length(situation, seen),
        *_slots(situation, seen),
        *_fewer_at_once(situation, seen),
        *_budget(situation, seen),
        *_switches(situation, seen),
        *(_cache(situation) if _cache_binds(seen) and not _nobody_waits(situation) else ()),
        *_parallel(situation, seen),
    ]


def _nobody_waits(s: Situation) -> bool:
    """Whether the server says so, whatever a replay makes of the load."""
    return s.waiting == 0 and not s.kv_full and not s.preempting


def _cache_binds(seen: Replay) -> bool:
    """Whether the cache was ever nearly full; where it never was, more of it changes nothing."""
    kv = seen.result.kv
    full = kv is not None and kv.peak_used >= 0.9 * kv.blocks
    return full or bool(seen.result.preemptions) or "no_blocks" in seen.log.blocked


def _turn(
    bottleneck: Bottleneck, knob: str, before: Any, after: Any, why: str, *, lossy: bool = False
) -> Proposal:
    return Proposal(bottleneck=bottleneck, knob=knob, before=before, after=after, why=why, lossy=lossy)


def _length(s: Situation, seen: Replay) -> Iterator[Proposal]:
    """The context that the longest request needs, where some are refused for their length."""
    limit, result = s.value("max_model_len"), seen.result
    longest = max((record.input_tokens for record in seen.records), default=0)
    if not result.failed or not isinstance(limit, int) or longest < limit:
        return
    wanted = longest + max(record.output_tokens for record in seen.records)
    yield Proposal(
        bottleneck="context_length",
        knob="max_model_len",
        before=limit,
        after=-(-wanted // 1024) * 1024,
        why=f"{result.failed / result.requests:.0%} of the requests are refused: prompts have up to {longest:,} tokens and "
        f"max_model_len is {limit:,}",
        from_evidence=True,
    )


def _slots(s: Situation, seen: Replay) -> Iterator[Proposal]:
    slots = int(s.value("max_num_seqs"))
    most = int(seen.log.column("running").max(initial=0))
    waits = float(seen.log.column("waiting").max(initial=0)) > 0
    if most >= slots and waits and not _nobody_waits(s):
        clients = s.concurrency or (s.workload.concurrency if s.workload is not None else None)
        most = min(clients or sys.maxsize, s.fits_sequences or _held(seen), MOST_SLOTS)
        for after in sorted({2 * slots, max(slots + 1, min(4 * slots, most)), max(slots + 1, most)}):
            yield _turn(
                "admission_cap",
                "max_num_seqs",
                slots,
                after,
                f"all {slots} slots are taken while requests wait in {_share(seen, 'no_slot'):.0%} of the time",
            )
    if seen.result.preemptions:
        steady = int(seen.log.column("running").mean() * 0.9) or 1
        for after in dict.fromkeys((s.fits_sequences or steady, steady)):
            if after < slots:
                yield _turn(
                    "preemption",
                    "max_num_seqs",
                    slots,
                    after,
                    f"{seen.result.preemptions} preemptions in the replay: more is admitted than the cache holds to the end",
                )


def _held(seen: Replay) -> int:
    """Full sequences of the load's mean length that the cache holds."""
    done = [r.input_tokens + r.output_tokens for r in seen.records if r.error is None]
    return int(seen.kv_tokens * len(done) / sum(done)) if done else sys.maxsize


def _fewer_at_once(s: Situation, seen: Replay) -> Iterator[Proposal]:
    """So many sequences at once that a token keeps the target, where the batch is what breaks it.

    A mean time per token has a share of the prompts that are computed beside it; a single gap is a step's.
    """
    target, slots = s.targets.tpot_ms or s.targets.itl_ms, int(s.value("max_num_seqs"))
    if target is None:
        return
    took, decodes = seen.log.column("duration_ms"), seen.log.column("decodes")
    plain = (seen.log.column("prefill_tokens") == 0) & (decodes > 0)
    if not plain.any() or np.ptp(decodes[plain]) < 4 or float(np.percentile(took[plain], 90)) <= target:
        return
    each, base = np.polyfit(decodes[plain], took[plain], 1)
    beside = float((took - base - each * decodes)[~plain].sum() / decodes.sum()) if s.targets.tpot_ms else 0.0
    each += max(0.0, beside)
    fits = int((0.9 * target - base) / each) if each > 0 else 0
    if 1 <= fits < min(slots, int(decodes.max())):
        reads = seen.log.shares()["decode_attention"] > 0.3
        prompts = ", prompts beside it counted" if beside > 0 else ""
        yield _turn(
            "kv_bandwidth" if reads else "compute",
            "max_num_seqs",
            slots,
            fits,
            f"a decode step takes {base:.1f} ms and {each:.2f} ms for each sequence{prompts}: more than {fits} at once "
            f"break the target of {target:g} ms",
        )


def _share(seen: Replay, cause: str) -> float:
    took = float(seen.log.column("duration_ms").sum()) / 1e3
    return seen.log.blocked.get(cause, 0.0) / took if took else 0.0


def _budget(s: Situation, seen: Replay) -> Iterator[Proposal]:
    budget = int(s.value("max_num_batched_tokens"))
    if s.value("enable_chunked_prefill") is False:
        yield from _chunking(s, seen)
        return
    tokens = seen.log.column("decodes") + seen.log.column("prefill_tokens")
    spent = float(tokens.max(initial=0.0)) >= 0.9 * budget
    if budget < 16384 and spent:
        yield _turn(
            "token_budget",
            "max_num_batched_tokens",
            budget,
            min(16384, 4 * budget),
            f"the {budget:,} tokens of a step are spent while prompts wait",
        )
    for smaller in _smaller_budgets(s, seen, budget, float(tokens.max(initial=0.0))):
        yield _turn(
            "prefill_interference",
            "max_num_batched_tokens",
            budget,
            smaller,
            f"decodes share steps with up to {budget:,} prompt tokens",
        )
    if not s.value("long_prefill_token_threshold") and spent:
        yield _turn(
            "prefill_interference",
            "long_prefill_token_threshold",
            0,
            max(16, budget // 2),
            "one long prompt takes the whole step",
        )


def _chunking(s: Situation, seen: Replay) -> Iterator[Proposal]:
    """Chunks of the release's own size, and of one that keeps gaps short where the configuration fixes the budget."""
    whole = _turn(
        "prefill_interference",
        "enable_chunked_prefill",
        False,
        True,
        "prompts are computed whole, and every running sequence waits for them",
    )
    yield whole
    if not s.given("max_num_batched_tokens"):
        return
    chunk = CHUNK
    if s.targets.itl_ms is not None:
        chunk = max(128, min(CHUNK, _within(seen, s.targets.itl_ms) or CHUNK))
    if chunk < int(s.value("max_num_batched_tokens")):
        yield replace(
            whole,
            changes={"enable_chunked_prefill": True, "max_num_batched_tokens": chunk},
            was={"max_num_batched_tokens": int(s.value("max_num_batched_tokens"))},
            advice=f"With --max-num-batched-tokens {chunk}, the size of a chunk",
        )


def _smaller_budgets(s: Situation, seen: Replay, budget: int, most: float) -> list[int]:
    """A quarter of the budget, and what keeps a step within the target between tokens.

    That and twice as much; up to eight times where decodes alone take half the target: so many run at once because each
    waits for the others' prompts, and steps are shorter with the budget turned.
    """
    found = [max(256, budget // 4)] if budget > 512 and most > budget / 4 else []
    if s.targets.itl_ms is not None:
        within = _within(seen, s.targets.itl_ms)
        if within is not None and 64 <= within < budget:
            alone = seen.log.column("duration_ms")[seen.log.column("prefill_tokens") == 0]
            crowded = float(np.percentile(alone, 90)) > s.targets.itl_ms / 2
            sizes = (within * times for times in ((1, 2, 4, 8) if crowded else (1, 2)))
            found[:0] = [size for size in sizes if size < budget]
    return list(dict.fromkeys(found))


def _within(seen: Replay, target_ms: float) -> int | None:
    """The power of two of prompt tokens that a step beside decodes may have within a time, by the replay's own steps."""
    took, prompts = seen.log.column("duration_ms"), seen.log.column("prefill_tokens")
    alone = took[prompts == 0]
    if not len(alone) or not prompts.any():
        return None
    base = float(np.percentile(alone, 90))
    each = float((took[prompts > 0] - base).clip(0).sum() / prompts.sum())
    room = (0.9 * target_ms - base) / max(each, 1e-9)
    return 2 ** int(np.log2(room)) if room >= 1 else None


def _switches(s: Situation, seen: Replay) -> Iterator[Proposal]:
    if s.value("enable_prefix_caching") is False:
        yield _turn(
            "repeated_prefill",
            "enable_prefix_caching",
            False,
            True,
            "shared prefixes are computed again each time",
        )
    if s.value("enforce_eager") is True:
        yield _turn(
            "kernel_launch", "enforce_eager", True, False, "the device waits for kernels to be launched"
        )
    if offloaded := float(s.value("cpu_offload_gb") or 0):
        share = seen.log.shares()["transfer"]
        why = f"weights in the host's memory are read over its link in every step: {share:.0%} of the steps' time"
        for less in dict.fromkeys((0, round(offloaded / 2, 1))):
            yield _turn("weight_bandwidth", "cpu_offload_gb", offloaded, less, why)
    yield from _graphs(s, seen)
    if s.value("async_scheduling") is False:
        yield _turn(
            "host", "async_scheduling", False, True, "the device waits while the next step is planned"
        )
    processes = int(s.value("api_server_count") or 1)
    if seen.frontend_busy > 0.5:
        yield _turn(
            "host",
            "api_server_count",
            processes,
            4 * processes,
            f"the HTTP process is busy {seen.frontend_busy:.0%} of the time",
        )
    told = s.speculation
    if told:
        drafted = int(told.get("num_speculative_tokens") or 3)
        for fewer in sorted({0, 1} - {drafted}):
            yield _turn(
                "speculation", "num_speculative_tokens", drafted, fewer, "drafts cost more than they give"
            )


def _graphs(s: Situation, seen: Replay) -> Iterator[Proposal]:
    """Graphs for the batches that run, where the largest captured one is smaller."""
    limit, most = s.graph_limit, int(seen.log.column("decodes").max(initial=0))
    if limit and most > limit and seen.log.shares()["launch"] > 0.02:
        yield _turn(
            "kernel_launch",
            "max_cudagraph_capture_size",
            limit,
            -(-most // 8) * 8,
            f"batches of up to {most} run and the largest captured graph holds {limit}",
        )


def _cache(s: Situation) -> Iterator[Proposal]:
    now = s.utilization
    why = "requests wait for KV blocks"
    if now < 0.949:
        yield replace(_turn("kv_capacity", "gpu_memory_utilization", now, 0.95, why), advice=LESS_LEFT)
    dtype = str(s.value("kv_cache_dtype") or "auto")
    if "fp8" not in dtype:
        yield _turn(
            "kv_capacity", "kv_cache_dtype", dtype, "fp8", f"{why}; in FP8 a token needs half", lossy=True
        )


def _parallel(s: Situation, seen: Replay) -> Iterator[Proposal]:
    size, copies = int(s.value("tensor_parallel_size") or 1), int(s.value("data_parallel_size") or 1)
    share = seen.log.shares()["communication"]
    if size == 1 or not s.subject.known or share <= 0.1:
        return
    for parts in dict.fromkeys((size // 2, 1)):
        more = copies * size // parts
        yield Proposal(
            bottleneck="communication",
            knob="tensor_parallel_size",
            before=size,
            after=parts,
            changes={"tensor_parallel_size": parts, "data_parallel_size": more},
            was={"data_parallel_size": copies},
            why=f"{share:.0%} of each step the devices exchange their parts of a layer",
            advice=f"The freed devices run other copies: the figures are of {more} copies on the same devices",
        )
