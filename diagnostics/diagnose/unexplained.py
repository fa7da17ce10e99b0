"""What the evidence says and a replay of the same load does not give: its cause lies outside of what is modelled."""

from __future__ import annotations

from ..results import Result
from .situation import Situation

FAR = 2.0  # times the replayed figure: beyond every declared error
_LATENCIES = {
    "ttft_ms": "the first token",
    "tpot_ms": "a token",
    "itl_ms": "the time between tokens",
    "e2e_ms": "a whole request",
}


def unexplained(situation: Situation, replayed: Result) -> str | None:
    """The observed latency that lies furthest above the replayed one, from FAR times on, or preemptions that the replay
    has none of; None where the replay explains what is seen.
    """
    found, furthest = None, FAR
    for name, what in _LATENCIES.items():
        own = getattr(replayed, name)
        for statistic in ("mean", "p50", "p90", "p99") if own is not None else ():
            figure = situation.evidence.find(name, statistic)
            told = None if figure is None else figure.between[0] if figure.between else figure.value
            expected = max(getattr(own, statistic), 1e-3)
            if told is not None and told >= furthest * expected:
                furthest = told / expected
                found = f"{what} ({statistic}) takes {told:,.0f} ms and in the replay of that load {expected:,.0f} ms"
    pace = situation.figure("request_output_tokens_per_s")
    if found is None and pace and replayed.tpot_ms is not None and 1e3 / pace >= FAR * replayed.tpot_ms.mean:
        found = f"a request gets {pace:g} tokens/s and in the replay of that load {1e3 / replayed.tpot_ms.mean:,.0f}"
    if found is None and situation.preempting and replayed.preemptions == 0:
        found = "sequences are evicted and in the replay of that load none is"
    if found is None:
        return None
    return (
        f"what is seen is not explained: {found}. Its cause is not modelled here: another load or cache than told, the "
        "host, the network or a neighbour; --log or --metrics of that time may show it"
    )
