"""The load behind the evidence: what was given, recorded or told, and what is assumed where nothing is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.workload import RecordedTrace, Trace, TraceRow, Workload, WorkloadShape, load_workload
from ..evidence import Evidence
from .situation import ASSUMED_OUTPUT, Situation

ASSUMED_INPUT = 1000  # tokens of a prompt, where nobody says how many
LONG_ANSWER = 1000  # tokens: long contexts are taken to be long prompts
SHARED_SHARE = 0.75  # of a prompt, where prefixes are shared and nobody says how much
SHARING_GROUPS = 8
MOST_STEPS = 1_200  # of one replay, roughly: enough for a steady state, and a diagnosis stays quick
GENERATIONS, FEWEST_GENERATIONS = 6, 3  # requests of each client, the second even where its steps are many
LONG_PROMPT = 16_000
AT_A_GROWING_RATE = 300  # requests: fewer may all be served before a queue is seen
USUAL_STEP_S = 0.03  # to guess how many run at once at an arrival rate, before anything is replayed


@dataclass(frozen=True, slots=True)
class Load:
    """A workload and what had to be assumed to make it."""

    workload: Workload
    assumptions: tuple[str, ...]
    told: bool  # lengths and arrivals are known, not assumed


def fitted_load(situation: Situation, given: Workload | None = None) -> Load:
    """The workload to replay: the one given, a recorded trace, or one made from what is told."""
    chosen = given or situation.evidence.recorded
    if chosen is not None:
        return Load(chosen, (), True)
    if situation.stalled_ttft is not None and (situation.input_tokens or 0) >= LONG_PROMPT:
        return _interference(situation)
    return _steady(situation)


def paced(given: Workload | None, evidence: Evidence) -> Workload | None:
    """A given load at the rate that was observed, where the load itself is of clients that wait for their answers."""
    rate = evidence.hint("request_rate_per_s") or evidence.value("request_per_s")
    if given is None or not rate or not given.concurrency or evidence.hint("concurrency"):
        return given
    return given.at_rate(rate)


def _steady(situation: Situation) -> Load:
    notes: list[str] = []
    told_input, told_output = situation.input_tokens, situation.output_tokens
    inputs, outputs = _lengths(situation, notes)
    shape: dict[str, Any] = {"input_tokens": inputs, "output_tokens": outputs}
    if told_input is None:
        room = situation.value("max_model_len")
        shape["input_tokens"] = _spread(
            inputs, room - 1 - outputs * 3 // 2 if isinstance(room, int) else None
        )
    if told_output is None:
        shape["output_tokens"] = _spread(outputs)
    shape.update(_seen_lengths(situation))
    if (reused := situation.reused_share) is not None:
        seen = shape["input_tokens"]
        lengths = seen.get("empirical", [inputs]) if isinstance(seen, dict) else [inputs]
        shape["shared_prefix_tokens"] = _prefix_that_spares(reused, lengths)
        shape["shared_prefix_groups"] = SHARING_GROUPS
        notes.append(
            f"a prefix of {shape['shared_prefix_tokens']:,} tokens, shared within {SHARING_GROUPS} groups, spares the "
            f"{reused:.0%} of the prompts' tokens that the cache was seen to spare"
        )
    elif situation.shares_prefix:
        shape["shared_prefix_tokens"] = int(inputs * SHARED_SHARE)
        shape["shared_prefix_groups"] = SHARING_GROUPS
        notes.append(f"{SHARED_SHARE:.0%} of a prompt is shared within {SHARING_GROUPS} groups")
    shape["arrival"] = _arrival(situation, inputs, outputs, notes)
    told = told_input is not None and told_output is not None
    return Load(load_workload(shape), tuple(notes), told)


def _seen_lengths(situation: Situation) -> dict[str, Any]:
    """The lengths that a page's histograms or an access log tell one by one, where nobody gives others.

    No prompt is longer than what the model's context leaves beside the longest answer: a bucket may reach further.
    """
    seen = {n: v for n, v in situation.evidence.lengths.items() if situation.evidence.hint(n) is None}
    shape: dict[str, Any] = {name: {"empirical": list(values)} for name, values in seen.items()}
    room = situation.value("max_model_len")
    if "input_tokens" in seen and isinstance(room, int):
        shape["input_tokens"]["max"] = max(1, room - 1 - max(seen.get("output_tokens", (1,))))
    return shape


def _lengths(situation: Situation, notes: list[str]) -> tuple[int, int]:
    """Tokens of a prompt and of an answer: as told, as the observed rates and the cache make them, or assumed."""
    inputs, outputs = situation.input_tokens, situation.output_tokens
    if inputs is not None and outputs is not None:
        return inputs, outputs
    ratio, held = situation.prompt_share, situation.held_tokens
    if (ratio is None and held is None) or inputs is not None or outputs is not None:
        inputs = inputs or (round(outputs * ratio) if outputs and ratio else ASSUMED_INPUT)
        outputs = outputs or (round(inputs / ratio) if ratio else min(ASSUMED_OUTPUT, max(16, inputs)))
        notes.append(f"lengths are assumed: prompts of {inputs:,} tokens, answers of {outputs:,}")
        return max(1, inputs), max(2, outputs)
    parts = ["the running requests' share of the cache" if held else "an assumed size"]
    parts[:0] = ["the rates of prompt and output tokens"] if ratio else []
    told, held = ratio or ASSUMED_INPUT / ASSUMED_OUTPUT, held or ASSUMED_INPUT + ASSUMED_OUTPUT / 2
    outputs = max(2, round(held / (told + 0.5)))
    outputs = outputs if ratio else min(outputs, LONG_ANSWER)
    inputs = max(1, round(held - outputs / 2))
    notes.append(f"lengths from {' and '.join(parts)}: prompts of {inputs:,} tokens, answers of {outputs:,}")
    return inputs, outputs


def _prefix_that_spares(share: float, lengths: Sequence[int]) -> int:
    """Tokens of a prefix that all prompts begin with, as far as they reach, so that it is `share` of all tokens."""
    lengths = sorted(lengths)
    spared = [sum(min(prefix, length) for length in lengths) for prefix in lengths]
    return round(float(np.interp(share * sum(lengths), [0, *spared], [0, *lengths])))


def _spread(mean: int, room: int | None = None) -> dict[str, Any]:
    """Lengths around a mean, none above what the context leaves."""
    least, most = max(1, mean // 2), mean + mean // 2
    return {"uniform": [least, most if room is None else max(least, min(most, room))]}


def _arrival(situation: Situation, inputs: int, outputs: int, notes: list[str]) -> dict[str, Any]:
    slots, budget = int(situation.value("max_num_seqs")), int(situation.value("max_num_batched_tokens"))
    rate = situation.rate_per_s
    together = situation.running or situation.concurrency or 16
    if rate and not situation.evidence.hint("concurrency"):
        together = max(together, rate * outputs * USUAL_STEP_S)
    together = min(together, slots)
    steps_each = outputs / max(1.0, together) + inputs / budget
    most = max(24, int(MOST_STEPS / steps_each))
    asked = situation.evidence.hint("requests")
    if rate is None and (growing := _growing(situation, outputs)) is not None:
        rate, done, growth = growing
        aborted = ", aborted ones included," if situation.figure("aborted_per_s") else ""
        most = max(most, AT_A_GROWING_RATE)
        notes.append(
            f"the queue grows by {growth:.2g} requests a second{aborted} while {done:.2g} are done: {rate:.3g} a second are "
            "taken to arrive, whoever waits"
        )
    if rate is None and (rate := _served(situation)) is not None:
        notes.append(f"{rate:.3g} requests a second are done and nobody waits: as many are taken to arrive")
    if rate and not situation.evidence.hint("concurrency"):
        return {"kind": "poisson", "rate": rate, "requests": int(min(most, max(100, 60 * rate)))}
    clients = situation.concurrency
    if clients is None and situation.running == 0:
        clients = 1
        notes.append(
            "none was in the server when it was looked at: one request at a time is assumed; --rate says it better"
        )
    if clients is None:
        clients = 16
        notes.append("16 requests at once are assumed")
    requests = min(asked or GENERATIONS * clients, most)
    fewest = min(FEWEST_GENERATIONS * clients, 4 * most)
    fewest = min(fewest, asked) if asked else fewest
    return {"kind": "closed", "concurrency": clients, "requests": int(max(requests, fewest, clients))}


def _growing(situation: Situation, outputs: int) -> tuple[float, float, float] | None:
    """Requests a second that arrive, are done and pile up, where a queue is seen to grow."""
    growth, tokens = situation.figure("queue_growth_per_s"), situation.figure("output_tokens_per_s", "mean")
    done = situation.figure("completed_per_s") or (tokens / outputs if tokens else None)
    aborted = situation.figure("aborted_per_s") or 0.0
    if not (growth or aborted) or not done or situation.evidence.hint("concurrency"):
        return None
    return done + aborted + (growth or 0.0), done, (growth or 0.0) + aborted


def _served(situation: Situation) -> float | None:
    """Requests a second that were done between two pages of a server in which nobody waits: as many arrive."""
    done = situation.evidence.find("completed_per_s")
    told = situation.evidence.hint("concurrency") or situation.figure("concurrency")
    if done is None or not done.derived or told or (situation.waiting or 0) >= 1:
        return None
    return done.value


def _interference(situation: Situation) -> Load:
    """One long prompt and short follow-ups that arrive while it is computed, as the evidence tells it."""
    pair = situation.stalled_ttft
    assert pair is not None  # the caller asked
    late, early = pair[0].value or 1.0, pair[1].value or 1.0
    long = situation.input_tokens or LONG_PROMPT
    short = max(64, int(long * early / late))
    rows = [TraceRow(0.0, long, 32), *(TraceRow(1.0 + 0.05 * turn, short, 32) for turn in range(2))]
    shape = WorkloadShape(arrival=Trace(kind="trace", file="observed", requests=len(rows)))
    notes = (
        f"a follow-up has about {short:,} tokens to compute: its share of the long prompt's time when alone",
    )
    return Load(Workload("observed", shape, RecordedTrace("azure", tuple(rows))), notes, True)
