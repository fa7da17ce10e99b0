"""Runs the four classic policies on one load and says how they differ."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

from ...core.engine import Engine
from ...core.workload import Workload
from ..results import NAIVE_REQUESTS, Result, Targets
from .offline import Progress, drive, warm_up

CLASSIC = ("naive", "static", "continuous", "continuous-chunked")


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """One policy's figures on the load."""

    policy: str
    requests: int
    result: Result
    steps: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """Policies side by side, and what issues from them."""

    workload: str
    runs: tuple[PolicyResult, ...]
    floor_tokens_per_s: float | None = None  # of one stream, from the weights and the memory's speed

    def run(self, policy: str) -> PolicyResult | None:
        """The figures of one policy, if it ran."""
        return next((run for run in self.runs if run.policy == policy), None)

    def ratios(self) -> dict[str, float]:
        """What the lesson is about: each is one policy's figure over another's."""
        found: dict[str, float] = {}
        throughput = {run.policy: run.result.throughput_output_tokens_per_s for run in self.runs}
        for one, other in (("static", "naive"), ("continuous", "naive"), ("continuous", "static"),
                           ("continuous-chunked", "continuous")):  # fmt: skip
            if one in throughput and throughput.get(other):
                found[f"throughput {one} / {other}"] = throughput[one] / throughput[other]
        chunked, whole = self.run("continuous-chunked"), self.run("continuous")
        if chunked and whole and chunked.result.itl_ms and whole.result.itl_ms:
            found["itl p99 continuous-chunked / continuous"] = (
                chunked.result.itl_ms.p99 / whole.result.itl_ms.p99
            )
        naive = self.run("naive")
        if naive and naive.result.tpot_ms and self.floor_tokens_per_s:
            rate = 1e3 / naive.result.tpot_ms.mean
            found["naive decode / byte floor of one stream"] = rate / self.floor_tokens_per_s
        return found

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        runs = {
            run.policy: {"requests": run.requests, "steps": run.steps, **run.result.to_dict()}
            for run in self.runs
        }
        return {
            "workload": self.workload,
            "floor_tokens_per_s": self.floor_tokens_per_s,
            "policies": runs,
            "ratios": self.ratios(),
        }


class Watch(Protocol):
    """Whoever follows a comparison."""

    def begin(self, policy: str, requests: int) -> Progress | None:
        """A policy is about to run; what is returned hears how far it is."""
        ...

    def finished(self, run: PolicyResult) -> None:
        """A policy has run, and its engine is closed."""
        ...


def compare(
    make_engine: Callable[[str], Engine],
    workload: Workload,
    *,
    policies: Sequence[str] = CLASSIC,
    targets: Targets | None = None,
    warmup: int = 2,
    seed: int = 0,
    wait: Callable[[float], None] = time.sleep,
    watch: Watch | None = None,
) -> list[PolicyResult]:
    """Plays one load under each policy on an engine of its own; `make_engine` gives one not opened yet.

    `wait` passes time on the engines' clock, as in `drive`.
    """
    results: list[PolicyResult] = []
    for policy in policies:
        load = workload.first(min(NAIVE_REQUESTS, workload.count)) if policy == "naive" else workload
        progress = watch.begin(policy, load.count) if watch else None
        with closing(make_engine(policy)) as engine:
            engine.open()
            warm_up(engine, workload, warmup, wait)
            run = drive(engine, load, wait=wait, progress=progress, seed=seed)
            engine.check_integrity()
        results.append(PolicyResult(policy, load.count, run.result(targets), run.steps))
        if watch:
            watch.finished(results[-1])
    return results


def describe(comparison: Comparison) -> list[str]:
    """What this very run shows, in sentences; where it shows the contrary of the textbook, it says so."""
    chunked, whole = comparison.run("continuous-chunked"), comparison.run("continuous")
    static, naive = comparison.run("static"), comparison.run("naive")
    said: list[str] = []
    if whole and naive:
        gain = whole.result.throughput_output_tokens_per_s / naive.result.throughput_output_tokens_per_s
        said.append(f"Batching between steps carries {gain:.1f}x the output tokens of one request at a time.")
    if whole and static:
        said.append(_closed_batch(static.result, whole.result))
    if chunked and whole:
        said.append(_chunks(chunked.result, whole.result))
    return [sentence for sentence in said if sentence]


def _closed_batch(static: Result, whole: Result) -> str:
    if static.ttft_ms is None or whole.ttft_ms is None:
        return ""
    figures = f"mean first token {static.ttft_ms.mean / 1e3:.1f} s against {whole.ttft_ms.mean / 1e3:.1f} s"
    if static.ttft_ms.mean > whole.ttft_ms.mean:
        return f"A closed batch makes newcomers wait: {figures}."
    return f"A closed batch did not make newcomers wait longer in this run: {figures}."


def _chunks(chunked: Result, whole: Result) -> str:
    if chunked.itl_ms is None or whole.itl_ms is None:
        return ""
    share = chunked.throughput_output_tokens_per_s / whole.throughput_output_tokens_per_s
    figures = (
        f"p99 between tokens {chunked.itl_ms.p99:,.0f} ms against {whole.itl_ms.p99:,.0f} ms, at {share:.0%} of "
        "the throughput"
    )
    if chunked.itl_ms.p99 < whole.itl_ms.p99:
        return f"Chunks cap how long a prompt can stall a stream: {figures}; the same tokens are computed, in smaller steps."
    longest = f"the longest stall is {chunked.itl_ms.max:,.0f} ms against {whole.itl_ms.max:,.0f} ms"
    if chunked.itl_ms.max < whole.itl_ms.max:
        return f"Chunks cap the longest stall of a stream: {longest}; more steps carry a part of a prompt: {figures}."
    return f"Chunks did not shorten the longest stalls in this run: {longest}; {figures}."
