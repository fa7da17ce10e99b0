"""Rules that read a mechanism from the evidence and propose the knob behind it. Replays decide, not they.

Each rule is a function of the situation; it proposes where the mechanism's own marks are seen, with the value
that removes it. `ALL` is in the order in which they are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..cost.speculation import tokens_per_step
from .fitted_cost import acceptance_of_each
from .model import Bottleneck, Proposal
from .situation import Situation, preemption_marks
from .step_times import ASSUMED_ACCEPTANCE, card_read_ms, plain_and_drafted_ms

Rule = Callable[[Situation], Iterator[Proposal]]

MORE_MEMORY = (
    "More KV memory (--gpu-memory-utilization, --tensor-parallel-size or a larger device) or a narrower cache "
    "(--kv-cache-dtype fp8) would hold more sequences"
)
RESERVING = (
    "From vLLM 0.19.0 --scheduler-reserve-full-isl (on by default) admits a prompt only when all of it fits; from 0.25.0 "
    "--watermark keeps blocks free. "
)


def preemption(s: Situation) -> Iterator[Proposal]:
    """Sequences are evicted and computed again: counted, logged, or seen as hits that no shared prefix explains."""
    marks = preemption_marks(s)
    if not marks or s.no_preemption_told:
        return
    fits = s.fits_sequences
    slots = int(s.value("max_num_seqs"))
    seen = s.running or slots
    target = fits if fits is not None else max(1, int(seen * 0.9 / max(s.kv_usage or 1.0, 0.5)))
    if target < slots:
        yield Proposal(
            bottleneck="preemption",
            knob="max_num_seqs",
            before=slots,
            after=target,
            why=f"{marks}: sequences are preempted and computed again. The KV cache holds {target} full sequences "
            f"and max_num_seqs admits {slots}",
            advice=f"{MORE_MEMORY}. {'' if s.subject.sglang else RESERVING}Watch vllm:num_preemptions_total",
            from_evidence=True,
        )
    yield from _more_cache(s, "preemption", f"{marks}: the KV cache is too small for what is admitted")


def kv_capacity(s: Situation) -> Iterator[Proposal]:
    """The cache is full and requests wait: more slots would not let them in."""
    running, slots = s.running, int(s.value("max_num_seqs"))
    if preemption_marks(s) or not s.kv_full or not (s.waiting or 0):
        return
    usage = f"{s.kv_usage:.1%} full" if s.kv_usage is not None else "full"
    shown = f"{running:g} requests run" if running is not None else "requests run"
    why = (
        f"the KV cache is {usage} while {shown} of max_num_seqs {slots}, and {s.waiting:g} wait: requests wait "
        "for KV blocks, not for slots"
    )
    yield from _more_cache(s, "kv_capacity", why)


def _more_cache(s: Situation, bottleneck: Bottleneck, why: str) -> Iterator[Proposal]:
    now = s.utilization
    advice = f"{MORE_MEMORY}; shorter contexts need less. More --max-num-seqs would only make requests preempt each other"
    most = 0.93 if s.subject.sglang else 0.95  # there activations and graphs live outside the fraction
    if now < most - 0.001:
        yield Proposal(
            bottleneck=bottleneck,
            knob="gpu_memory_utilization",
            before=now,
            after=most,
            why=why,
            advice=advice,
            from_evidence=True,
        )
    if "fp8" not in str(s.value("kv_cache_dtype")):
        yield Proposal(
            bottleneck=bottleneck,
            knob="kv_cache_dtype",
            before=s.value("kv_cache_dtype") or "auto",
            after="fp8",
            why=f"{why}. In FP8 each token needs half the room",
            advice=advice,
            from_evidence=True,
            lossy=True,
        )


def admission_cap(s: Situation) -> Iterator[Proposal]:
    """As many run as may, others wait, and the cache has room."""
    slots, wanted = int(s.value("max_num_seqs")), s.concurrency
    pinned = s.running is not None and s.running >= 0.95 * slots and (s.waiting or 0) >= 1
    untold = s.running is None and s.given("max_num_seqs") and wanted is not None and wanted > slots
    if not (pinned or untold) or s.kv_full or wanted is None or wanted <= slots:
        return
    fits = s.fits_sequences
    target = min(wanted, fits) if fits and s.evidence.value("kv_usage") else wanted
    if target <= slots:
        return
    seen = f"{s.running:g} requests run, exactly max_num_seqs" if pinned else f"max_num_seqs is {slots}"
    usage = f", with the KV cache only {s.kv_usage:.0%} full" if s.kv_usage is not None else ""
    yield Proposal(
        bottleneck="admission_cap",
        knob="max_num_seqs",
        before=slots,
        after=target,
        why=f"{seen}, and {max(0, wanted - slots)} wait for a slot{usage}: the time to first token is queueing",
        advice="Check that --max-num-batched-tokens is not below the new --max-num-seqs",
        from_evidence=True,
    )


def prefill_interference(s: Situation) -> Iterator[Proposal]:
    """Somebody's prompt holds up others: late first tokens behind a long prompt, or gaps between tokens."""
    budget = int(s.value("max_num_batched_tokens"))
    gap, usual = s.spiky_gaps or (None, None)
    spiky = s.spiky_gaps is not None
    if s.value("enable_chunked_prefill") is False and (spiky or s.stalled_ttft or _rises(s, "itl_ms")):
        seen = (
            f"p99 between tokens is {gap:.3g} ms and the usual {usual:.3g} ms" if spiky else "decodes stall"
        )
        yield Proposal(
            bottleneck="prefill_interference",
            knob="enable_chunked_prefill",
            before=False,
            after=True,
            why=f"{seen}: prompts are computed whole, and every running sequence waits for them",
            advice="--max-num-batched-tokens then sets the size of a chunk: smaller keeps tokens even, larger is faster",
            from_evidence=True,
        )
        return
    if s.stalled_ttft is not None and not s.value("long_prefill_token_threshold"):
        late, early = s.stalled_ttft
        half = max(16, budget // 2)
        yield Proposal(
            bottleneck="prefill_interference",
            knob="long_prefill_token_threshold",
            before=int(s.value("long_prefill_token_threshold") or 0),
            after=half,
            why=f"the first token takes {(late.value or 0) / 1e3:g} s ({late.qualifier}) and {(early.value or 0) / 1e3:g} s "
            f"({early.qualifier}): one long prompt takes all {budget:,} tokens of every step until it is done, and a short "
            "one cannot enter. The cap leaves the rest of each step to the others",
            advice="The long prompt itself takes longer in the same proportion",
            from_evidence=True,
        )
    if spiky and s.value("enable_chunked_prefill") is not False and budget > 512:
        smaller = max(512, budget // 4)
        yield Proposal(
            bottleneck="prefill_interference",
            knob="max_num_batched_tokens",
            before=budget,
            after=smaller,
            why=f"p99 between tokens is {gap:.3g} ms and the usual {usual:.3g} ms: decodes share steps with chunks of up to "
            f"{budget:,} prompt tokens",
            advice="Smaller chunks lengthen the first token of long prompts a little",
            from_evidence=True,
        )


def _rises(s: Situation, name: str) -> bool:
    return s.evidence.trend(name) in ("rising", "high")


def token_budget(s: Situation) -> Iterator[Proposal]:
    """Requests wait though slots and cache are free: each step's tokens are spent."""
    budget, slots = int(s.value("max_num_batched_tokens")), int(s.value("max_num_seqs"))
    running = s.running or 0
    waits = (s.waiting or 0) >= 1
    if not waits or s.kv_full or running >= 0.9 * slots or budget >= 16384:
        return
    after = min(16384, budget * 4)
    yield Proposal(
        bottleneck="token_budget",
        knob="max_num_batched_tokens",
        before=budget,
        after=after,
        why=f"{s.waiting:g} requests wait while only {running:g} of {slots} slots are used and the KV cache has room: each "
        f"step's {budget:,} tokens are spent on prompts",
        advice="Larger steps make the gaps between tokens longer",
        from_evidence=True,
    )


def repeated_prefill(s: Situation) -> Iterator[Proposal]:
    """Prompts share prefixes and each is computed from its first token."""
    if s.value("enable_prefix_caching") is not False or not (s.shares_prefix or _turns(s)):
        return
    yield Proposal(
        bottleneck="repeated_prefill",
        knob="enable_prefix_caching",
        before=False,
        after=True,
        why="prompts share prefixes and prefix caching is off: the shared tokens are computed again for every request",
        advice="A cached prefix costs nothing but the blocks that would lie idle",
        from_evidence=True,
    )


def _turns(s: Situation) -> bool:
    return any(word in s.words for word in ("multi-turn", "agent", "few-shot", "conversation", "rag"))


def kernel_launch(s: Situation) -> Iterator[Proposal]:
    """Few sequences, a step far above what the device needs, and kernels launched one by one."""
    if s.value("enforce_eager") is not True:
        yield from _missed_graphs(s)
        return
    busy = s.running or s.concurrency or 1
    step = s.figure("tpot_ms", "mean", "p50") or s.figure("itl_ms", "mean", "p50")
    alone = s.figure("request_output_tokens_per_s")
    step = step or (1e3 / alone if alone else None)
    floor = card_read_ms(s)
    seen = f"a decode step takes {step:.0f} ms with {busy:g} running" if step else "decode steps are small"
    if step and floor:
        gpu = s.subject.gpu or "the device"
        seen += f", and reading every byte that fits {gpu} takes {floor:.0f} ms"
    yield Proposal(
        bottleneck="kernel_launch",
        knob="enforce_eager",
        before=True,
        after=False,
        why=f"{seen}: with --enforce-eager the host launches each kernel of each layer, and the device waits for it",
        advice="CUDA graphs need a longer start and some memory; if eager mode was there to save memory, lower "
        "--max-num-seqs or capture fewer sizes instead",
        from_evidence=True,
    )


def _missed_graphs(s: Situation) -> Iterator[Proposal]:
    """More sequences run than the largest captured graph holds."""
    limit, running = s.graph_limit, s.running or s.concurrency
    if not limit or not running or not s.missed_graphs:
        return
    wanted = min(int(s.value("max_num_seqs")), max(int(running), s.concurrency or 0))
    yield Proposal(
        bottleneck="kernel_launch",
        knob="max_cudagraph_capture_size",
        before=limit,
        after=-(-max(wanted, limit + 1) // 8) * 8,
        why=f"{running:g} sequences run and the largest captured graph holds {limit}: beyond it the host launches each "
        "kernel of each layer",
        advice="Captured sizes are 1, 2, 4 and multiples of 8 (--cudagraph-capture-sizes lists others); each costs a little "
        "memory and start-up time. With drafted tokens a sequence counts once for each token verified",
        from_evidence=True,
    )


def speculation(s: Situation) -> Iterator[Proposal]:
    """Drafts cost more than the accepted ones save."""
    told, rate = s.speculation, s.acceptance
    plain, with_drafts = plain_and_drafted_ms(s)
    loses = plain is not None and with_drafts is not None and with_drafts > plain
    if told is None or (rate is None and not loses):
        return
    drafted = int(told.get("num_speculative_tokens") or 3)
    known = rate is not None
    rate = rate if rate is not None else ASSUMED_ACCEPTANCE
    if rate >= 0.75 and not loses:
        return
    each = acceptance_of_each(rate, drafted)
    gained = tokens_per_step(drafted, each)
    seen = (
        [f"acceptance is {rate:.0%}: {drafted} drafted tokens give {gained:.2f} tokens a step"]
        if known
        else []
    )
    if loses:
        seen.append(f"a token takes {with_drafts:g} ms with drafts and {plain:g} ms without")
    for fewer in sorted({1, max(1, drafted // 2), 0}):
        if fewer < drafted:
            yield Proposal(
                bottleneck="speculation",
                knob="num_speculative_tokens",
                before=drafted,
                after=fewer,
                why=", and ".join(seen),
                advice="A draft that is accepted more often (an EAGLE or MTP head of this model) helps more than fewer tokens; "
                "with many sequences at once verification is no longer free and speculation should be off "
                "(--speculative-config)",
                from_evidence=True,
            )


def host(s: Situation) -> Iterator[Proposal]:
    """The device idles, nobody waits in the engine, and one process's core is busy."""
    cpu, idle = s.figure("host_cpu"), _low(s, "gpu_util", 0.6)
    processes = int(s.value("api_server_count") or 1)
    if (cpu or 0) < 0.9 or (s.waiting or 0) >= 1 or s.kv_full or not (idle or s.figure("gpu_util") is None):
        return
    yield Proposal(
        bottleneck="host",
        knob="api_server_count",
        before=processes,
        after=max(4, 2 * processes) if processes > 1 else 4,
        why=f"the HTTP process uses {cpu:.0%} of a core while the device idles and nobody waits in the engine: requests wait "
        "for tokenising and streaming",
        advice="It needs spare cores. --stream-interval above 1 sends fewer, larger chunks",
        from_evidence=True,
    )


def _low(s: Situation, name: str, below: float) -> bool:
    value = s.figure(name)
    return value < below if value is not None else s.evidence.trend(name) == "low"


ALL: tuple[Rule, ...] = (
    preemption,
    speculation,
    prefill_interference,
    admission_cap,
    repeated_prefill,
    kv_capacity,
    host,
    kernel_launch,
    token_budget,
)


def propose(situation: Situation, rules: tuple[Rule, ...] = ALL) -> list[Proposal]:
    """What every rule proposes, in order."""
    return [proposal for rule in rules for proposal in rule(situation)]
