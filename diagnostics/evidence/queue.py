"""Whether a queue grows over the times at which it was counted."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

LINE_S = 10.0  # between two lines of vLLM's log, where they carry no time (VLLM_LOG_STATS_INTERVAL)
LEAST = 0.2  # of what was there on average: a smaller rise is a queue that comes and goes
STRAIGHT = 0.9  # correlation of the counts with time


def growth_per_s(times_s: Sequence[float | None], counts: Sequence[float]) -> float | None:
    """Requests by which those in a server grow a second, by least squares; None where they do not grow steadily.

    times_s: of each count; None where nobody wrote it down.
    """
    known = [time for time in times_s if time is not None]
    times = known if len(known) == len(counts) else [LINE_S * place for place in range(len(counts))]
    if len(counts) < 2 or times[-1] <= times[0]:
        return None
    mean_s, mean = sum(times) / len(times), sum(counts) / len(counts)
    spread = sum((time - mean_s) ** 2 for time in times)
    together = sum((time - mean_s) * (count - mean) for time, count in zip(times, counts, strict=True))
    scatter = sum((count - mean) ** 2 for count in counts)
    slope = together / spread
    risen = slope * (times[-1] - times[0])
    if risen < max(LEAST * mean, 2 * sqrt(mean)) or together < STRAIGHT * sqrt(spread * scatter):
        return None
    return slope
