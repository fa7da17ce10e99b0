"""The figures that a report compares: where they stand in a result, what they are called, which way is better."""

from __future__ import annotations

from ..results import Distribution, Result

NAMES = {
    "ttft_p50_ms": ("first token p50", "ms"),
    "ttft_p99_ms": ("first token p99", "ms"),
    "tpot_mean_ms": ("time per token", "ms"),
    "itl_p99_ms": ("between tokens p99", "ms"),
    "itl_max_ms": ("longest gap", "ms"),
    "e2e_mean_ms": ("whole request", "ms"),
    "output_tokens_per_s": ("output", "tokens/s"),
    "goodput_requests_per_s": ("goodput", "requests/s"),
    "good_share": ("keep the SLO", "%"),
    "served_share": ("requests served", "%"),
    "preemptions": ("preemptions", ""),
    "kv_gib": ("KV cache", "GiB"),
    "kv_needed_gib": ("KV cache of one request", "GiB"),
    "kv_tokens": ("KV cache", "tokens"),
    "usable_gib": ("usable memory", "GiB"),
}


SHARES = ("good_share", "served_share")
_USUAL = {"preemptions": 0.0, "served_share": 1.0}


def usual(name: str, *values: float) -> bool:
    """Whether a figure is what it is on a server that nothing ails, and not worth a line."""
    return all(value == _USUAL.get(name) for value in values)


def falls(name: str) -> bool:
    """Whether a figure is better where it is smaller."""
    return name.endswith("_ms") or name in ("preemptions", "kv_needed_gib")


def label_text(name: str) -> tuple[str, str]:
    """A figure's name and unit as a reader sees them."""
    return NAMES.get(name, (name, ""))


def number(value: float) -> str:
    """Three significant digits, thousands with commas."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def amount(name: str, value: float) -> str:
    """A figure's value in the unit of its name: a share in percent."""
    return number(100 * value if name in SHARES else value)


def moved_text(name: str, before: float, after: float) -> str:
    """`output 54 -> 93 tokens/s`."""
    label, unit = label_text(name)
    return f"{label} {amount(name, before)} -> {amount(name, after)} {unit}".rstrip()


def figures(result: Result, widest_gap: bool = False) -> dict[str, float]:
    """What a replay came to; latencies that nothing was measured of are left out.

    widest_gap: the longest gap between tokens is what it is about.
    """
    rows = {
        "ttft_p50_ms": _of(result.ttft_ms, "p50"),
        "ttft_p99_ms": _of(result.ttft_ms, "p99"),
        "tpot_mean_ms": _of(result.tpot_ms, "mean"),
        "itl_p99_ms": _of(result.itl_ms, "p99"),
        "itl_max_ms": _of(result.itl_ms, "max") if widest_gap else None,
        "e2e_mean_ms": _of(result.e2e_ms, "mean"),
        "output_tokens_per_s": result.throughput_output_tokens_per_s,
        "goodput_requests_per_s": result.goodput_requests_per_s if result.targets.any else None,
        "good_share": result.good_share if result.targets.any else None,
        "served_share": result.completed / max(1, result.requests),
        "preemptions": float(result.preemptions or 0),
    }
    return {name: value for name, value in rows.items() if value is not None}


def _of(spread: Distribution | None, statistic: str) -> float | None:
    return None if spread is None else getattr(spread, statistic)
