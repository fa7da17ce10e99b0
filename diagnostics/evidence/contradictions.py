"""Evidence that cannot all be true: told, so that no verdict is built on it."""

from __future__ import annotations

from itertools import pairwise

from .model import Contradiction, Evidence, Figure

_PERCENTILES = ("p50", "p75", "p90", "p95", "p99", "p999", "max")
_TOLERANCE = 0.5  # two sources of the same figure may differ by this share; more is a contradiction


def contradictions(evidence: Evidence) -> list[Contradiction]:
    """What cannot hold together, each with the sources that say it; empty when all can."""
    found = [*_disagreeing(evidence), *_disordered(evidence), *_impossible(evidence)]
    return list(dict.fromkeys(found))


def _disagreeing(evidence: Evidence) -> list[Contradiction]:
    """The same figure, statistic and circumstance, read twice from different places, far apart."""
    seen: dict[tuple[str, str, str], Figure] = {}
    found = []
    for figure in evidence.figures:
        if figure.value is None or figure.derived:
            continue
        key = (figure.name, figure.statistic, figure.qualifier)
        other = seen.setdefault(key, figure)
        if other.source.split(":")[0] == figure.source.split(":")[0] or other.value is None:
            continue
        scale = max(abs(other.value), abs(figure.value))
        if scale > 0 and abs(other.value - figure.value) > _TOLERANCE * scale:
            text = f"{figure.label} is {other.value:g} and {figure.value:g}"
            found.append(Contradiction(what=text, sources=(other.source, figure.source)))
    return found


def _disordered(evidence: Evidence) -> list[Contradiction]:
    """A higher percentile below a lower one."""
    found = []
    for name in dict.fromkeys(figure.name for figure in evidence.figures):
        told = [
            (statistic, figure)
            for statistic in _PERCENTILES
            if (figure := evidence.find(name, statistic, "")) is not None and figure.value is not None
        ]
        for (low, first), (high, second) in pairwise(told):
            if (second.value or 0.0) < (first.value or 0.0) * 0.999:
                text = f"{name}: {high} ({second.value:g}) is below {low} ({first.value:g})"
                found.append(Contradiction(what=text, sources=(first.source, second.source)))
    return found


def _impossible(evidence: Evidence) -> list[Contradiction]:
    """Figures that no engine can show: more running than slots, shares outside 0 to 1, work without requests."""
    found = []
    for figure in evidence.figures:
        if figure.value is None:
            continue
        if figure.name in ("kv_usage", "prefix_hit_rate", "acceptance_rate", "gpu_util") and not (
            -0.001 <= figure.value <= 1.05
        ):
            found.append(
                Contradiction(
                    what=f"{figure.label} is {figure.value:g}, not a share", sources=(figure.source,)
                )
            )
    slots = evidence.setting("max_num_seqs")
    running = evidence.find("running", "max") or evidence.find("running")
    if isinstance(slots, int) and running is not None and (running.value or 0) > slots:
        text = f"{running.value:g} requests run and max_num_seqs is {slots}"
        found.append(Contradiction(what=text, sources=(running.source,)))
    rate, done = evidence.find("request_per_s"), evidence.find("completed_per_s")
    if rate and done and rate.value and done.value and done.value > 1.5 * rate.value:
        text = f"{done.value:g} requests a second end and {rate.value:g} arrive"
        found.append(Contradiction(what=text, sources=(rate.source, done.source)))
    alone, busy = evidence.value("request_output_tokens_per_s"), evidence.value("output_tokens_per_s")
    count = evidence.value("running")
    if alone and busy and count and count <= 1 and alone > 2 * busy:
        text = f"one request gets {alone:g} tokens/s and all together {busy:g}"
        found.append(Contradiction(what=text, sources=("figures given",)))
    return found
