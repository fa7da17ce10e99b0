"""What the evidence says and a replay of the same load does not give: its cause lies outside of what is modelled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..results import Result
from ..simulate import Replay
from .figures import number
from .situation import Situation

FAR = 2.0  # times the replayed latency: beyond every declared error
LESS = 1.15  # beyond the declared error, a rate is so many times lower than the replayed one
MORE = 1.5  # and so many times higher, as a replay's rate counts its filling and emptying
_LATENCIES = {
    "ttft_ms": "the first token",
    "tpot_ms": "a token",
    "itl_ms": "the time between tokens",
    "e2e_ms": "a whole request",
}


@dataclass(frozen=True, slots=True)
class _Gap:
    text: str
    times: float  # what it was missed by, at least


def unexplained(
    situation: Situation, replayed: Result, times: float = 1.0, *, piles_up: bool = False
) -> str | None:
    """The observed latency that lies furthest above the replayed one, from FAR times on; a rate that lies beyond the
    declared error; or preemptions that the replay has none of. None where the replay explains what is seen, or misses
    it by fewer `times`.

    piles_up: more arrives than is done, so that a request waits the longer the later it comes, whatever a replay says.
    """
    gap = _late(situation, replayed, piles_up) or next(_rates(situation, replayed), None)
    if gap is None and situation.preempting and replayed.preemptions == 0:
        gap = _Gap("sequences are evicted and in the replay of that load none is", FAR)
    if gap is None or gap.times < times:
        return None
    if situation.speculation and situation.acceptance is None:
        return (
            f"what is seen is not explained: {gap.text}. Nobody told how many of the drafted tokens are accepted, and the "
            "replay assumes it: --observed acceptance_rate=0.3 tells it, and a server without --speculative-config shows "
            "what drafts are worth"
        )
    return (
        f"what is seen is not explained: {gap.text}. Its cause is not modelled here: another load or cache than "
        "replayed, the host, the network or a neighbour; --log or --metrics of that time may show it"
    )


def as_measured(seen: Replay) -> Result:
    """The replayed figures as a benchmark of the load takes them: from its start."""
    return seen.from_start or seen.result


def _late(situation: Situation, replayed: Result, piles_up: bool) -> _Gap | None:
    found, furthest = None, FAR
    for name, what in _LATENCIES.items():
        if piles_up and name in ("ttft_ms", "e2e_ms"):
            continue
        own = getattr(replayed, name)
        for statistic in ("mean", "p50", "p90", "p99", "") if own is not None else ():
            figure = situation.evidence.find(name, statistic)
            told = None if figure is None else figure.between[0] if figure.between else figure.value
            expected = max(
                getattr(own, statistic or "p99"), 1e-3
            )  # a statistic that nobody names may be that one
            if told is not None and told >= furthest * expected:
                furthest = told / expected
                which = f"{what} ({statistic})" if statistic else what
                text = f"{which} takes {told:,.0f} ms and in the replay of that load {expected:,.0f} ms"
                found = _Gap(text, FAR)
    pace = situation.figure("request_output_tokens_per_s")
    if found is None and pace and replayed.tpot_ms is not None and 1e3 / pace >= FAR * replayed.tpot_ms.mean:
        usual = 1e3 / replayed.tpot_ms.mean
        found = _Gap(f"a request gets {pace:g} tokens/s and in the replay of that load {usual:,.0f}", FAR)
    return found


def _rates(situation: Situation, replayed: Result) -> Iterator[_Gap]:
    """The rates seen over the whole load that lie beyond the declared error of the replayed ones."""
    predicted = {
        "output_tokens_per_s": ("output tokens", replayed.throughput_output_tokens_per_s),
        "total_tokens_per_s": ("tokens", replayed.throughput_total_tokens_per_s),
        "completed_per_s": ("requests", replayed.throughput_requests_per_s),
    }
    if not situation.preempting and not situation.figure("prefix_hit_rate"):
        predicted["prompt_tokens_per_s"] = (
            "prompt tokens",
            replayed.throughput_total_tokens_per_s - replayed.throughput_output_tokens_per_s,
        )
    error = 1 + float(replayed.error_band.get("tpot_percent", 0.0)) / 100
    for name, (what, expected) in predicted.items():
        figure = situation.evidence.find(name, "mean", "") or situation.evidence.find(name, "", "")
        told = None if figure is None else figure.value
        if not told or expected <= 0:
            continue
        factor = max(expected / told, told / expected)
        if factor > error * (LESS if told < expected else MORE):
            text = (
                f"{number(told)} {what} a second are done and {number(expected)} in the replay of that load"
            )
            yield _Gap(text, factor)
