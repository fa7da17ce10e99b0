"""The life of a server: bind, load, serve, drain, end; and the exit code that says how it went."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any

import structlog
import uvicorn
import uvloop

from ..config import ServeConfig
from ..errors import ConfigError, EngineError, RequestError
from ..messages import Ready
from ..version import __version__
from .api.prompts import Tokenizer
from .api.service import ModelLimits, Service
from .app import build_app
from .engine.client import ClientOptions, EngineClient
from .files import check_certificate, check_recording, read_chat_template, sampling_defaults
from .http.protocol import KEEP_ALIVE_S, BoundedHttpProtocol
from .observe.logs import configure_logs
from .observe.metrics import Metrics
from .observe.statslog import stats_line
from .parts import Parts
from .text.detokenize import TokenText

# After the engine's death: long enough for clients to read their errors and a probe to see /health say so.
DEAD_GRACE_S = 5.0
_BACKLOG = 2048
_STILL_S = 10.0  # between two lines that say so while a model loads
_WANTED_FILES = 65536  # a file descriptor a connection
_LEAST_FILES = 64  # some thirty are open before the first client comes

log = structlog.get_logger()


class Exit(IntEnum):
    """Exit codes of `engine serve`."""

    OK = 0  # drained
    FAILED = 1  # the engine died, or requests had to be cut off


def run_server(parts: Parts) -> int:
    """Serves until told to stop; returns the exit code. Raises CamshaftError if it cannot start."""
    configure_logs(parts.config.log_level, parts.config.log_format, process="APIServer")
    return uvloop.run(Server(parts).run())


class _Uvicorn(uvicorn.Server):
    """Leaves signals to us."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Server:
    """One server, from bind to exit."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._config = parts.config
        names = self._config.served_model_name or (self._config.model,)
        self._metrics = Metrics(names[0])
        options = ClientOptions(
            self._config.max_queued_requests, self._config.log_level, self._config.log_format
        )
        self._client = EngineClient(parts.engine_factory, self._metrics, options)
        self._names = tuple(names)
        self._stopping = asyncio.Event()
        self._now = asyncio.Event()  # a second signal: at once
        self._tasks: set[asyncio.Task[None]] = set()
        self._uvicorn: _Uvicorn | None = None
        self._service: Service | None = None
        self._exit = Exit.OK
        self.on_listening: Callable[[str], Any] = lambda _: None  # told the address

    @property
    def client(self) -> EngineClient:
        """The line to the engine process."""
        return self._client

    async def run(self) -> int:
        """Raises CamshaftError if it cannot start."""
        check_certificate(self._config)
        check_recording(self._config)
        self._template = read_chat_template(self._config.chat_template)
        self._defaults = sampling_defaults(self._config, self._parts.model_folder)
        _raise_file_limit()
        listener = bind(self._config)
        bound = _identity(self._config.uds) if self._config.uds else None
        self._install_signals()
        begun_s = time.monotonic()
        try:
            ready = await self._load()
            if ready is None:
                log.info("told to stop while loading")
            else:
                log.info(f"loaded in {time.monotonic() - begun_s:.1f} s", policy=ready.policy)
                await self._serve(listener, _address(self._config, listener))
        finally:
            for task in self._tasks:
                task.cancel()
            await self._client.close(1.0 if self._now.is_set() else 10.0)
            listener.close()
            # Since we closed it another server may have put its own there.
            if self._config.uds and _identity(self._config.uds) == bound:
                Path(self._config.uds).unlink(missing_ok=True)
        log.info("stopped", exit_status=int(self._exit))
        return self._exit

    async def _load(self) -> Ready | None:
        """Engine and tokenizer at once; None if told to stop meanwhile."""
        log.info(f"Camshaft server version {__version__}, serving model {self._names[0]}")
        log.info("configuration", **self._parts.given)
        starting = asyncio.gather(self._client.start(), asyncio.to_thread(self._parts.load_tokenizer))
        stopped = asyncio.ensure_future(self._stopping.wait())
        await _first_of(starting, stopped)
        stopped.cancel()
        if not starting.done():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            return None
        ready, tokenizer = starting.result()
        tell_capacity(ready, self._parts.device, self._config)
        if self._config.enable_chunked_prefill:
            budget = self._config.max_num_batched_tokens
            log.info(f"Chunked prefill is enabled with max_num_batched_tokens={budget}.")
        self._service = await asyncio.to_thread(self._build_service, ready, tokenizer)
        return ready

    def _build_service(self, ready: Ready, tokenizer: Tokenizer) -> Service:
        self._metrics.engine_ready(ready, self._config)
        texts = TokenText(tokenizer)
        longest = texts.longest_token_chars
        limits = ModelLimits(
            ready.max_model_len,
            ready.vocab_size or tokenizer.vocab_size,
            None if longest is None else longest * ready.max_model_len,
        )
        template = self._template
        # The first conversation imports the template engine, which takes a second or more: not while serving.
        try:
            tokenizer.encode_chat([{"role": "user", "content": "hello"}], chat_template=template)
        except RequestError as error:
            log.warning("/v1/chat/completions answers 400 (see chat_template)", error=str(error))
        return Service(
            config=self._config,
            client=self._client,
            tokenizer=tokenizer,
            texts=texts,
            limits=limits,
            defaults=self._defaults,
            metrics=self._metrics,
            model_names=self._names,
            chat_template=template,
        )

    async def _serve(self, listener: socket.socket, address: str) -> None:
        if self._service is None:
            return
        self._uvicorn = _Uvicorn(
            uvicorn.Config(
                build_app(self._service),
                http=BoundedHttpProtocol,
                ws="none",
                timeout_keep_alive=KEEP_ALIVE_S,
                log_config=None,
                log_level="critical",  # what goes wrong, we tell ourselves
                access_log=False,
                server_header=False,
                backlog=_BACKLOG,
                ssl_keyfile=self._config.ssl_keyfile,
                ssl_certfile=self._config.ssl_certfile,
                timeout_graceful_shutdown=5,
            )
        )
        self._client.on_death = self._on_death
        if self._client.dead is not None:
            self._on_death()
        self._spawn(self._stop_when_told())
        if self._config.log_stats_interval_s and not self._config.disable_log_stats:
            self._spawn(self._log_stats(self._config.log_stats_interval_s))
        gc.collect()
        gc.freeze()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.listen(_BACKLOG)  # from here on clients may connect; uvicorn accepts them in a moment
        log.info(f"listening on {address}", pid=os.getpid(), engine_pid=self._client.pid)
        self.on_listening(address)
        await self._uvicorn.serve(sockets=[listener])

    def _spawn(self, work: Any) -> None:
        self._tasks.add(asyncio.ensure_future(work))

    # the end

    def _install_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:  # nohup
                continue
            with contextlib.suppress(ValueError, RuntimeError):  # not in the main thread: embedded, in tests
                loop.add_signal_handler(number, self.stop)

    def stop(self) -> None:
        """Drains and ends; called again, ends at once."""
        if self._stopping.is_set():
            self._now.set()
        self._stopping.set()

    async def _stop_when_told(self) -> None:
        await self._stopping.wait()
        if self._service is None or self._uvicorn is None:
            return
        self._service.draining = True
        if self._client.in_flight:
            log.info("draining", in_flight=self._client.in_flight, timeout_s=self._config.drain_timeout_s)
            await self._drained(self._config.drain_timeout_s)
        if self._client.in_flight:
            log.warning("cutting off requests", in_flight=self._client.in_flight)
            self._exit = Exit.FAILED
            self._client.cut_off("the server is shutting down")
        self._uvicorn.should_exit = True

    async def _drained(self, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while self._client.in_flight and not self._now.is_set() and time.monotonic() < deadline_s:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._now.wait(), 0.05)

    def _on_death(self) -> None:
        self._exit = Exit.FAILED
        self._spawn(self._end_after_death())

    async def _end_after_death(self) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), DEAD_GRACE_S)
        if self._uvicorn is not None:
            self._uvicorn.should_exit = True

    async def _log_stats(self, interval_s: float) -> None:
        before, then_s = None, time.monotonic() - interval_s
        while True:
            stats, now_s = self._client.stats, time.monotonic()
            line = stats and stats_line(before, stats, now_s - then_s, self._parts.device)
            if line:
                log.info(line)
            before, then_s = stats, now_s
            await asyncio.sleep(interval_s)


async def _first_of(*work: asyncio.Future[Any]) -> None:
    """Until one has ended; says now and then that it still waits."""
    begun_s = time.monotonic()
    while not (await asyncio.wait(work, timeout=_STILL_S, return_when=asyncio.FIRST_COMPLETED))[0]:
        log.info(f"still loading after {time.monotonic() - begun_s:.0f} s")


def _raise_file_limit() -> None:
    """The usual soft limit of 1,024 open files is fewer connections than one engine can serve.

    Raises EngineError where even the hard one leaves no room to serve anybody.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < _LEAST_FILES:
        raise EngineError(
            f"{hard} files may be open here, too few to serve anybody; raise the limit (ulimit -n)"
        )
    wanted = _WANTED_FILES if hard == resource.RLIM_INFINITY else min(_WANTED_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def bind(config: ServeConfig) -> socket.socket:
    """The listening address, taken before anything is loaded. Raises ConfigError if it cannot be had."""
    try:
        return _bound(config)
    except (OSError, ValueError, TypeError) as error:  # the latter two: what cannot be a name
        where = config.uds or f"{config.host}:{config.port}"
        taken = getattr(error, "errno", None) == errno.EADDRINUSE
        free = "" if config.uds else " (--port 0 is any free one)"
        hint = f"; stop what listens there, or give another one{free}" if taken else ""
        why = f"cannot listen on {where}: {getattr(error, 'strerror', None) or error}{hint}"
        raise ConfigError(why, "uds" if config.uds else "port" if taken else "host") from error


def _bound(config: ServeConfig) -> socket.socket:
    with contextlib.ExitStack() as unless_bound:
        if config.uds:
            _remove_stale(config.uds)
            listener = unless_bound.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            listener.bind(config.uds)
        else:
            family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
            # Only with the protocol named does asyncio set TCP_NODELAY; without it a token may wait 40 ms.
            listener = unless_bound.enter_context(
                socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            )
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((config.host, config.port))
            # Until it listens, whoever sets the option could bind there, too.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        unless_bound.pop_all()
        return listener


def _remove_stale(path: str) -> None:
    """Removes a socket that a killed server left behind: nobody answers there, nor is about to."""
    if not Path(path).is_socket():
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.setblocking(False)  # a server whose queue is full would hold us up
        try:
            line.connect(path)
        except ConnectionRefusedError:  # also where a server still loads
            bound = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()
            if not any(entry.endswith(Path(path).name) for entry in bound):
                Path(path).unlink()


def _identity(path: str) -> tuple[int, int] | None:
    """What tells a file from a later one of its name; None where there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns


def _address(config: ServeConfig, listener: socket.socket) -> str:
    if config.uds:
        return f"unix:{config.uds}"
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if config.ssl_certfile else 'http'}://{shown}:{port}"


def tell_capacity(ready: Ready, device: str, config: ServeConfig) -> None:
    """Logs how much the cache holds, and that it is smaller than was asked for where it is."""
    tokens = ready.num_blocks * ready.block_size
    times = tokens / ready.max_model_len if ready.max_model_len else 0.0
    log.info(
        f"{device} KV cache size: {tokens:,} tokens, "
        f"Maximum concurrency for {ready.max_model_len:,} tokens per request: {times:.2f}x"
    )
    given_bytes = config.kv_cache_memory_bytes
    taken = ready.memory.get("KV cache", given_bytes)
    if given_bytes and taken + taken // max(1, ready.num_blocks) <= given_bytes:
        why = "max_num_seqs requests of max_model_len tokens can fill no more"
        if config.num_gpu_blocks_override:
            why = f"num_gpu_blocks_override is {config.num_gpu_blocks_override}"
        log.info(f"of the {given_bytes:,} bytes of kv_cache_memory_bytes {taken:,} are taken: {why}")
