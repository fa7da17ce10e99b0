"""The periodic line of figures, in the words that readers of vLLM's logs parse."""

from __future__ import annotations

from dataclasses import dataclass

from ..messages import Stats


@dataclass(frozen=True, slots=True)
class Totals:
    """Counters at one moment, to be compared with the next."""

    at_s: float
    prompt_tokens: int
    generation_tokens: int
    preemptions: int
    prefix_queries: int
    prefix_hits: int

    @classmethod
    def of(cls, stats: Stats, at_s: float) -> Totals:
        """The totals in a Stats message."""
        return cls(
            at_s,
            stats.prompt_tokens,
            stats.generation_tokens,
            stats.preemptions,
            stats.prefix_queries,
            stats.prefix_hits,
        )


def stats_line(before: Totals, now: Totals, stats: Stats, device: str) -> str | None:
    """One line about the interval; None for an interval in which nothing ran and nothing waits.

    The prefix hit rate is that of all tokens looked up in the interval. `Preemptions` appears only if any.
    """
    elapsed_s = max(now.at_s - before.at_s, 1e-9)
    prompt = (now.prompt_tokens - before.prompt_tokens) / elapsed_s
    generated = (now.generation_tokens - before.generation_tokens) / elapsed_s
    if not (prompt or generated or stats.running or stats.waiting):
        return None
    queries = now.prefix_queries - before.prefix_queries
    hit_rate = (now.prefix_hits - before.prefix_hits) / queries if queries else 0.0
    usage = stats.used_blocks / stats.total_blocks if stats.total_blocks else 0.0
    preempted = now.preemptions - before.preemptions
    parts = [
        f"Avg prompt throughput: {prompt:.1f} tokens/s",
        f"Avg generation throughput: {generated:.1f} tokens/s",
        f"Running: {stats.running} reqs",
        f"Waiting: {stats.waiting} reqs",
        *([f"Preemptions: {preempted}"] if preempted else []),
        f"{device} KV cache usage: {usage:.1%}",
        f"Prefix cache hit rate: {hit_rate:.1%}",
    ]
    return "Engine 000: " + ", ".join(parts)
