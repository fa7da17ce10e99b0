"""The types that cross the boundary between the HTTP process and the engine process, and their encoding.

Encoded as MessagePack by msgspec: tagged structs, arrays instead of maps, never pickle.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from .request import Logprob, SamplingParams


class _Message(msgspec.Struct, tag=True, array_like=True, omit_defaults=True):
    pass


# HTTP process -> engine process


class AddRequest(_Message):
    """A new sequence. `handle` is the sender's number for it and comes back in every output."""

    handle: int
    id: str
    prompt: bytes  # int32 token ids, little endian
    params: SamplingParams
    priority: int = 0
    tenant: str = ""
    timeout_ms: float | None = None  # the deadline, from the moment the engine receives this
    fork_of: str | None = None  # id of the first sequence of the same prompt (n > 1)
    cache_salt: bytes = b""
    sent_s: float | None = None  # arrival on the host's monotonic clock; a step may run before this is read


class Abort(_Message):
    handles: list[int]


class Query(_Message):
    """Asks the engine something; answered by an Answer with the same number."""

    number: int
    what: str  # "explain" | "stats" | "integrity" | "memory"
    argument: str = ""


class Drain(_Message):
    """No new work will come: finish what runs, then exit."""


# engine process -> HTTP process


class Ready(_Message):
    """Sent once, when the engine can take requests."""

    max_model_len: int
    num_blocks: int
    block_size: int
    max_num_seqs: int
    policy: str
    memory: dict[str, Any] = {}
    vocab_size: int = 0  # of the model; 0 is unknown, then the tokenizer's counts


class Timing(msgspec.Struct, array_like=True):
    """Milliseconds of a finished request, by the engine's clock."""

    queued_ms: float
    prefill_ms: float
    decode_ms: float
    preemptions: int
    cached_tokens: int


class Output(msgspec.Struct, array_like=True, omit_defaults=True):
    """New tokens of one sequence, and its end if it ended."""

    handle: int
    tokens: list[int]
    finish_reason: str | None = None  # "stop" | "length" | "abort" | "rejected" | "error"
    stop_token: int | None = None  # the token id that ended it, where one did
    logprobs: list[Logprob] | None = None
    prompt_logprobs: list[Logprob] | None = None
    timing: Timing | None = None
    error: str | None = None  # for "rejected" and "error"
    cached_tokens: int | None = None  # sent with the first token
    error_param: str | None = None  # the request field that was wrong
    retryable: bool = False  # rejected for want of room or time, not for what was asked


class Stats(_Message):
    """Gauges and counters of the engine; counters are totals since start."""

    step: int
    running: int
    waiting: int
    used_blocks: int
    total_blocks: int
    prefix_queries: int
    prefix_hits: int
    preemptions: int
    prompt_tokens: int
    generation_tokens: int
    policy_faults: int
    waste: float  # share of the slots of used blocks that hold no token
    iteration_tokens: list[int] = []  # tokens of each step since the last Stats
    step_ms: list[float] = []  # duration of each step since the last Stats
    figures: dict[str, int] = {}  # totals of the executor: graph_steps, eager_steps.<why>, out_of_memory


class Outputs(_Message):
    """What one step produced. A sequence that merely got one more token stands in the two packed arrays;
    everything else (first tokens, ends, log-probabilities, errors) is an Output of its own.
    Iterating gives an Output for every sequence.
    """

    outputs: list[Output]
    handles: bytes = b""  # int32, little endian
    tokens: bytes = b""  # int32, aligned with handles
    stats: Stats | None = None
    received: int = 0  # AddRequests taken since start, so that the sender knows which ones the stats count

    def __iter__(self) -> Iterator[Output]:
        yield from self.outputs
        handles = memoryview(self.handles).cast("i")
        tokens = memoryview(self.tokens).cast("i")
        for handle, token in zip(handles, tokens, strict=True):
            yield Output(handle, [token])


class Answer(_Message):
    number: int
    body: dict[str, Any]


class Fatal(_Message):
    """The engine process is about to exit; every request in flight is lost."""

    error: str
    kind: str = "EngineError"  # the class in core.errors


ToEngine = AddRequest | Abort | Query | Drain
FromEngine = Ready | Outputs | Answer | Fatal

_encoder = msgspec.msgpack.Encoder()
_to_engine = msgspec.msgpack.Decoder(ToEngine)
_from_engine = msgspec.msgpack.Decoder(FromEngine)


def encode(message: ToEngine | FromEngine) -> bytes:
    """One message as MessagePack."""
    return _encoder.encode(message)


def decode_to_engine(data: bytes) -> ToEngine:
    """Raises msgspec.DecodeError on anything but a ToEngine message."""
    return _to_engine.decode(data)


def decode_from_engine(data: bytes) -> FromEngine:
    """Raises msgspec.DecodeError on anything but a FromEngine message."""
    return _from_engine.decode(data)
