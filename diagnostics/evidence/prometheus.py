"""A metrics page in Prometheus' text form: one scrape, or two, of a file or a URL.

One scrape gives gauges and averages since the start; two give rates and what happened between them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...core.errors import EvidenceError
from ..tls import certificate_hint, trusted
from .access import QUANTILES
from .model import Evidence, Figure, Setting
from .queue import growth_per_s
from .vocabulary import Meaning, understand

FEW_REQUESTS = 20  # below it percentiles are single requests


@dataclass(frozen=True, slots=True)
class Scrape:
    """One page: values by (name, labels)."""

    values: Mapping[tuple[str, tuple[tuple[str, str], ...]], float]
    source: str

    def total(self, name: str) -> float | None:
        """The sum of a family over its labels; None where it is absent."""
        found = [value for (key, _), value in self.values.items() if key == name]
        return sum(found) if found else None

    def only(self, name: str, label: str, value: str) -> Scrape:
        """The page without the members of a family whose label has another value."""
        kept = {
            key: v for key, v in self.values.items() if key[0] != name or dict(key[1]).get(label) == value
        }
        return Scrape(kept, self.source)

    def buckets(self, name: str) -> dict[float, float]:
        """Cumulative counts of a histogram by upper bound, summed over its other labels."""
        counts: dict[float, float] = defaultdict(float)
        for (key, labels), value in self.values.items():
            bound = dict(labels).get("le")
            if key == f"{name}_bucket" and bound is not None:
                counts[float(bound)] += value
        return dict(counts)


def read_metrics(sources: Iterable[str], interval_s: float | None = None) -> Evidence:
    """Evidence from one or two scrapes (files or URLs), the earlier first. Raises EvidenceError.

    interval_s: seconds between them, where known; without it counters give totals and no rates.
    """
    scrapes = [scrape(source) for source in sources]
    if not scrapes:
        return Evidence()
    if len(scrapes) > 2:
        raise EvidenceError(f"{len(scrapes)} metrics pages were given; one or two can be used")
    before = scrapes[0] if len(scrapes) == 2 else None
    return metrics_evidence(scrapes[-1], before, interval_s)


def scrape(source: str) -> Scrape:
    """Reads one page. Raises EvidenceError if it cannot be had or is no metrics page."""
    if source.startswith(("http://", "https://")):
        text = _fetch(source)
    else:
        try:
            text = Path(source).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise EvidenceError(f"{source}: {error.strerror}") from error
    return parse(text, source)


def _fetch(url: str) -> str:
    import httpx

    try:
        answer = httpx.get(url, timeout=10, verify=trusted(), follow_redirects=True)
        answer.raise_for_status()
    except httpx.HTTPError as error:
        raise EvidenceError(f"{url}: {error}{certificate_hint(error)}") from error
    return answer.text


def parse(text: str, source: str) -> Scrape:
    """Parses Prometheus' text form. Raises EvidenceError naming the first line that is not of it."""
    from prometheus_client.parser import text_string_to_metric_families

    values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if math.isnan(float(sample.labels.get("le", 0))):
                    raise ValueError("a bucket's bound is NaN")
                if not math.isfinite(sample.value):  # a gauge that was never set
                    continue
                values[(sample.name, tuple(sorted(sample.labels.items())))] = float(sample.value)
    except (ValueError, IndexError, KeyError) as error:
        raise EvidenceError(f"{source}: not a metrics page in Prometheus' text form: {error}") from error
    if not values:
        raise EvidenceError(f"{source}: an empty metrics page")
    return Scrape(values, source)


def metrics_evidence(now: Scrape, before: Scrape | None = None, interval_s: float | None = None) -> Evidence:
    """Figures of a page: gauges as they are, histograms as mean and percentiles, counters as totals or rates.

    Raises EvidenceError where the page is older than the one before.
    """
    evidence = Evidence(engine=_engine(now))
    if before is not None and _restarted(now, before):
        evidence.notes.append(
            f"{_between(now, before)}: the server restarted between the two; the second tells what was since, and no rates"
        )
        before = interval_s = None
    names = sorted({name for name, _ in now.values})
    for name in names:
        if name.endswith("_bucket"):
            _histogram(now, before, name.removesuffix("_bucket"), evidence)
        elif not name.endswith(("_sum", "_count", "_created")):
            evidence.figures += _plain(now, before, name, interval_s)
    done = _change(now, before, _ENDED)
    if done is not None and 0 < done < FEW_REQUESTS:
        evidence.notes.append(f"{_between(now, before)}: {done:g} requests ended: too few to conclude from")
    _derive(evidence, now, before, interval_s)
    evidence.settings += [*_cache_settings(now), *_served_model(now)]
    return evidence


def _engine(page: Scrape) -> str | None:
    names = {name.replace("_", ":", 1) if name.startswith("sglang_") else name for name, _ in page.values}
    for engine in ("camshaft", "sglang", "vllm"):
        if any(name.startswith(f"{engine}:") for name in names):
            return engine
    return None


def _restarted(now: Scrape, before: Scrape) -> bool:
    """Whether the server started anew between the pages. Raises EvidenceError where they are in the wrong order."""
    started, earlier = (page.total("process_start_time_seconds") for page in (now, before))
    known = started is not None and earlier is not None
    if started is not None and earlier is not None and started > earlier:
        return True
    fell = next(
        (name for name in _counters(before) if (now.total(name) or 0) < (before.total(name) or 0)), None
    )
    if fell is None and (not known or started == earlier):
        return False
    why = f"{fell} falls" if fell else "the server of the second started earlier"
    asked = "swapped?" if known else "swapped, or did the server restart between them?"
    raise EvidenceError(f"{_between(now, before)}: {why}: are the pages {asked}")


def _counters(page: Scrape) -> Iterator[str]:
    """The engine's own counters on a page."""
    for name in dict.fromkeys(name for name, _ in page.values):
        if name.startswith(("vllm:", "sglang:", "sglang_", "camshaft:")) and name.endswith("_total"):
            yield name


def _change(now: Scrape, before: Scrape | None, name: str) -> float | None:
    """The growth of a counter between the pages, or its total."""
    value = now.total(name)
    return value if value is None or before is None else value - (before.total(name) or 0.0)


def _plain(now: Scrape, before: Scrape | None, name: str, seconds: float | None) -> list[Figure]:
    meaning = understand(name)
    if meaning is None or meaning.qualifier:
        return []
    if not name.endswith("_total"):
        value = now.total(name)
        shared = meaning.unit == "share"
        count = sum(1 for key, _ in now.values if key == name)
        total = (value or 0.0) / count if shared and count else value
        return [_figure(meaning, total, now.source)]
    change = _change(now, before, name)
    figures = [_figure(meaning, change, _between(now, before), "total")]
    if seconds and change is not None and meaning.name in ("prompt_tokens", "generation_tokens"):
        rate = "prompt_tokens_per_s" if meaning.name == "prompt_tokens" else "output_tokens_per_s"
        figures.append(Figure(name=rate, value=change / seconds, source=_between(now, before), derived=True))
    return figures


def _figure(meaning: Meaning, value: float | None, source: str, statistic: str = "") -> Figure:
    scaled = None if value is None else value * (meaning.factor or 1.0)
    return Figure(name=meaning.name, value=scaled, source=source, statistic=statistic or meaning.statistic)


def _between(now: Scrape, before: Scrape | None) -> str:
    return now.source if before is None else f"{before.source} to {now.source}"


def _histogram(now: Scrape, before: Scrape | None, name: str, evidence: Evidence) -> None:
    """Adds its mean and percentiles; of the lengths of requests all of it, as quantiles."""
    meaning = understand(name)
    counts = now.buckets(name)
    if meaning is None or meaning.qualifier or not counts:
        return
    if before is not None:
        old = before.buckets(name)
        counts = {bound: value - old.get(bound, 0.0) for bound, value in counts.items()}
    total = max(counts.values())
    if total <= 0:
        return
    factor = meaning.factor or 1.0
    where = _between(now, before)
    sums = _change(now, before, f"{name}_sum")
    if sums is not None:
        mean = sums / total * factor
        evidence.figures.append(Figure(name=meaning.name, value=mean, source=where, statistic="mean"))
    for share, label in ((0.5, "p50"), (0.9, "p90"), (0.99, "p99")):
        low, high = (bound * factor for bound in bucket(counts, share))
        value = quantile(counts, share) * factor
        evidence.figures.append(
            Figure(name=meaning.name, value=value, source=where, statistic=label, between=(low, high))
        )
    if meaning.name in ("input_tokens", "output_tokens") and not meaning.statistic:
        evidence.lengths[meaning.name] = _lengths(counts, None if sums is None else sums / total)


def _lengths(counts: Mapping[float, float], mean: float | None) -> tuple[int, ...]:
    """Lengths at evenly spaced quantiles. What a bucket hides of them is set right by the mean, which is exact."""
    drawn = np.array([quantile(counts, share) for share in QUANTILES])
    if mean and drawn.any():
        drawn *= mean / drawn.mean()
    return tuple(round(value) for value in np.maximum(drawn, 1))


def quantile(counts: Mapping[float, float], share: float) -> float:
    """A quantile of a cumulative histogram, linear within its bucket, as Prometheus' own function does.

    In the open last bucket it is that bucket's lower bound.
    """
    bounds = sorted(counts)
    wanted = share * counts[bounds[-1]]
    lower, below = 0.0, 0.0
    for bound in bounds:
        if counts[bound] >= wanted:
            if bound == float("inf"):
                return lower
            inside = counts[bound] - below
            return lower + (bound - lower) * ((wanted - below) / inside if inside > 0 else 1.0)
        lower, below = bound, counts[bound]
    return lower


def bucket(counts: Mapping[float, float], share: float) -> tuple[float, float]:
    """The bounds of the bucket that holds a quantile of a cumulative histogram; the last one is open."""
    bounds = sorted(counts)
    place = next(
        (i for i, b in enumerate(bounds) if counts[b] >= share * counts[bounds[-1]]), len(bounds) - 1
    )
    return (bounds[place - 1] if place else 0.0), bounds[place]


def _derive(evidence: Evidence, now: Scrape, before: Scrape | None, seconds: float | None) -> None:
    """Rates of hits and of finished requests, from the counters that hold them."""
    where = _between(now, before)
    for prefix in ("vllm:prefix_cache", "vllm:gpu_prefix_cache"):
        asked, hit = (_change(now, before, f"{prefix}_{what}_total") for what in ("queries", "hits"))
        if asked:
            evidence.figures.append(
                Figure(name="prefix_hit_rate", value=(hit or 0.0) / asked, source=where, derived=True)
            )
            break
    ended, aborted = _change(now, before, _ENDED), _aborted(now, before)
    if ended is not None and seconds:
        rates = {"completed_per_s": (ended - aborted) / seconds, "aborted_per_s": aborted / seconds}
        evidence.figures += [
            Figure(name=name, value=rate, source=where, derived=True)
            for name, rate in rates.items()
            if rate or name == "completed_per_s"
        ]
    if before is not None and seconds and now.total("vllm:num_requests_waiting"):
        growth = growth_per_s([0.0, seconds], [_held(before), _held(now)])
        if growth is not None:
            evidence.figures.append(
                Figure(name="queue_growth_per_s", value=growth, source=where, derived=True)
            )
    drafted = _change(now, before, "vllm:spec_decode_num_draft_tokens_total")
    kept = _change(now, before, "vllm:spec_decode_num_accepted_tokens_total")
    if drafted:
        evidence.figures.append(
            Figure(name="acceptance_rate", value=(kept or 0.0) / drafted, source=where, derived=True)
        )


_ENDED = "vllm:request_success_total"  # whatever the reason


def _aborted(now: Scrape, before: Scrape | None) -> float:
    """Requests that their clients gave up."""
    pages = [
        None if page is None else page.only(_ENDED, "finished_reason", "abort") for page in (now, before)
    ]
    return _change(pages[0] or now, pages[1], _ENDED) or 0.0


def _held(page: Scrape) -> float:
    """Requests in the server."""
    return sum(page.total(f"vllm:num_requests_{what}") or 0.0 for what in ("running", "waiting"))


def _cache_settings(page: Scrape) -> list[Setting]:
    """`cache_config_info` carries settings in its labels."""
    for (name, labels), _ in page.values.items():
        if name.endswith("cache_config_info"):
            return [
                Setting(name=key, value=_literal(value), source=page.source)
                for key, value in labels
                if value not in ("None", "")
            ]
    return []


def _served_model(page: Scrape) -> list[Setting]:
    """The name by which the page's server serves its model, which may be an alias."""
    names = dict.fromkeys(dict(labels).get("model_name") for _, labels in page.values)
    return [Setting(name="model_name", value=name, source=page.source) for name in names if name]


def _literal(text: str) -> object:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"True": True, "False": False}.get(text, text)
