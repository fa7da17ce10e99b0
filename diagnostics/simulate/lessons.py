"""Two exercises that teach: where static batching loses time, and what reserving memory wastes.

Both are replays with fixed seeds on a described device, so that they can be repeated and varied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ...core.config import load_config
from ...core.workload import Workload, load_workload
from ..cost.hardware import load_hardware
from .prepare import Prepared, prepare
from .recorder import StepLog
from .replay import Setup, replay

MODEL, DEVICE = "meta-llama/Llama-3.1-8B-Instruct", "h100-sxm"


@dataclass(frozen=True, slots=True)
class Lesson:
    """A table and what it shows, in its own figures."""

    title: str
    setup: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    conclusions: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def lesson(name: str) -> Lesson:
    """One of LESSONS. Raises KeyError for another name."""
    return LESSONS[name]()


def gap() -> Lesson:
    """Where a closed batch loses against iteration-level batching: prompts, full decode, or the tail."""
    load = load_workload(
        {
            "arrival": {"kind": "closed", "concurrency": 64, "requests": 256},
            "input_tokens": {"uniform": [64, 2048]},
            "output_tokens": {"uniform": [16, 512]},
            "seed": 1,
        }
    )
    base = _prepared(
        max_num_seqs=SLOTS, max_model_len=SLOTS * 2048
    )  # a step takes that many tokens unchunked
    logs = {name: base.under(name).replay(load).log for name in ("static", "continuous")}
    parts = {name: _where_time_went(log) for name, log in logs.items()}
    lost = {part: parts["static"][part] - parts["continuous"][part] for part in _PARTS}
    total = {name: sum(found.values()) for name, found in parts.items()}
    most = max(lost, key=lambda part: lost[part])
    won = lost[most] - sum(lost.values())  # by the others together
    rows = [
        (part, round(parts["static"][part], 2), round(parts["continuous"][part], 2), round(lost[part], 2))
        for part in _PARTS
    ]
    rows.append(
        ("all", round(total["static"], 2), round(total["continuous"], 2), round(sum(lost.values()), 2))
    )
    return Lesson(
        "Where static batching loses",
        f"{MODEL} on {DEVICE}, {SLOTS} slots, 64 clients, 256 requests, prompts 64-2048, answers 16-512, seed 1",
        ("seconds in", "static", "continuous", "lost by static"),
        tuple(rows),
        (
            f"static takes {total['static'] / total['continuous']:.2f} times as long: it loses most, {lost[most]:.1f} s, "
            f"{_PARTS[most]}" + (f"; in all others together it wins {won:.1f} s" if won > 0 else ""),
            f"static steps carry {_occupancy(logs['static']):.1f} sequences on average, continuous "
            f"{_occupancy(logs['continuous']):.1f} of {SLOTS}",
        ),
    )


SLOTS = 32

_PARTS = {
    "prefill": "in steps that compute prompts",
    "full decode": "in decode steps with a full batch",
    "tail": "in decode steps whose batch has emptied: slots wait for the slowest member",
}


def _where_time_went(log: StepLog) -> dict[str, float]:
    """Seconds in steps with prompts, in decode steps at 90 % of the slots or more, and in the others."""
    took = log.column("duration_ms") / 1e3
    prompts = log.column("prefill_tokens") > 0
    full = log.column("decodes") >= 0.9 * SLOTS
    return {
        "prefill": float(took[prompts].sum()),
        "full decode": float(took[~prompts & full].sum()),
        "tail": float(took[~prompts & ~full].sum()),
    }


def _occupancy(log: StepLog) -> float:
    decodes, took = log.column("decodes"), log.column("duration_ms")
    plain = log.column("prefill_tokens") == 0
    return float(np.average(decodes[plain], weights=took[plain])) if plain.any() else 0.0


def fragmentation(requests: int = 1000) -> Lesson:
    """Reserving the longest length for everyone against paging, over 1,000 requests or so many."""
    load = load_workload(
        {
            "arrival": {"kind": "closed", "concurrency": 256, "requests": requests},
            "input_tokens": 32,
            "output_tokens": {"normal": {"mean": 1500, "std": 600}, "min": 16, "max": 8000},
            "seed": 1,
        }
    )
    base = _prepared(max_num_seqs=256, max_model_len=8192, gpu_memory_utilization=0.5)
    rows, rates, waste = [], {}, {}
    for label, block in (
        ("reserved at 8,192", 8192),
        ("paged by 256", 256),
        ("paged by 16", 16),
        ("paged by 1", 1),
    ):
        done = replay(_with_block(base, load, block), load)
        kv = done.result.kv
        assert kv is not None  # a replay always knows its cache
        running = done.log.column("running")
        rates[label], waste[label] = done.result.throughput_output_tokens_per_s, kv.waste
        rows.append(
            (
                label,
                kv.blocks,
                f"{kv.waste:.1%}",
                round(float(np.average(running, weights=done.log.column("duration_ms"))), 1),
                round(rates[label]),
                done.result.preemptions,
            )
        )
    return Lesson(
        "What reserving memory wastes",
        f"{MODEL} on {DEVICE} at half its memory, {requests:,} requests of mean 1,500 and deviation 600 tokens, seed 1",
        ("cache", "blocks", "slots without a token", "running", "output tok/s", "evictions"),
        tuple(rows),
        (
            f"reserving wastes {waste['reserved at 8,192']:.0%} of the slots it takes, 16-token blocks "
            f"{waste['paged by 16']:.1%}",
            f"paging carries {rates['paged by 16'] / rates['reserved at 8,192']:.1f} times the tokens in the same memory",
            f"blocks of 1 token save {waste['paged by 16'] - waste['paged by 1']:.2%} more and need 16 times the "
            "bookkeeping; blocks of 256 waste "
            f"{waste['paged by 256']:.1%}",
        ),
    )


def _with_block(base: Prepared, load: Workload, block: int) -> Setup:
    """The same memory cut into blocks of `block` tokens."""
    setup = base.setup(load)
    tokens = setup.params.num_blocks * setup.params.block_size
    length = setup.params.max_model_len
    reserved = block >= 8192
    params = replace(
        setup.params,
        block_size=block,
        num_blocks=tokens // block,
        max_model_len=block if reserved else length,
        watermark=0.0 if reserved else setup.params.watermark,
    )
    return replace(setup, params=params)


def _prepared(**knobs: Any) -> Prepared:
    chosen = {"model": MODEL, "enable_prefix_caching": False, **knobs}
    return prepare(load_config(chosen, purpose="inspect"), load_hardware(DEVICE))


LESSONS: dict[str, Callable[[], Lesson]] = {"gap": gap, "fragmentation": fragmentation}
