"""The engine process: its loop, its mailbox, and its end.

It polls its socket without waiting while there is work, waits when there is none, and never outlives its parent.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing import parent_process
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import structlog
import zmq

from ...errors import CamshaftError, QueueFull, RequestError
from ...messages import (
    Abort,
    AddRequest,
    Answer,
    Drain,
    Fatal,
    FromEngine,
    Output,
    Outputs,
    Query,
    Ready,
    Stats,
    decode_to_engine,
    encode,
)
from ...request import FINISH_REJECTED, Request
from ..observe.logs import configure_logs

STATS_INTERVAL_S = 0.25
_ORPHAN_GRACE_S = 1.0
_BLOCKED_WAIT_MS = 2
EXIT_FATAL = 70  # EX_SOFTWARE
# Ctrl-C, a closed terminal and a group's SIGTERM reach the engine process too; its parent decides when it drains.
PARENTS_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

log = structlog.get_logger()


class Engine(Protocol):
    """What the loop needs of an engine."""

    def clock(self) -> float:
        """Now, in the seconds that requests' times are told in."""
        ...

    def open(self) -> Ready: ...
    def add(self, request: Request) -> None: ...
    def abort(self, handles: list[int]) -> None: ...
    def step(self) -> Outputs: ...
    @property
    def has_work(self) -> bool: ...
    @property
    def blocked(self) -> bool:
        """Whether the last step had nothing to run."""
        ...

    def stats(self) -> Stats: ...
    def query(self, what: str, argument: str) -> dict[str, Any]: ...
    def check_integrity(self) -> None: ...
    def close(self) -> None: ...


EngineFactory = Callable[[], Engine]


class EngineLoop:
    """Messages in, steps, messages out."""

    def __init__(self, engine: Engine, socket: zmq.Socket[bytes]) -> None:
        self._engine = engine
        self._socket = socket
        self._clock = engine.clock
        self._received = 0
        self._rejected: list[Output] = []
        self._draining = False
        self._stats_at = 0.0
        self._idle = False

    def run(self) -> None:
        """Until drained. Raises whatever the engine raises."""
        engine = self._engine
        while not (self._draining and not engine.has_work):
            self._take_messages(wait=self._idle)
            if engine.has_work:
                self._idle = False
                self._emit(self._step())
            elif not self._idle:
                self._emit(Outputs([]), stats=True)
                engine.check_integrity()
                self._idle = True

    def _step(self) -> Outputs:
        outputs = self._engine.step()
        if self._engine.blocked and not outputs.outputs and not outputs.handles:
            # What comes next depends on time or on a message.
            self._socket.poll(_BLOCKED_WAIT_MS)
        return outputs

    def _take_messages(self, wait: bool) -> None:
        if wait:
            self._socket.poll()
        before = self._received
        while True:
            try:
                data = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            self._handle(data)
        if self._received != before:
            # Before the step, which may be long: the sender learns at once what was taken and what refused.
            # Who really waits shows only after the step, so the figures follow then.
            rejected, self._rejected = self._rejected, []
            self._send(Outputs(rejected, received=self._received))
            self._idle, self._stats_at = False, 0.0

    def _handle(self, data: bytes) -> None:
        message = decode_to_engine(data)
        if isinstance(message, AddRequest):
            self._add(message)
        elif isinstance(message, Abort):
            self._engine.abort(message.handles)
            self._idle = False
        elif isinstance(message, Query):
            self._send(Answer(message.number, self._query(message)))
        elif isinstance(message, Drain):
            self._draining = True

    def _add(self, message: AddRequest) -> None:
        self._received += 1
        try:
            self._engine.add(_request_of(message, self._clock()))
        except RequestError as error:
            self._rejected.append(
                Output(
                    message.handle,
                    [],
                    FINISH_REJECTED,
                    error=str(error),
                    error_param=error.param,
                    retryable=isinstance(error, QueueFull),
                )
            )

    def _query(self, query: Query) -> dict[str, Any]:
        if query.what == "stats":
            stats = self._engine.stats()
            self._send(Outputs([], stats=stats, received=self._received))  # its lists are given only once
            return msgspec.structs.asdict(stats)
        try:
            answer = self._engine.query(query.what, query.argument)
            if "arrival_s" in answer:
                # The engine's clock means nothing elsewhere.
                answer = {**answer, "arrived_unix_s": time.time() - self._clock() + answer["arrival_s"]}
            return answer
        except CamshaftError as error:
            return {"error": str(error)}

    def _emit(self, outputs: Outputs, stats: bool = False) -> None:
        now = time.monotonic()
        ended = any(output.finish_reason for output in outputs.outputs)
        if stats or ended or now - self._stats_at >= STATS_INTERVAL_S:
            self._stats_at = now
            outputs.stats = self._engine.stats()
        outputs.received = self._received
        if outputs.outputs or outputs.handles or outputs.stats is not None:
            self._send(outputs)

    def _send(self, message: FromEngine) -> None:
        self._socket.send(encode(message))


def _request_of(message: AddRequest, now_s: float) -> Request:
    return Request(
        id=message.id,
        prompt=np.frombuffer(message.prompt, dtype="<i4").copy(),  # torch wants arrays that may be written
        params=message.params,
        arrival_s=now_s if message.sent_s is None else min(now_s, message.sent_s),
        priority=message.priority,
        tenant=message.tenant,
        deadline_s=None if message.timeout_ms is None else now_s + message.timeout_ms / 1000,
        fork_of=message.fork_of,
        cache_salt=message.cache_salt,
        handle=message.handle,
    )


def engine_process_main(address: str, factory: EngineFactory, log_level: str, log_format: str) -> None:
    """Entry point of the process: opens the engine, serves until drained, exits with 70 after a Fatal."""
    for number in PARENTS_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    configure_logs(log_level, log_format, process="EngineCore")
    _watch_parent(Path(address.removeprefix("ipc://")).parent)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
    socket = context.socket(zmq.PAIR)
    socket.set_hwm(0)
    socket.connect(address)
    code = 0
    try:
        _serve(factory, socket)
    except Exception as error:
        code = EXIT_FATAL
        known = isinstance(error, CamshaftError)
        log.error("engine stopped", error=str(error), kind=type(error).__name__, exc_info=not known)
        first_line = str(error).partition("\n")[0][:500]
        text = (
            str(error) if known else f"{type(error).__name__}: {first_line} (the engine's log has the rest)"
        )
        text = text.encode("utf-8", "replace").decode()  # a path's name need not be UTF-8
        socket.send(encode(Fatal(text, type(error).__name__ if known else "EngineError")))
    finally:
        socket.close(linger=2000)
        context.term()
    if code:
        # Threads of a broken engine must not keep the process alive.
        os._exit(code)


def _serve(factory: EngineFactory, socket: zmq.Socket[bytes]) -> None:
    engine = factory()
    try:
        socket.send(encode(engine.open()))
        gc.collect()
        gc.freeze()
        EngineLoop(engine, socket).run()
    finally:
        engine.close()


def _watch_parent(folder: Path) -> None:
    """Ends this process, and what the parent left in `folder`, once the parent is gone."""
    parent = parent_process()
    if parent is None:
        return

    def wait() -> None:
        parent.join()
        log.warning("parent process is gone; exiting")
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(_ORPHAN_GRACE_S)
        os._exit(EXIT_FATAL)

    threading.Thread(target=wait, name="parent-watch", daemon=True).start()
