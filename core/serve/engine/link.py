"""The engine process and the socket to it: started, spoken to, watched, ended."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import shutil
import signal
import tempfile
from multiprocessing.process import BaseProcess
from typing import Protocol, cast

import msgspec
import structlog
import zmq

from ...errors import EngineError
from ...messages import Fatal, FromEngine, ToEngine, decode_from_engine, encode
from .process import EXIT_FATAL, PARENTS_SIGNALS, EngineFactory, engine_process_main

# A Unix socket's path may have 107 characters; ours adds some to the temporary folder's.
_MAX_FOLDER_CHARS = 80
_AT_ONCE = 64  # messages read before others have their turn
_LAST_WORDS_S = 2.0  # for what a process said before it ended with EXIT_FATAL
_REAP_S = 0.2  # its pipe closes a moment before its exit code can be had
_LOOK_AGAIN_S = 0.01

log = structlog.get_logger()


class Listener(Protocol):
    """Who hears what the engine says, on the event loop."""

    def on_message(self, message: FromEngine) -> None: ...
    def on_gone(self, why: str) -> None: ...


class EngineLink:
    """One engine process. All methods run on the event loop that called `start`."""

    def __init__(self, factory: EngineFactory, log_level: str, log_format: str) -> None:
        self._factory = factory
        self._log = (log_level, log_format)
        self._process: BaseProcess | None = None
        self._ending = False
        self._told_why = asyncio.Event()  # the engine's last word has come
        self._freed_at_end = contextlib.ExitStack()

    @property
    def pid(self) -> int | None:
        """Process id of the engine process, once it was started."""
        return self._process.pid if self._process is not None else None

    def start(self, listener: Listener) -> None:
        """Starts the process; what it says goes to `listener`. Raises EngineError; `end` frees what there is."""
        if len(tempfile.gettempdir()) > _MAX_FOLDER_CHARS:
            raise EngineError("the temporary folder lies too deep for a socket; set TMPDIR to a shorter path")
        self._listener = listener
        try:
            self._process = self._spawn(self._bind())
        except (OSError, zmq.ZMQError) as error:
            raise EngineError(f"the engine process cannot be started: {error.strerror or error}") from error
        asyncio.get_running_loop().add_reader(_exit_descriptor(self._process), self._on_exit, self._process)
        self._read()

    def _bind(self) -> str:
        """Opens the socket; returns its address."""
        loop, freed = asyncio.get_running_loop(), self._freed_at_end
        folder = tempfile.mkdtemp(prefix="camshaft-")  # only this user may enter it
        freed.callback(shutil.rmtree, folder, ignore_errors=True)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        freed.callback(context.term)
        self._socket = context.socket(zmq.PAIR)
        freed.callback(self._socket.close, linger=0)
        self._socket.set_hwm(0)
        address = f"ipc://{folder}/engine"
        self._socket.bind(address)
        descriptor = int(self._socket.getsockopt(zmq.FD))
        loop.add_reader(descriptor, self._read)
        freed.callback(loop.remove_reader, descriptor)
        return address

    def _spawn(self, address: str) -> BaseProcess:
        process = multiprocessing.get_context("spawn").Process(
            target=engine_process_main, args=(address, self._factory, *self._log), name="EngineCore"
        )
        # Until the child runs and ignores them itself, it inherits that they are held back.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, PARENTS_SIGNALS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return process

    def send(self, message: ToEngine) -> None:
        """Queues a message; never waits."""
        self._socket.send(encode(message), zmq.NOBLOCK)
        # A send may swallow the descriptor's edge, so look for mail afterwards.
        asyncio.get_running_loop().call_soon(self._read)

    async def end(self, timeout_s: float) -> None:
        """Waits so long for the process to end by itself, then kills it; frees everything."""
        self._ending = True
        if self._process is not None:
            await self._reap(self._process, timeout_s)
        self._freed_at_end.close()

    async def _reap(self, process: BaseProcess, timeout_s: float) -> None:
        try:
            await asyncio.to_thread(process.join, timeout_s)
        finally:
            # Whatever went wrong: a child left alive would keep this process from exiting.
            if process.is_alive():
                log.warning("ending the engine process", pid=process.pid)
                process.kill()
            process.join()
        with contextlib.suppress(ValueError):
            asyncio.get_running_loop().remove_reader(_exit_descriptor(process))

    def _read(self) -> None:
        for _ in range(_AT_ONCE):
            if self._socket.closed:
                return
            try:
                data = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                message = decode_from_engine(data)
            except msgspec.DecodeError as error:
                self._listener.on_gone(f"the engine process sent what cannot be read: {error}")
                return
            self._listener.on_message(message)
            if isinstance(message, Fatal):
                self._told_why.set()
        asyncio.get_running_loop().call_soon(self._read)  # the rest, after whoever else is waiting

    def _on_exit(self, process: BaseProcess) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(_exit_descriptor(process))
        watch = loop.create_task(self._hear_end(process))
        self._freed_at_end.callback(watch.cancel)

    async def _hear_end(self, process: BaseProcess) -> None:
        """Tells the listener what the process still said, then that it has gone."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REAP_S):
                while process.exitcode is None:
                    await asyncio.sleep(_LOOK_AGAIN_S)
        if process.exitcode == EXIT_FATAL:
            # On a busy machine its last words may be on their way still, in the socket's own thread.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._told_why.wait(), _LAST_WORDS_S)
        while not self._socket.closed and self._socket.poll(0):
            self._read()
        if not self._ending:
            self._listener.on_gone(f"the engine process has gone ({how_it_ended(process.exitcode)})")


def how_it_ended(exit_code: int | None) -> str:
    """A process's exit code in words; a negative one is the signal that killed it."""
    if exit_code is None or exit_code >= 0:
        return f"exit code {'unknown' if exit_code is None else exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    hint = ", as the kernel does where memory runs out" if -exit_code == signal.SIGKILL else ""
    return f"killed by {name}{hint}"


def _exit_descriptor(process: BaseProcess) -> int:
    """Readable once the process has ended. (Windows alone has something else there.)"""
    return cast("int", process.sentinel)
