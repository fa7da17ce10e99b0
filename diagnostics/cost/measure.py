"""Which steps a calibration times, in what order, and what is kept of them.

Every kind of step is timed once a round, so that whatever disturbs the machine for a while meets them all;
the median over the rounds is what a step usually takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...core.errors import CapacityError
from ...core.execute.base import Capacity, Executor
from .neighbours import QUIET_SHARE, Neighbours
from .probe import Point, Probe, Progress

SHORT = 16  # a context whose attention does not count
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
SILENT = (1, 2, 4, 8, 16, 32)  # prompt tokens without a token drawn: what the head adds is the difference
CHUNKS = (64, 96, 128, 192, 256, 512)
STEP_TOKENS = 256  # of a step that decodes share with a chunk
FILLED = 8  # rows with keys and values of their own
LENGTH = 1024  # tokens of each
FILL_CHUNK = 256
REPEATS = 3  # of a short step, in a row, in each round
SHORT_STEP = 32  # tokens
MIN_ROUNDS, MAX_ROUNDS = 3, 12
WINDOW_S = 0.5  # over which the neighbours' share is taken
ENOUGH = 2  # undisturbed timings of each kind of step; for them, a calibration takes up to twice its time


@dataclass(slots=True)
class Timings:
    """Milliseconds of measured steps, of each kind in all rounds; `disturbed` while others took cores."""

    by_point: dict[Point, list[float]] = field(default_factory=dict)
    disturbed: dict[Point, list[float]] = field(default_factory=dict)
    rounds: int = 0

    def add(self, point: Point, ms: float, quiet: bool = True) -> None:
        kept = self.by_point if quiet else self.disturbed
        kept.setdefault(point, []).append(ms)

    def kept(self) -> dict[Point, list[float]]:
        """Of each kind the undisturbed steps; where there are none, the fastest of the disturbed ones."""
        slowed = {point: [min(values)] for point, values in self.disturbed.items()}
        return {**slowed, **self.by_point}

    def fewest(self, plan: Sequence[Point]) -> int:
        """Undisturbed steps of the kind that has least of them."""
        return min(len(self.by_point.get(point, ())) for point in plan)

    def medians(self) -> dict[Point, float]:
        return {point: float(np.median(values)) for point, values in self.kept().items()}

    def disturbed_share(self) -> float:
        """Of all timed steps."""
        count = sum(len(values) for values in self.disturbed.values())
        return count / max(1, count + sum(len(values) for values in self.by_point.values()))

    def spread(self) -> float:
        """How much a kind of step varied between rounds: half the range of its middle half, as a share of the
        median; the median over all kinds that were timed more than once, undisturbed if any were.
        """
        shares = []
        for values in (self.by_point or self.disturbed).values():
            if len(values) < 2:
                continue
            low, middle, high = np.percentile(values, (25, 50, 75))
            shares.append((high - low) / 2 / middle)
        return float(np.median(shares)) if shares else 0.0


@dataclass(frozen=True, slots=True)
class Room:
    """What of an executor a calibration uses."""

    rows: int
    filled: int
    length: int  # tokens

    @classmethod
    def of(cls, capacity: Capacity) -> Room:
        """The most that fits, up to the sizes above. Raises CapacityError if that is too little to measure."""
        rows = min(capacity.max_num_seqs, BATCHES[-1])
        filled = min(rows, FILLED)
        blocks = min(capacity.num_blocks // filled, LENGTH // capacity.block_size)
        length = min(capacity.max_model_len - 1, blocks * capacity.block_size - 1)
        if length < 4 * SHORT or rows < 2:
            raise CapacityError(
                f"the cache holds {capacity.num_blocks} blocks of {capacity.block_size} tokens and {rows} rows: too "
                "few to measure; raise kv_cache_memory_bytes, max_model_len or max_num_seqs"
            )
        return cls(rows, filled, length)


def points(room: Room) -> list[Point]:
    """The steps of one round: decodes by batch and by context, chunks by size and by start, and mixtures."""
    half, all_but_one = room.length // 2, room.filled - 1
    several = sorted({1, room.filled // 2, room.filled} - {0})
    found = [Point(decodes=n, context=SHORT) for n in BATCHES if n <= room.rows]
    found += [Point(decodes=n, context=c) for n in several for c in (half, room.length)]
    found += [Point(chunks=1, tokens=n) for n in SILENT if n <= room.rows]
    chunks = [n for n in CHUNKS if n <= room.length]
    found += [Point(chunks=1, tokens=n, ends=True) for n in chunks]
    found += [Point(chunks=1, tokens=n, start=room.length - n) for n in chunks if n in (64, 128, 256)]
    if chunks:
        found.append(Point(chunks=2, tokens=chunks[-1], ends=True))
    for total in (64, 128, STEP_TOKENS):
        tokens = total - all_but_one
        if 0 < tokens <= half:
            found.append(Point(all_but_one, half, 1, tokens, 0, ends=True))
            found.append(Point(all_but_one, half, 1, tokens, half, ends=False))
    return found


def measure(
    executor: Executor,
    capacity: Capacity,
    *,
    seconds: float = 40.0,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
    neighbours: Neighbours | None = None,
) -> Timings:
    """Times steps in rounds for about `seconds`, three rounds at least. Raises CapacityError (see `Room`)."""
    room, say = Room.of(capacity), progress or (lambda _: None)
    probe = Probe(executor, capacity, room.rows, room.filled, room.length)
    session = _Session(probe, clock, neighbours or Neighbours())
    begun, plan, longest = clock(), points(room), 0.0
    say(f"filling {room.filled} sequences of {room.length:,} tokens")
    session.probe.begin()
    session.fill(room)
    timings = session.timings
    while timings.rounds < MAX_ROUNDS:
        left = seconds if timings.fewest(plan) >= ENOUGH else 2 * seconds
        if timings.rounds >= MIN_ROUNDS and clock() - begun + longest >= left:
            break
        started = clock()
        say(f"{started - begun:.0f} s: round {timings.rounds + 1} of {len(plan)} kinds of steps")
        session.round(plan)
        longest = max(longest, clock() - started)
        timings.rounds += 1
    session.probe.end()
    return timings


@dataclass(slots=True)
class _Session:
    """Times steps; tells disturbed ones by what others took of the cores over windows of WINDOW_S."""

    probe: Probe
    clock: Callable[[], float]
    neighbours: Neighbours
    timings: Timings = field(default_factory=Timings)
    pending: list[tuple[Point, float]] = field(default_factory=list)
    window_s: float = 0.0  # since when steps are pending

    def fill(self, room: Room) -> None:
        """Computes every filled row's tokens, so that later steps read real keys and values."""
        for row in range(room.filled):
            for start in range(0, room.length, FILL_CHUNK):
                point = Point(chunks=1, tokens=min(FILL_CHUNK, room.length - start), start=start)
                if row and point.tokens == FILL_CHUNK:
                    self.time(point, row)
                else:  # a process's first large step pays for its buffers
                    self.probe.run(point, row)
        self.close()

    def round(self, plan: Sequence[Point]) -> None:
        for point in plan:
            for _ in range(REPEATS if point.total_tokens <= SHORT_STEP else 1):
                self.time(point)
        self.close()

    def time(self, point: Point, row: int = 0) -> None:
        if not self.pending:
            self.window_s = self.clock()
            self.neighbours.share()
        self.pending.append((point, self.probe.run(point, row)))
        if self.clock() - self.window_s >= WINDOW_S:
            self.close()

    def close(self) -> None:
        """Ends a window: its steps are kept, as undisturbed or not."""
        quiet = not self.pending or (self.neighbours.share() or 0.0) <= QUIET_SHARE
        for point, ms in self.pending:
            self.timings.add(point, ms, quiet)
        self.pending = []
