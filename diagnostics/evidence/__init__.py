"""Readers of server logs, metrics pages, figures at hand and recorded traces: one `Evidence`, with sources."""

from pathlib import Path

from ...core.workload import load_workload
from .contradictions import contradictions
from .logs import read_log, read_log_lines
from .model import Contradiction, Event, Evidence, Figure, LoadHints, Sample, Setting
from .observed import observed_mapping, read_load, read_observed
from .prometheus import metrics_evidence, parse, read_metrics, scrape


def read_trace(path: str | Path) -> Evidence:
    """Evidence that holds a recorded or public trace of arrivals. Raises ConfigError or EvidenceError."""
    return Evidence(trace=load_workload(path))


__all__ = [
    "Contradiction",
    "Event",
    "Evidence",
    "Figure",
    "LoadHints",
    "Sample",
    "Setting",
    "contradictions",
    "metrics_evidence",
    "observed_mapping",
    "parse",
    "read_load",
    "read_log",
    "read_log_lines",
    "read_metrics",
    "read_observed",
    "read_trace",
    "scrape",
]
