"""One HTTP request in flight: its sequences, from the engine's outputs to pieces of text."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from ...errors import CamshaftError, EngineError, QueueFull, RequestError
from ...messages import Logprob, Output, Timing
from .detokenize import Detokenizer
from .stops import StopStrings

# finish_reason values of the engine that are errors for the client
_FAILED = frozenset({"rejected", "error"})


@dataclass(slots=True)
class Delta:
    """What one sequence gained since the last time anyone looked."""

    index: int
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[Logprob] = field(default_factory=list)
    text_offsets: list[int] = field(default_factory=list)  # characters before each token, aligned with tokens
    finish_reason: str | None = None
    stop_reason: str | int | None = None


@dataclass(frozen=True, slots=True)
class TextRules:
    """How a sequence's tokens become text, and which of it ends it."""

    stops: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()  # those asked for: the model's own end is no reason to name
    keep_stop: bool = False  # include_stop_str_in_output
    min_tokens: int = 0
    stream_interval: int = 1  # tokens between two wake-ups; 0: only the end is worth one
    discard_tokens: bool = False  # max_tokens=0: the engine draws one token that nobody asked for


@dataclass(slots=True)
class Sequence:
    """One sequence of a request. `feed` is called once a step by the engine client."""

    index: int
    id: str  # the engine's id of it
    prompt: list[int]
    rules: TextRules
    detokenizer: Detokenizer
    stops: StopStrings = field(init=False)

    handle: int = -1
    num_tokens: int = 0
    num_chars: int = 0
    finish_reason: str | None = None
    error: CamshaftError | None = None
    prompt_logprobs: list[Logprob] = field(default_factory=list)
    cached_tokens: int | None = None
    timing: Timing | None = None
    first_token_s: float | None = None
    last_token_s: float = 0.0
    pending: Delta = field(init=False)

    def __post_init__(self) -> None:
        self.stops = StopStrings(self.rules.stops)
        self.pending = Delta(self.index)

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def feed(self, output: Output) -> bool:
        """Takes one output; returns whether the sequence ended here by a stop string (the engine runs on)."""
        if output.prompt_logprobs:
            self.prompt_logprobs += output.prompt_logprobs
        if output.cached_tokens is not None:
            self.cached_tokens = output.cached_tokens
        if output.timing is not None:
            self.timing = output.timing
        if output.finish_reason in _FAILED:
            self._fail(output)
            return False
        if self.rules.discard_tokens:
            if output.finish_reason is not None:
                self._end("length", None)
            return False
        ended = self._take_tokens(output)
        if not ended and output.finish_reason is not None:
            self.pending.text += self._count(self._flush())
            asked = output.stop_token in self.rules.stop_token_ids
            self._end(output.finish_reason, output.stop_token if asked else None)
        return ended

    def ready(self) -> bool:
        """Whether there is something worth waking the client for."""
        pending = self.pending
        if self.finished or self.error is not None:
            return True
        if not self.rules.stream_interval:
            return False
        enough = self.num_tokens == len(pending.tokens) or len(pending.tokens) >= self.rules.stream_interval
        return bool(pending.tokens) and enough

    def take(self) -> Delta:
        """What has been gained since the last call."""
        delta, self.pending = self.pending, Delta(self.index)
        return delta

    def _take_tokens(self, output: Output) -> bool:
        pending, rules = self.pending, self.rules
        for position, token in enumerate(output.tokens):
            pending.text_offsets.append(self.num_chars + self.stops.held)
            pending.tokens.append(token)
            self.num_tokens += 1
            if output.logprobs:
                pending.logprobs.append(output.logprobs[position])
            if self._ends_here(output, position):
                continue  # the text of a stop token is not part of the answer
            may_match = self.num_tokens > rules.min_tokens
            text = self.stops.push(self.detokenizer.push(token), rules.keep_stop, may_match)
            pending.text += self._count(text)
            if self.stops.matched is not None:
                self._end("stop", self.stops.matched)
                return output.finish_reason is None
        return False

    def _ends_here(self, output: Output, position: int) -> bool:
        last = position == len(output.tokens) - 1
        return last and output.stop_token is not None and not self.rules.keep_stop

    def _flush(self) -> str:
        text = self.stops.push(self.detokenizer.finish(), self.rules.keep_stop)
        return text if self.stops.matched is not None else text + self.stops.finish()

    def _count(self, text: str) -> str:
        self.num_chars += len(text)
        return text

    def _end(self, reason: str, stop: str | int | None) -> None:
        if self.finish_reason is None:
            self.finish_reason = self.pending.finish_reason = reason
            self.pending.stop_reason = stop

    def _fail(self, output: Output) -> None:
        message = output.error or f"the engine ended the request: {output.finish_reason}"
        if output.finish_reason == "error":
            self.error = EngineError(message)
        elif output.retryable:
            self.error = QueueFull(message, output.error_param)
        else:
            self.error = RequestError(message, output.error_param)
        self.finish_reason = output.finish_reason


def sequence_id(name: str, index: int) -> str:
    """The engine's id of a sequence, from its name of the request."""
    return f"{name}-{index}"


class Generation:
    """The sequences of one HTTP request, and the one who waits for them."""

    def __init__(self, reply_id: str, sequences: list[Sequence]) -> None:
        self.id = reply_id
        self.sequences = sequences
        self.arrival_s = time.monotonic()
        self.error: CamshaftError | None = None
        self._event = asyncio.Event()

    @property
    def finished(self) -> bool:
        return self.error is not None or all(sequence.finished for sequence in self.sequences)

    def wake(self) -> None:
        """Lets `deltas` look again."""
        self._event.set()

    def fail(self, error: CamshaftError) -> None:
        """Ends the request with an error, at once."""
        self.error = self.error or error
        self._event.set()

    async def first_sign(self) -> None:
        """Returns when the engine took the request or answered; raises what it refused it with."""
        await self._event.wait()
        self._raise()

    async def deltas(self) -> AsyncIterator[list[Delta]]:
        """All that was gained, as it comes, until every sequence has ended. Raises the request's error."""
        while True:
            await self._event.wait()
            self._event.clear()
            self._raise()
            gained = [s.take() for s in self.sequences if _has_news(s)]
            finished = self.finished  # before whoever takes this: more may come meanwhile
            if gained:
                yield gained
            if finished:
                return

    def _raise(self) -> None:
        error = self.error or next((s.error for s in self.sequences if s.error is not None), None)
        if error is not None:
            raise error


def _has_news(sequence: Sequence) -> bool:
    return sequence.ready() and bool(sequence.pending.tokens or sequence.pending.finish_reason)
