"""Names and units of figures as people, logs and metrics pages write them, brought to one form."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from ...core.places import load_yaml
from .model import Figure, Trend

_FILE = Path(__file__).with_name("vocabulary.yaml")

# Words for the units of a quantity, in a name or behind a number, and their factor to the canonical one.
_UNITS = {
    "ms": {
        "s": 1e3, "sec": 1e3, "secs": 1e3, "second": 1e3, "seconds": 1e3, "ms": 1.0, "msec": 1.0, "millisecond": 1.0,
        "milliseconds": 1.0, "us": 1e-3, "microseconds": 1e-3, "min": 6e4, "minute": 6e4, "minutes": 6e4,
    },
    "gib": {
        "gib": 1.0, "gb": 1e9 / 2**30, "g": 1.0, "mib": 2**-10, "mb": 1e6 / 2**30, "m": 2**-10, "bytes": 2**-30,
    },
}  # fmt: skip
_PERCENT = {"percent": 0.01, "pct": 0.01}
_SUFFIX = {
    "ms": "_ms", "share": "", "count": "", "tokens": "", "tokens_per_s": "_tokens_per_s", "per_s": "_per_s",
    "cores": "", "gib": "_gib",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a name stands for: canonical name, unit, statistic, what is left over, and a factor for the value.

    factor is None where the quantity has a unit and the name does not say which.
    """

    name: str
    unit: str
    statistic: str
    qualifier: str
    factor: float | None
    in_percent: bool


@cache
def vocabulary() -> dict[str, Any]:
    """The table of names, as written in `vocabulary.yaml`."""
    return load_yaml(_FILE.read_text(encoding="utf-8"))


@cache
def _index(rates: bool) -> dict[str, str]:
    """Every spelling to its base name, of rates or of everything else."""
    return {
        spelling: base
        for base, row in vocabulary()["figures"].items()
        if (row["unit"] in ("tokens_per_s", "per_s")) == rates
        for spelling in (base, *row["names"])
    }


def understand(written: str) -> Meaning | None:
    """What a written name means; None where nothing in the vocabulary begins it.

    `ttft_p99_s`, `generation_tok_s_per_gpu_before`, `vllm:num_requests_running`, `TPOT (ms)` are all
    understood: prefix, statistic and unit come off, the longest known name is taken, the rest qualifies.
    """
    text = re.sub(r"^(vllm|sglang|camshaft)[:_]", "", written.strip().lower())
    words = [word for word in re.split(r"[^a-z0-9]+", text) if word]
    if _take_rate(words) is not None:
        words = ["throughput", *words]
    for start in range(min(3, len(words))):
        for match in (_match_rate, _match_level):
            for end in range(len(words), start, -1):
                found = match("_".join(words[start:end]), words[end:], words[:start])
                if found is not None:
                    return found
    return None


def _match_rate(joined: str, rest: list[str], before: list[str]) -> Meaning | None:
    """A name followed by a rate word (`output` + `tok_s`)."""
    rate = _take_rate(rest)
    base = _rate_base(joined, rate[0]) if rate else None
    return None if base is None or rate is None else _meaning(base, rate[1] + before)


def _match_level(joined: str, rest: list[str], before: list[str]) -> Meaning | None:
    """A name that needs no rate word, or says by itself that it is a rate."""
    base = _index(False).get(joined) or _index(False).get(re.sub(r"_(total|count)$", "", joined))
    if base is None and _plain(joined):
        base = _index(True).get(joined)
    return None if base is None else _meaning(base, rest + before)


def _take_rate(rest: list[str]) -> tuple[str, list[str]] | None:
    """The rate word that `rest` begins with, as kind, and what follows it."""
    for size in (3, 2, 1):
        joined = "_".join(rest[:size])
        if len(rest) >= size and joined in vocabulary()["rate_words"]:
            return ("per_s" if joined.startswith(("req", "per")) else "tokens_per_s"), rest[size:]
    return None


def _rate_base(joined: str, kind: str) -> str | None:
    suffix = "req" if kind == "per_s" else "tok"
    for spelling in (f"{joined}_{suffix}", joined):
        base = _index(True).get(spelling)
        if base is not None and vocabulary()["figures"][base]["unit"] == kind:
            return base
    return None


def _plain(joined: str) -> bool:
    """Whether a rate's name says so by itself (`request_rate`, `generation_throughput`, `rps`)."""
    return any(word in joined for word in ("rate", "throughput", "rps", "qps", "per_request", "per_user"))


def _meaning(base: str, rest: list[str]) -> Meaning:
    unit = vocabulary()["figures"][base]["unit"]
    units = _UNITS.get(unit, {})
    factor: float | None = None if units else 1.0
    statistic, percent, left = "", False, []
    for word in rest:
        if word in vocabulary()["statistics"]:
            statistic = {"avg": "mean", "median": "p50", "peak": "max", "sum": "total"}.get(word, word)
        elif word in units:
            factor = units[word]
        elif word in _PERCENT:
            percent = True
        elif word not in ("tokens", "perc", "reqs", "per", "s", "time"):
            left.append(word)
    return Meaning(_full(base, unit), unit, statistic, "_".join(left), factor, percent)


def _full(base: str, unit: str) -> str:
    suffix = _SUFFIX[unit]
    if unit in ("tokens_per_s", "per_s"):
        return base.removesuffix("_rate") + suffix
    return base + suffix


_NUMBER = r"[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?"
_SCALE = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}


def read_value(written: Any, meaning: Meaning) -> tuple[float | None, Trend | None]:
    """A value as written, in the canonical unit, and the word for its trend if there is one.

    Numbers may carry `~`, a unit, a percent sign, thousands commas, a scale letter or be a range (its middle). There is
    no value where neither it nor the name tells the unit that it needs.
    """
    if isinstance(written, bool):
        return float(written), None
    if isinstance(written, int | float):
        return _scaled(float(written), "", meaning), None
    text = str(written).strip().lower()
    trend = _trend(text)
    number = re.search(rf"({_NUMBER})(?:\s*(?:-|–|to)\s*({_NUMBER}))?\s*([a-z%]*)", text)
    if number is None:
        return None, trend
    low = float(number[1].replace(",", ""))
    value = (low + float(number[2].replace(",", ""))) / 2 if number[2] else low
    if meaning.unit in ("per_s", "tokens_per_s") and re.search(r"(/|\bper|\ba)\s*min", text):
        value /= 60
    return _scaled(value, number[3], meaning), trend


def lacks_unit(written: Any, meaning: Meaning) -> bool:
    """Whether a value is a number and nothing tells its unit, though its quantity is known in several."""
    known = replace(meaning, factor=1.0)
    return read_value(written, meaning)[0] is None and read_value(written, known)[0] is not None


def _scaled(value: float, unit: str, meaning: Meaning) -> float | None:
    if (units := _UNITS.get(meaning.unit)) is not None:
        factor = units.get(unit, meaning.factor)
        return None if factor is None else value * factor
    if meaning.unit in ("share", "cores"):
        percent = unit == "%" or meaning.in_percent or (meaning.unit == "share" and 1.5 < value <= 100)
        return value / 100 if percent else value
    return value * _SCALE.get(unit, 1.0)


def _trend(text: str) -> Trend | None:
    for trend, words in vocabulary()["words"].items():
        if any(re.search(rf"\b{re.escape(word)}", text) for word in words):
            return trend
    return None


def figure(written_name: str, written_value: Any, source: str) -> Figure | None:
    """A figure from a name and a value as a person writes them; None where the name is not understood."""
    meaning = understand(written_name)
    if meaning is None:
        return None
    value, trend = read_value(written_value, meaning)
    if value is None and trend is None:
        return None
    return Figure(
        name=meaning.name,
        value=value,
        source=source,
        statistic=meaning.statistic,
        qualifier=meaning.qualifier,
        trend=trend,
    )
