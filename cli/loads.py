"""The load that a command's options name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ..core.workload import Workload


def workload_of(
    source: str, requests: int | None, concurrency: int | None = None, rate: float | None = None
) -> Workload:
    """A workload file or preset, played as the options say. Raises click.UsageError, ConfigError or EvidenceError."""
    from ..core.workload import load_workload

    if concurrency and rate:
        raise click.UsageError("--concurrency and --rate exclude each other")
    workload = load_workload(source)
    if concurrency:
        workload = workload.at_concurrency(concurrency)
    if rate:
        workload = workload.at_rate(rate)
    return workload.first(requests) if requests else workload
