"""Waiting for a generation without forgetting the client: disconnects and timeouts end it and free its blocks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ...errors import CamshaftError
from ...messages import Logprob
from ..http.faults import HttpFault, error_bytes, fault_of
from ..text.generation import Delta, Generation
from .prompts import off_loop
from .replies import DONE, ChatChunk, Completion, encode, event
from .service import Service
from .wire import StreamOptions

R = TypeVar("R")
Chunk = ChatChunk | Completion

_ENTRY_CHARS = 64  # of a position with few alternatives

SSE_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class ClientGoneError(Exception):
    """The client closed the connection; nobody is left to answer."""


@dataclass(slots=True)
class Answer:
    """All of one sequence."""

    index: int
    text: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[Logprob] = field(default_factory=list)
    text_offsets: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def add(self, delta: Delta) -> None:
        self.text.append(delta.text)
        self.tokens += delta.tokens
        self.logprobs += delta.logprobs
        self.text_offsets += delta.text_offsets
        if delta.finish_reason is not None:
            self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason


async def respond(
    request: Request,
    service: Service,
    generation: Generation,
    stream: AsyncIterator[bytes] | None,
    reply: Callable[[list[Answer]], Struct],
) -> Response:
    """The response to a request: its events as they come, or one reply of all that was generated."""
    request.state.generation = generation  # for the access line
    if stream is not None:
        await _attended(service, generation, request.receive, generation.first_sign())
        return EventStream(service, generation, stream)
    answers = await _attended(service, generation, request.receive, _collect(generation))
    return await _whole(generation, answers, partial(reply, answers))


async def _collect(generation: Generation) -> list[Answer]:
    """Every sequence's whole answer. Raises the request's error."""
    answers = [Answer(sequence.index) for sequence in generation.sequences]
    async for deltas in generation.deltas():
        for delta in deltas:
            answers[delta.index].add(delta)
    return answers


async def _whole(generation: Generation, answers: list[Answer], reply: Callable[[], Struct]) -> Response:
    """One reply for all of a request; written beside the event loop where there are many log-probabilities."""
    positions = sum(len(answer.logprobs) for answer in answers)
    positions += sum(len(sequence.prompt_logprobs) for sequence in generation.sequences)
    body = await off_loop(positions * _ENTRY_CHARS, lambda: encode(reply()))
    return Response(body, media_type="application/json")


async def _attended(
    service: Service, generation: Generation, receive: Receive, work: Coroutine[Any, Any, R]
) -> R:
    """Runs `work`; a client that leaves, a timeout or any error aborts the generation.

    Raises ClientGoneError, HttpFault 504, or what `work` raises.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(receive))
    timeout_s = service.config.request_timeout_s or None
    try:
        await asyncio.wait({task, gone}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if gone.done():
            raise ClientGoneError
        raise HttpFault(504, f"the request took longer than {timeout_s:g} s (request_timeout_s)")
    except BaseException:
        service.client.abort(generation)
        raise
    finally:
        task.cancel()
        gone.cancel()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def events(
    service: Service,
    generation: Generation,
    options: StreamOptions | None,
    reply: Callable[[list[Any]], Chunk],
    choices: Callable[[Delta, bool], list[Any]],
) -> AsyncIterator[bytes]:
    """The events of a stream; all that one step brought goes out in one write.

    reply: a chunk of the given choices. choices: what a delta, the first of its sequence or not, is worth telling.
    """
    include_usage = bool(options and options.include_usage)
    each_usage = bool(include_usage and options and options.continuous_usage_stats)
    begun: set[int] = set()
    async for deltas in generation.deltas():
        chunks: list[Chunk] = []
        positions = 0
        for delta in deltas:
            positions += len(delta.logprobs)
            if delta.index not in begun:
                positions += len(generation.sequences[delta.index].prompt_logprobs)
            for choice in choices(delta, delta.index not in begun):
                chunk = reply([choice])
                if include_usage:
                    chunk.usage = service.usage(generation) if each_usage else None
                chunks.append(chunk)
            begun.add(delta.index)
        if chunks:
            yield await off_loop(positions * _ENTRY_CHARS, partial(_written, chunks))
    if include_usage:
        last = reply([])
        last.usage = service.usage(generation)
        yield event(last)


def _written(chunks: list[Chunk]) -> bytes:
    return b"".join(map(event, chunks))


class EventStream(Response):
    """A response of server-sent events; an error midway becomes an event before `[DONE]`."""

    def __init__(self, service: Service, generation: Generation, events: AsyncIterator[bytes]) -> None:
        super().__init__()
        self._service = service
        self._generation = generation
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": SSE_HEADERS})
        try:
            await _attended(self._service, self._generation, receive, self._pump(send))
        except CamshaftError as error:
            await _chunk(send, b"data: " + error_bytes(fault_of(error)) + b"\n\n")
        except (ClientGoneError, OSError):
            return
        await _chunk(send, DONE, last=True)

    async def _pump(self, send: Send) -> None:
        async for chunk in self._events:
            await _chunk(send, chunk)


async def _chunk(send: Send, body: bytes, last: bool = False) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": not last})
