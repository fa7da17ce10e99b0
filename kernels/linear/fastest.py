"""Which of several implementations of one product is the fastest on this device: measured once a shape.

No table can know it: a library's own choice differs by release, and a device's limits by model. Ways sum in different
orders, so that where two are close, the last bits of a result, and with them a token between two equals, may differ
from one start to the next.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

_log = logging.getLogger(__name__)

Timer = Callable[[Callable[[], Any]], float]

MARGIN = 0.97  # another is chosen only below this share of the first one's time: noise changes no choice
CALLS = 10  # that are timed together
_AHEAD_CYCLES = 2_000_000  # the device idles for about a millisecond while the host queues what is timed


def device_seconds(run: Callable[[], Any]) -> float:
    """Of one call of CALLS in a row, without the host's share: all are queued before the first begins."""
    run()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(_AHEAD_CYCLES)
    begin.record()
    for _ in range(CALLS):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / CALLS


class Fastest:
    """Remembers choices by a key. The first implementation is the one to keep when in doubt, unless it cannot run: a
    library may refuse a shape.
    """

    def __init__(self, timer: Timer = device_seconds) -> None:
        self._timer = timer
        self._known: dict[Hashable, int] = {}

    def __call__(
        self, key: Hashable, ways: Sequence[Callable[..., Any]], *arguments: Any
    ) -> Callable[..., Any]:
        """One of `ways`, all of which may be called with `arguments` any number of times.

        Measures on the first call with a key, which waits for the device; while a graph is captured it cannot,
        and gives the first. Raises what the first raises where none runs.
        """
        if len(ways) == 1:
            return ways[0]
        found = self._known.get(key)
        if found is None:
            if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
                return ways[0]
            found = self._known[key] = self._measured(key, ways, arguments)
        return ways[found]

    def _measured(self, key: Hashable, ways: Sequence[Callable[..., Any]], arguments: Sequence[Any]) -> int:
        rounds = [[self._seconds(key, way, arguments) for way in ways] for _ in range(3)]
        seconds = [min(times) for times in zip(*rounds, strict=True)]
        best = min(range(len(ways)), key=seconds.__getitem__)
        if seconds[best] == math.inf:
            ways[0](*arguments)  # raises
        best = best if seconds[best] < MARGIN * seconds[0] else 0
        _log.debug("%s: %s of %s, which take %s s", key, ways[best].__name__, len(ways), seconds)
        return best

    def _seconds(self, key: Hashable, way: Callable[..., Any], arguments: Sequence[Any]) -> float:
        """Of one call; infinite where a library refuses it."""
        try:
            return self._timer(lambda: way(*arguments))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            _log.debug("%s: %s cannot run: %s", key, way.__name__, error)
            return math.inf
