"""Readers of server logs, metrics pages, figures at hand and recorded traces: one `Evidence`, with sources."""

from .agreement import asked_instead, differences, require_same_model, taken_from_server
from .contradictions import contradictions
from .logs import read_log, read_log_lines
from .model import Contradiction, Event, Evidence, Figure, LoadHints, Sample, Setting, described
from .observed import observed_mapping, read_load, read_observed
from .prometheus import metrics_evidence, parse, read_metrics, scrape

__all__ = [
    "Contradiction",
    "Event",
    "Evidence",
    "Figure",
    "LoadHints",
    "Sample",
    "Setting",
    "asked_instead",
    "contradictions",
    "described",
    "differences",
    "metrics_evidence",
    "observed_mapping",
    "parse",
    "read_load",
    "read_log",
    "read_log_lines",
    "read_metrics",
    "read_observed",
    "require_same_model",
    "scrape",
    "taken_from_server",
]
