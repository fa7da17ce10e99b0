"""Drives any OpenAI-compatible server by its URL with a workload, streaming, and counts what fails."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec
import numpy as np

from ...core.errors import EvidenceError
from ...core.workload import Workload, WorkloadRequest, segment_tokens
from ..feeder import Feeder
from ..results import RequestRecord, Result, Targets, summarise
from ..tls import certificate_hint, trusted
from .gaps import TokenTimes
from .server_metrics import MetricsWatch, ServerMetrics
from .warm_up import WARM_UP_SEED, warm_up_load

Progress = Callable[[int, int], None]  # requests ended, output tokens so far

# Common short words, each a token of its own in most vocabularies; a prompt in text is made of these.
_WORDS = [
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school",
    "state", "family", "student", "group", "country", "problem", "hand", "part", "place", "case",
    "week", "company", "system", "program", "question", "work", "government", "number", "night",
    "point", "home", "water", "room", "mother", "area", "money", "story", "fact", "month", "lot",
    "right", "study", "book", "eye", "job", "word", "business", "issue", "side", "kind", "head",
    "house", "service", "friend", "father", "power", "hour", "game", "line", "end", "member", "law",
    "car", "city", "name", "team", "minute", "idea",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server and how to ask it."""

    url: str  # with or without the trailing /v1
    model: str | None = None  # default: the first one the server lists
    api_key: str | None = None
    prompts: str = "tokens"  # "tokens": token ids; "text": words, for servers that take no ids
    vocab_size: int = 32_000  # token ids stay below it
    ignore_eos: bool = True  # asks for exactly the planned number of tokens (vLLM's field)
    timeout_s: float = 600.0

    @property
    def base(self) -> str:
        return self.url.rstrip("/").removesuffix("/v1") + "/v1"

    @property
    def metrics(self) -> str:
        return self.base.removesuffix("/v1") + "/metrics"


class _Usage(msgspec.Struct):
    completion_tokens: int = 0
    prompt_tokens: int = 0


class _Choice(msgspec.Struct):
    text: str | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


@dataclass(slots=True)
class UrlRun:
    """What one run left."""

    records: list[RequestRecord]
    times: TokenTimes
    model: str
    seed: int  # of the prompts' contents
    samples: dict[str, str] = field(default_factory=dict)  # one full message of each kind of failure
    server: ServerMetrics | None = None

    def result(self, targets: Targets | None = None) -> Result:
        """The figures of the run, as the client saw them; evictions by the server's own count."""
        evicted = self.server.preemptions if self.server else None
        return summarise(self.records, self.times.gaps_ms(), targets=targets, preemptions=evicted)


def drive_url(
    target: Target,
    workload: Workload,
    *,
    progress: Progress | None = None,
    seed: int | None = None,
    warmup: int = 0,
) -> UrlRun:
    """Plays a workload against a server until every request has ended; failures are counted, not raised.

    Without a seed the prompts' contents are new ones, which no earlier run has left in the server's cache.
    In a later turn of a session stands an answer of the planned length, not the one that was given, so a
    server finds the earlier prompts in its cache and not the answers.
    Raises EvidenceError where the server cannot be reached at all, lists no model, or answers no request of
    the warm-up.
    """
    contents = secrets.randbits(31) if seed is None else seed
    return asyncio.run(_drive(target, workload, progress, contents, warmup))


async def _drive(
    target: Target, workload: Workload, progress: Progress | None, seed: int, warmup: int
) -> UrlRun:
    headers = httpx.Headers({"accept-encoding": "identity"}, encoding="utf-8")  # events are read as they come
    if target.api_key:
        headers["authorization"] = f"Bearer {target.api_key}"
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    timeout = httpx.Timeout(target.timeout_s, connect=30.0)
    async with httpx.AsyncClient(
        headers=headers, limits=limits, timeout=timeout, verify=trusted(), trust_env=False
    ) as client:
        model = target.model or await _first_model(client, target)
        if warmup:
            _require_one(
                await _Driver(
                    client, target, model, warm_up_load(workload, warmup), None, seed ^ WARM_UP_SEED
                ).run()
            )
        watch = MetricsWatch(client, target.metrics)
        await watch.start()
        run = await _Driver(client, target, model, workload, progress, seed).run()
        run.server = await watch.stop()
        return run


def _require_one(run: UrlRun) -> None:
    """Raises EvidenceError where no request of the warm-up got an answer: the load would only fail too."""
    if all(record.error is not None for record in run.records):
        told = "; ".join(f"{kind}: {message}" for kind, message in run.samples.items())
        raise EvidenceError(f"every request of the warm-up failed: {told}")


async def _first_model(client: httpx.AsyncClient, target: Target) -> str:
    try:
        answer = await client.get(f"{target.base}/models")
        answer.raise_for_status()
        return str(answer.json()["data"][0]["id"])
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        key = "; --api-key sends a key" if status in (401, 403) else ""
        raise EvidenceError(f"{target.base}/models answers {status}{key}") from error
    except httpx.UnsupportedProtocol as error:
        raise EvidenceError(
            f"{target.base}: an address begins with its protocol: http://{target.base}"
        ) from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        why = str(error) or type(error).__name__
        raise EvidenceError(f"{target.base}: no server answers: {why}{certificate_hint(error)}") from error
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise EvidenceError(f"{target.base}/models lists no model; name one with --model") from error


class _Failed(Exception):
    """One request failed; `kind` groups it with its like."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class _Driver:
    def __init__(
        self,
        client: httpx.AsyncClient,
        target: Target,
        model: str,
        workload: Workload,
        progress: Progress | None,
        seed: int,
    ) -> None:
        self.client, self.target, self.model = client, target, model
        self.feeder, self.progress, self.seed = Feeder(workload), progress, seed
        self.times, self.samples = TokenTimes(), dict[str, str]()
        self.records: dict[int, RequestRecord] = {}
        self.ended = self.tokens = 0
        self.wake = asyncio.Event()
        self.started = time.perf_counter()

    def now_s(self) -> float:
        return time.perf_counter() - self.started

    async def run(self) -> UrlRun:
        self.started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            while not self.feeder.done:
                self.wake.clear()
                now = self.now_s()
                for request in self.feeder.due(now):
                    group.create_task(self._play(request, self.feeder.start_s(request, now)))
                await self._sleep()
        p99 = self.times.p99_by_request()
        for record in self.records.values():
            gap = p99[record.index]
            record.itl_p99_ms = None if np.isnan(gap) else float(gap)
        records = [self.records[number] for number in sorted(self.records)]
        return UrlRun(records, self.times, self.model, self.seed, self.samples)

    async def _sleep(self) -> None:
        """Until a request ends or the next one falls due."""
        if self.feeder.done:
            return
        upcoming = self.feeder.next_s()
        delay = None if upcoming is None else max(upcoming - self.now_s(), 0.0)
        try:
            async with asyncio.timeout(delay):
                await self.wake.wait()
        except TimeoutError:
            pass

    async def _play(self, request: WorkloadRequest, arrival_s: float) -> None:
        record = RequestRecord(request.index, arrival_s, request.input_tokens, tenant=request.tenant)
        self.records[request.index] = record
        self.times.grow(request.index + 1)
        try:
            usage = await self._stream(request)
            first = self.times.first_s[request.index]
            if np.isnan(first):
                raise _Failed("empty", "the stream ended without a token")
            record.first_token_s = float(first)
            record.finished_s = float(self.times.last_s[request.index])
            seen = int(self.times.tokens[request.index])
            record.output_tokens = usage.completion_tokens if usage and usage.completion_tokens else seen
            if usage and usage.prompt_tokens:
                record.input_tokens = usage.prompt_tokens
        except _Failed as error:
            self._fail(record, error.kind, str(error))
        except httpx.TimeoutException:
            self._fail(record, "timeout", f"no answer within {self.target.timeout_s:g} s")
        except httpx.HTTPError as error:
            self._fail(record, "connection", f"{type(error).__name__}: {error}")
        finally:
            self.ended += 1
            self.feeder.finished(request, self.now_s())
            if self.progress is not None:
                self.progress(self.ended, self.tokens)
            self.wake.set()

    def _fail(self, record: RequestRecord, kind: str, message: str) -> None:
        record.error = kind
        self.samples.setdefault(kind, message)

    async def _stream(self, request: WorkloadRequest) -> _Usage | None:
        """Streams one completion and notes when its tokens come. Raises _Failed, httpx.HTTPError."""
        url, body = f"{self.target.base}/completions", self._body(request)
        async with self.client.stream("POST", url, content=body, headers=self._headers(request)) as answer:
            if answer.status_code != 200:
                text = (await answer.aread())[:300].decode(errors="replace")
                raise _Failed(f"http {answer.status_code}", text)
            return await self._read(request, answer)

    async def _read(self, request: WorkloadRequest, answer: httpx.Response) -> _Usage | None:
        number = np.array([request.index])
        usage: _Usage | None = None
        ended = False
        async for event in _events(answer):
            if event == b"[DONE]":
                ended = True
                break
            try:
                chunk = _decode(event)
            except msgspec.DecodeError as error:
                raise _Failed("malformed", f"{error}: {event[:200]!r}") from error
            if chunk.error is not None:
                raise _Failed("error in stream", str(chunk.error)[:300])
            usage = chunk.usage or usage
            for choice in chunk.choices:
                ended = ended or choice.finish_reason is not None
                if choice.text or choice.finish_reason is None:
                    self.times.record(number, self.now_s())
                    self.tokens += 1
        if not ended:
            raise _Failed("cut off", "the stream ended without [DONE] or a finish_reason")
        return usage

    def _headers(self, request: WorkloadRequest) -> dict[str, str]:
        return {"content-type": "application/json", "x-request-id": f"bench-{request.index}"}

    def _body(self, request: WorkloadRequest) -> bytes:
        tokens = segment_tokens(request.segments, self.target.vocab_size, self.seed)
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": tokens.tolist() if self.target.prompts == "tokens" else _text(tokens),
            "max_tokens": request.output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.target.ignore_eos:
            body["ignore_eos"] = True
        if request.priority:
            body["priority"] = request.priority
        if request.tenant:
            body["tenant"] = request.tenant
        if request.deadline_ms is not None:
            body["deadline_ms"] = request.deadline_ms
        return msgspec.json.encode(body)


def _text(tokens: np.ndarray) -> str:
    return " ".join(_WORDS[token % len(_WORDS)] for token in tokens.tolist())


async def _events(answer: httpx.Response) -> AsyncIterator[bytes]:
    """The data of each server-sent event; comments and other fields are passed over."""
    buffer = b""
    async for part in answer.aiter_raw():
        buffer += part
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()
