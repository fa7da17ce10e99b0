"""The periodic line of figures, in the words that readers of vLLM's logs parse."""

from __future__ import annotations

from ...messages import Stats


def stats_line(before: Stats | None, stats: Stats, elapsed_s: float, device: str) -> str | None:
    """One line about the time since `before` (None: since start); None if nothing ran in it and nothing waits.

    The prefix hit rate is that of all tokens looked up in that time. `Preemptions` appears only if any.
    """

    def gained(total: str) -> int:
        return getattr(stats, total) - (0 if before is None else getattr(before, total))

    prompt, generated = (gained(f"{kind}_tokens") / max(elapsed_s, 1e-9) for kind in ("prompt", "generation"))
    if not (prompt or generated or stats.running or stats.waiting):
        return None
    queries, preempted = gained("prefix_queries"), gained("preemptions")
    hit_rate = gained("prefix_hits") / queries if queries else 0.0
    usage = stats.used_blocks / stats.total_blocks if stats.total_blocks else 0.0
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
