"""Requests on their way through the engine: who is in flight, who waits, what came back, and what if it dies.

One message arrives per step and is taken in one go on the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import structlog

from ... import errors
from ...errors import CamshaftError, EngineDead, EngineError, QueueFull
from ...messages import (
    Abort,
    AddRequest,
    Answer,
    Drain,
    Fatal,
    FromEngine,
    Outputs,
    Query,
    Ready,
    Stats,
)
from ..observe.metrics import Metrics
from ..text.generation import Generation, Sequence, sequence_id
from .link import EngineLink
from .process import EngineFactory

_QUERY_TIMEOUT_S = 30.0
_REMEMBERED_IDS = 8192

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """How the engine process is started and how many requests may wait for it."""

    max_queued_requests: int = 1024
    log_level: str = "info"
    log_format: str = "console"


class EngineClient:
    """All methods run on the event loop that called `start`."""

    def __init__(self, factory: EngineFactory, metrics: Metrics, options: ClientOptions) -> None:
        self._link = EngineLink(factory, options.log_level, options.log_format)
        self._metrics = metrics
        self._options = options
        self._by_handle: dict[int, tuple[Generation, Sequence]] = {}
        self._unconfirmed: dict[int, tuple[int, Generation]] = {}  # last handle -> (adds sent, generation)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        # A request's id to the engine's name for it, and how many sequences it has.
        self._ids: OrderedDict[str, tuple[str, int]] = OrderedDict()
        self._next_handle = 0
        self._repeats = 0
        self._sent = 0
        self._counted = 0  # AddRequests that the latest figures know of
        self._heard_s = 0.0
        self._stats: Stats | None = None
        self._opened: asyncio.Future[Ready] | None = None
        self.ready: Ready | None = None
        self.dead: CamshaftError | None = None
        self.on_death: Callable[[], None] = lambda: None

    async def start(self) -> Ready:
        """Starts the process and waits until its engine is open. Raises what the engine failed with."""
        self._opened = asyncio.get_running_loop().create_future()
        self._link.start(self)
        self.ready = await self._opened
        return self.ready

    async def close(self, timeout_s: float = 10.0) -> None:
        """Ends the engine process: asks first, then kills. Requests still in flight are aborted."""
        if self.dead is not None:
            await self._link.end(1.0)  # it is on its way out
        elif self.ready is None:
            await self._link.end(0.0)  # nothing is lost while it loads
        else:
            self._link.send(Abort(list(self._by_handle)))
            self._link.send(Drain())
            await self._link.end(timeout_s)

    @property
    def pid(self) -> int | None:
        """Process id of the engine process."""
        return self._link.pid

    @property
    def in_flight(self) -> int:
        """Sequences that have not ended."""
        return len(self._by_handle)

    @property
    def requests_in_flight(self) -> int:
        """HTTP requests whose sequences have not all ended."""
        return len({id(generation) for generation, _ in self._by_handle.values()})

    @property
    def stats(self) -> Stats | None:
        """The engine's latest figures."""
        return self._stats

    def silence_s(self) -> float:
        """Seconds since the engine last said anything while requests are in flight; 0 without any."""
        return time.monotonic() - self._heard_s if self._by_handle else 0.0

    def queue_depth(self) -> int:
        """Sequences that wait: those the engine last spoke of, and those sent since that find no free row.

        Figures are taken after a step: whoever waits in them waits for room, so new ones will, too. So a request
        is taken only while fewer than max_num_seqs + max_queued_requests sequences are in the engine or on
        their way; where a policy leaves rows free (a closed batch), so many more may wait until a step tells.
        """
        waiting = self._stats.waiting if self._stats is not None else 0
        running = self._stats.running if self._stats is not None else 0
        rows = self.ready.max_num_seqs if self.ready is not None else 0
        free = 0 if waiting else max(0, rows - running)
        return max(0, waiting + self._sent - self._counted - free)

    def submit(self, generation: Generation, requests: Iterable[AddRequest]) -> None:
        """Sends the generation's sequences, one AddRequest each, in order.

        Raises QueueFull beyond the limit, EngineDead without an engine.
        """
        if self.dead is not None:
            raise self.dead
        limit = self._options.max_queued_requests
        if self.queue_depth() >= limit:
            self._metrics.admission_rejections += 1
            raise QueueFull(f"{limit} requests are waiting already (max_queued_requests); try again later")
        if not self._by_handle:
            self._heard_s = time.monotonic()  # silence counts from now
        for sequence, request in zip(generation.sequences, requests, strict=True):
            self._next_handle += 1
            sequence.handle = request.handle = self._next_handle
            request.sent_s = generation.arrival_s
            self._by_handle[sequence.handle] = (generation, sequence)
            self._link.send(request)
            self._sent += 1
        self._unconfirmed[self._next_handle] = (self._sent, generation)
        self._remember(generation)

    def abort(self, generation: Generation) -> None:
        """Ends what still runs of a request and frees its blocks; harmless after its end."""
        handles = [s.handle for s in generation.sequences if self._by_handle.pop(s.handle, None) is not None]
        if handles and self.dead is None:
            self._link.send(Abort(handles))
            self._metrics.count_aborted(len(handles))

    def cut_off(self, why: str) -> None:
        """Ends every request in flight with an error."""
        handles = list(self._by_handle)
        for generation, _ in list(self._by_handle.values()):
            generation.fail(EngineDead(why))
        self._by_handle.clear()
        if handles and self.dead is None:
            self._link.send(Abort(handles))
            self._metrics.count_aborted(len(handles))

    async def query(self, what: str, argument: str = "") -> dict[str, Any]:
        """Asks the engine; answered between two steps. Raises EngineDead, or EngineError where it says nothing."""
        if self.dead is not None:
            raise self.dead
        self._next_handle += 1
        number = self._next_handle
        self._answers[number] = asyncio.get_running_loop().create_future()
        self._link.send(Query(number, what, argument))
        try:
            return await asyncio.wait_for(self._answers[number], _QUERY_TIMEOUT_S)
        except TimeoutError:
            why = f"the engine has said nothing for {_QUERY_TIMEOUT_S:g} s: its step is long, or it hangs"
            raise EngineError(why) from None
        finally:
            del self._answers[number]

    def unique_name(self, name: str) -> str:
        """`name`, or a variant if a request of that name was seen: clients may send an X-Request-Id twice."""
        if name not in self._ids:
            return name
        self._repeats += 1
        return f"{name}~{self._repeats}"

    def sequence_ids(self, name: str) -> list[str]:
        """The engine's ids behind a response id or an X-Request-Id; the id itself if unknown."""
        if name not in self._ids:
            return [name]
        stem, count = self._ids[name]
        return [sequence_id(stem, index) for index in range(count)]

    def _remember(self, generation: Generation) -> None:
        sequences = generation.sequences
        known = sequences[0].id.removesuffix(sequence_id("", 0)), len(sequences)
        for name in (generation.id, generation.id.partition("-")[2]):
            self._ids[name] = known
            self._ids.move_to_end(name)
        while len(self._ids) > _REMEMBERED_IDS:
            self._ids.popitem(last=False)

    # what the engine says

    def on_message(self, message: FromEngine) -> None:
        """One message, in the order sent."""
        self._heard_s = time.monotonic()
        if isinstance(message, Outputs):
            self._take_outputs(message)
        elif isinstance(message, Answer):
            waiting = self._answers.get(message.number)
            if waiting is not None and not waiting.done():
                waiting.set_result(message.body)
        elif isinstance(message, Fatal):
            self._die(_error_of(message))
        elif self._opened is not None and not self._opened.done():
            self._opened.set_result(message)

    def on_gone(self, why: str) -> None:
        """The process has ended, or cannot be understood."""
        self._die(EngineDead(why))

    def _take_outputs(self, message: Outputs) -> None:
        now = time.monotonic()
        woken: dict[int, Generation] = {}
        stopped: list[int] = []
        for output in message:
            entry = self._by_handle.get(output.handle)
            if entry is None:
                continue  # aborted meanwhile
            generation, sequence = entry
            if sequence.feed(output):
                stopped.append(output.handle)
            self._metrics.observe_output(generation, sequence, len(output.tokens), now)
            if sequence.finished:
                del self._by_handle[output.handle]
            if sequence.ready():
                woken[id(generation)] = generation
        if stopped:
            self._link.send(Abort(stopped))
        if message.stats is not None:
            self._stats = message.stats
            self._counted = message.received
            self._metrics.take_stats(message.stats)
        self._confirm(message.received)
        for generation in woken.values():
            generation.wake()

    def _confirm(self, received: int) -> None:
        for handle, (sent, generation) in list(self._unconfirmed.items()):
            if sent > received:
                return
            del self._unconfirmed[handle]
            generation.wake()

    def _die(self, error: CamshaftError) -> None:
        if self.dead is not None:
            return
        self.dead = error if isinstance(error, EngineDead) else EngineDead(f"the engine stopped: {error}")
        if self._opened is not None and not self._opened.done():
            self._opened.set_exception(error)
            return
        log.error("engine died", error=str(error), in_flight=self.in_flight)
        for generation, _ in self._by_handle.values():
            generation.fail(self.dead)
        self._by_handle.clear()
        for waiting in self._answers.values():
            if not waiting.done():
                waiting.set_exception(self.dead)
        self.on_death()


def _error_of(message: Fatal) -> CamshaftError:
    kind = getattr(errors, message.kind, errors.EngineError)
    try:
        return kind(message.error)
    except TypeError:
        return errors.EngineError(message.error)
