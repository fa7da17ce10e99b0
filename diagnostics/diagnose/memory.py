"""The verdict of a server that does not start: arithmetic over its own message, or over the budget."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from ...core.arithmetic.memory import GIB, MemoryBudget
from ...core.errors import CamshaftError
from ..compat.releases.table import option_of
from ..evidence import Event
from ..simulate.room import within_error
from .flags import has_knobs, refused_options
from .model import Bottleneck, Change, Verdict
from .situation import Situation

if TYPE_CHECKING:
    from ..simulate import Prepared

STREAMED = (0, 15)  # from here on weights are narrowed as they are loaded (vLLM pull 31914, January of 2026)
HARMLESS_UTILIZATION = (
    0.95  # beyond it little is left for neighbours: fewer sequences at once are the lesser evil
)
SAFE_UTILIZATION = 0.97  # beyond it the driver's own needs do not fit


def refused_at_start(situation: Situation) -> Verdict | None:
    """The verdict on a start-up failure in the evidence; None where there is none."""
    evidence = situation.evidence
    event = evidence.event("kv_does_not_fit")
    if event is not None and "needed_gib" in event.numbers:
        return _missing(situation, event)
    if event is not None:
        return _too_long(event)
    if (event := evidence.event("free_memory_low")) is not None and "total_gib" in event.numbers:
        return _taken(situation, event)
    if evidence.event("no_kv_memory") is not None or evidence.event("out_of_memory") is not None:
        return _nothing_left(situation)
    return None if evidence.ran or evidence.events or evidence.trace else _refused_options(situation)


def _refused_options(situation: Situation) -> Verdict | None:
    """The release refuses an option or a combination; a server that was seen to run is not doubted."""
    reasons = refused_options(situation.subject)
    if not reasons:
        return None
    return Verdict(
        bottleneck="refused",
        why=" ".join(reasons),
        confidence="measured",
        advice="`engine check-flags` lists every finding and mends what it can (--fix); --version names another release",
    )


def _missing(situation: Situation, event: Event) -> Verdict:
    """`x GiB is needed, larger than the available y GiB`: the difference as a share of the device."""
    needed, available = event.numbers["needed_gib"], event.numbers["available_gib"]
    length = int(event.numbers["max_model_len"])
    missing = needed - available
    now = situation.utilization
    fits = int(event.numbers.get("estimated_max_model_len") or length * max(available, 0) / needed)
    total = _device_gib(situation)
    narrower = (
        f"--kv-cache-dtype fp8, which halves the need to {needed / 2:.2f} GiB"
        if needed / 2 <= available
        else f"--kv-cache-dtype fp8, with which twice that length fits, {2 * fits} tokens"
    )
    why = (
        f"one request of max_model_len {length} needs {needed:g} GiB of KV cache and {available:g} GiB are left: "
        f"{missing:.2f} GiB are missing"
    )
    shorter = {"kv_needed_gib": (needed, needed * fits / length)}
    if total is None:
        advice = (
            f"Or {narrower}; name the device with --gpu to get the --gpu-memory-utilization that holds it"
        )
        why += "; --gpu-memory-utilization and --max-model-len decide it"
        return _verdict("max_model_len", (length, fits), why, advice, shorter)
    share = missing / total
    wanted = math.ceil((now + share) * 100 - 1e-9) / 100
    why += f" ({share:.3f} of the {situation.subject.gpu}'s {total:g} GiB)"
    if wanted <= SAFE_UTILIZATION:
        more = {"kv_gib": (available, available + (wanted - now) * total)}
        advice = f"Or --max-model-len {fits} fits as it is; or {narrower}"
        return _verdict("gpu_memory_utilization", (now, wanted), why, advice, more)
    why += f"; --gpu-memory-utilization {wanted:.2f} would be needed, which leaves the driver no room"
    return _verdict("max_model_len", (length, fits), why, f"Or {narrower}", shorter)


def _device_gib(situation: Situation) -> float | None:
    device = situation.subject.hardware or situation.subject.device
    return None if device is None else device.memory_gib


def _verdict(
    knob: str, turned: tuple[Any, Any], why: str, advice: str, figure: dict[str, tuple[float, float]]
) -> Verdict:
    """figure: what is predicted, as it is and turned, in GiB."""
    changes = {
        name: Change(before=max(0.0, before), after=after, low=after * 0.95, high=after)
        for name, (before, after) in figure.items()
    }
    return Verdict(
        bottleneck="kv_does_not_fit",
        knob=knob,
        before=turned[0],
        after=turned[1],
        why=why,
        confidence="measured",
        predicted=changes,
        advice=advice,
    )


def _too_long(event: Event) -> Verdict:
    """V0's message gives tokens: the length that fits is the cache's."""
    length, holds = int(event.numbers["max_model_len"]), int(event.numbers["kv_tokens"])
    return Verdict(
        bottleneck="kv_does_not_fit",
        knob="max_model_len",
        before=length,
        after=holds,
        why=f"one request of max_model_len {length} needs more than the {holds} tokens that the KV cache holds",
        confidence="measured",
        predicted={"kv_tokens": Change(before=holds, after=holds, low=holds, high=holds)},
        advice=f"To keep --max-model-len {length}, raise --gpu-memory-utilization "
        f"(the cache must grow by {length / max(holds, 1) - 1:.0%}) or halve the need with --kv-cache-dtype fp8",
    )


def _taken(situation: Situation, event: Event) -> Verdict:
    """Another process holds memory: less may be asked for."""
    free, total = event.numbers["free_gib"], event.numbers["total_gib"]
    now = event.numbers.get("utilization") or situation.utilization
    after = math.floor(free / total * 100) / 100
    return Verdict(
        bottleneck="kv_does_not_fit",
        knob="gpu_memory_utilization",
        before=now,
        after=after,
        why=f"{free:g} of {total:g} GiB are free and --gpu-memory-utilization {now:g} asks for {now * total:.2f} GiB: "
        f"{now * total - free:.2f} GiB are missing because something else uses the device",
        confidence="measured",
        predicted={"usable_gib": Change(before=free, after=after * total, low=after * total, high=free)},
        advice="Or stop what else uses the device; with less memory --max-model-len may have to shrink too",
    )


def _nothing_left(situation: Situation) -> Verdict:
    """Weights and activations leave nothing: fewer sequences and tokens a step shrink the activations."""
    text = " ".join(event.message for event in situation.evidence.events).lower()
    dummies = re.search(r"with (\d+) dummy requests", text)  # vLLM tries the sampler with as many as may run
    slots = int(dummies[1]) if dummies else int(situation.value("max_num_seqs"))
    now = situation.utilization
    exhausted = situation.evidence.event("out_of_memory") is not None
    if exhausted and ("sampler" in text or "dummy requests" in text or slots > 256):
        knob, before, after = "max_num_seqs", slots, max(16, slots // 4)
        why = f"the device's memory runs out while the sampler is tried at max_num_seqs {slots}: its logits are that many rows"
    elif exhausted:
        knob, before, after = "gpu_memory_utilization", now, round(max(0.5, now - 0.05), 2)
        why = f"the device's memory runs out beside what --gpu-memory-utilization {now:g} sets aside"
    else:
        knob, before, after = "gpu_memory_utilization", now, max(0.95, min(now + 0.05, SAFE_UTILIZATION))
        why = f"weights and activations fill all that --gpu-memory-utilization {now:g} allows: nothing is left for KV blocks"
    return Verdict(
        bottleneck="kv_does_not_fit",
        knob=knob,
        before=before,
        after=after,
        why=why,
        confidence="thin",
        advice="Lower --max-num-seqs and --max-num-batched-tokens shrink the activations, --max-model-len the need; "
        "otherwise smaller weights (--quantization) or more devices (--tensor-parallel-size). Name --gpu and --model for "
        "the arithmetic",
    )


def refused_by_budget(prepared: Prepared, situation: Situation) -> Verdict:
    """A configuration whose budget does not fit, with the first single turn that makes it fit."""
    budget = prepared.budget
    small = budget.weights_bytes < budget.total_bytes
    bottleneck: Bottleneck = "kv_does_not_fit" if small else "weights_do_not_fit"
    why = (
        f"{budget.arithmetic()}, and one request of max_model_len {budget.max_model_len} needs "
        f"{budget.one_request_bytes / GIB:.2f} GiB: {budget.missing_bytes / GIB:.2f} GiB are missing "
        f"({budget.missing_bytes / budget.total_bytes:.1%} of the device)"
    )
    doubt = within_error(budget)
    why = f"{why}; {doubt}" if doubt else why
    turns = _turns(prepared, situation)
    if not turns:
        return Verdict(
            bottleneck=bottleneck,
            why=f"{why}; no single knob makes it fit",
            advice=_together(prepared, situation),
            confidence="simulated",
        )
    (knob, value), found = turns[0]
    grows = found.kv_bytes - budget.kv_bytes > 0.01 * abs(budget.kv_bytes)
    figure, sizes = (
        ("kv_gib", (budget.kv_bytes / GIB, found.kv_bytes / GIB))
        if grows
        else ("kv_needed_gib", (budget.one_request_bytes / GIB, found.one_request_bytes / GIB))
    )
    change = Change(before=sizes[0], after=sizes[1], low=sizes[1] * 0.85, high=sizes[1] * 1.15)
    others = [f"{_option(*turn)} ({held.kv_tokens:,} tokens of cache)" for turn, held in turns[1:]]
    advice = [f"The cache then holds {found.kv_tokens:,} tokens"]
    if knob == "gpu_memory_utilization" and value > (least := budget.utilization_needed()):
        advice.append(f"{_option(knob, least)} is the least with which it starts")
    if others:
        advice.append(f"Or one of these, which make it fit as well: {', '.join(others)}")
    if all(turned == "tensor_parallel_size" for (turned, _), _ in turns):
        told = _together(prepared, situation)
        advice.append(f"On as many devices as now, {told[0].lower()}{told[1:]}")
    if (
        knob == "quantization"
        and situation.subject.engine.release < STREAMED
        and budget.weights_bytes > budget.total_bytes
    ):
        advice.append(
            "This release may hold the original weights while it narrows them, which do not fit: serve a checkpoint that is "
            "in FP8 already"
        )
    return Verdict(
        bottleneck=bottleneck,
        knob=knob,
        before=situation.effective.get(knob),
        after=value,
        why=why,
        confidence="simulated",
        predicted={figure: change},
        advice=". ".join(advice),
        within_error=bool(doubt),
    )


def _turns(prepared: Prepared, situation: Situation) -> list[tuple[tuple[str, Any], MemoryBudget]]:
    """The single turns with which it fits, the harmless ones first, and their budgets."""
    budget, length = prepared.budget, prepared.settings.max_model_len
    wanted = budget.utilization_needed()
    slots = prepared.settings.max_num_seqs
    tried: list[tuple[str, Any]] = [("max_num_seqs", size) for size in (slots // 4, 32) if 0 < size < slots]
    if budget.utilization < wanted <= SAFE_UTILIZATION:
        usual = situation.subject.engine.memory_rule(prepared.hardware).default_utilization
        place = 0 if wanted <= HARMLESS_UTILIZATION else len(tried)
        tried.insert(place, ("gpu_memory_utilization", max(wanted, usual)))
    fits = _length_that_fits(budget)
    if 0 < fits < length:
        tried.append(("max_model_len", fits))
    tried.append(("kv_cache_dtype", "fp8"))
    size = prepared.settings.tensor_parallel_size
    tried += [("quantization", "fp8"), ("tensor_parallel_size", size * 2), ("tensor_parallel_size", size * 4)]
    budgets = [(turn, _budget(prepared, situation, dict([turn]))) for turn in tried]
    return [(turn, found) for turn, found in budgets if found is not None and found.fits]


def _together(prepared: Prepared, situation: Situation) -> str:
    """What makes it fit where no single knob does: narrower weights and cache, more of the memory, less context."""
    own = situation.subject.engine.name == "camshaft"
    devices = (
        ". Camshaft serves on one device; --engine vllm judges vLLM, which splits a model" if own else ""
    )
    turned = {"quantization": "fp8", "kv_cache_dtype": "fp8", "gpu_memory_utilization": SAFE_UTILIZATION}
    turned = {knob: value for knob, value in turned.items() if value != situation.effective.get(knob)}
    found = _budget(prepared, situation, turned)
    if found is not None and not found.fits and (length := _length_that_fits(found)):
        turned |= {"max_model_len": length}
        found = _budget(prepared, situation, turned)
    if found is None or not found.fits:
        return f"Smaller weights or more devices are needed{devices}"
    return f"These together make it fit: {' '.join(_option(*turn) for turn in turned.items())}{devices}"


def _budget(prepared: Prepared, situation: Situation, turned: dict[str, Any]) -> MemoryBudget | None:
    """The budget with knobs turned; None where the release cannot be turned so."""
    if not has_knobs(situation.subject, turned):
        return None
    try:
        return prepared.turned(**turned).budget
    except CamshaftError:
        return None


def _length_that_fits(budget: MemoryBudget) -> int:
    """The longest request that the cache holds, in whole 256 tokens; 0 where that is none."""
    share = max(0, budget.kv_bytes) / max(1, budget.one_request_bytes)
    return int(share * budget.max_model_len) // 256 * 256


def _option(knob: str, value: Any) -> str:
    """`--max-model-len 8192`."""
    return f"{option_of(knob)} {value}"
