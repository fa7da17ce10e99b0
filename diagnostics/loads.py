"""A load in a line, as reports name it."""

from __future__ import annotations

from ..core.workload import Workload


def load_text(workload: Workload) -> str:
    """`chat: 256 requests of about 1,177 tokens in and 250 out, 64 clients that start all at once`."""
    told = workload.summary()
    text = f"{workload.name}: {told.requests:,} requests of {lengths_text(workload)}"
    if told.concurrency:
        together = min(told.concurrency, told.requests)
        clients = f"{together:,} clients that start all at once" if together > 1 else "one client"
        return f"{text}, {clients}"
    if not told.rate:
        return text
    return f"{text}, {told.rate:.3g} {'sessions ' if workload.arrives == 'sessions' else ''}a second"


def lengths_text(workload: Workload) -> str:
    """`about 1,177 tokens in and 250 out`."""
    told = workload.summary()
    return f"about {told.input_tokens_mean:,.0f} tokens in and {told.output_tokens_mean:,.0f} out"
