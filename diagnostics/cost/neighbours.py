"""How much of the machine other processes take while something is measured."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

STAT = Path("/proc/stat")
# Of all cores: what was timed while others took more counts only where there is nothing else.
QUIET_SHARE = 0.15
IDLE, IOWAIT, GUEST = 3, 4, 8  # columns of the line; guests are counted as users too


@dataclass(slots=True)
class Neighbours:
    """Processor time of others, from Linux's counters (proc(5)) less this process's own.

    Counters tick every 10 ms, so a share over much less than a second is rough.
    """

    path: Path = STAT
    _last: tuple[float, float] | None = field(default=None, repr=False)

    def share(self) -> float | None:
        """The share of all cores' time that others took since the last call; None the first time, and where
        the system does not say.
        """
        before, self._last = self._last, self._read()
        if before is None or self._last is None:
            return None
        others, total = self._last[0] - before[0], self._last[1] - before[1]
        return min(1.0, max(0.0, others / total)) if total > 0 else 0.0

    def _read(self) -> tuple[float, float] | None:
        """Seconds of others' work and of all time, summed over the cores."""
        try:
            with self.path.open() as file:
                ticks = [int(value) for value in file.readline().split()[1:]]
        except (OSError, ValueError):
            return None
        if len(ticks) < GUEST:
            return None
        tick_s, total = 1 / os.sysconf("SC_CLK_TCK"), sum(ticks[:GUEST])
        return (total - ticks[IDLE] - ticks[IOWAIT]) * tick_s - time.process_time(), total * tick_s
