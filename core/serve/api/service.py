"""What the handlers of the API share: the model's limits, the engine client, and how a request is started."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import structlog

from ...config import ServeConfig
from ...errors import RequestError
from ...messages import AddRequest
from ...request import SamplingParams
from ..engine.client import EngineClient
from ..http.faults import HttpFault, LatestFaults
from ..observe.metrics import Metrics
from ..text.detokenize import TokenText
from ..text.generation import Generation, Sequence, sequence_id
from .params import SamplingDefaults, Wanted
from .prompts import Tokenizer, packed
from .replies import CachedDetails, Usage
from .wire import SamplingFields

# The longest step any configuration should make; a device that hangs must not look healthy.
HUNG_S = 300.0
MAX_SEQUENCES = 1024  # of one HTTP request: prompts times n

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """Bounds a prompt must keep."""

    max_model_len: int
    vocab_size: int
    max_prompt_chars: int | None


@dataclass(slots=True)
class Service:
    """One served model."""

    config: ServeConfig
    client: EngineClient
    tokenizer: Tokenizer
    texts: TokenText
    limits: ModelLimits
    defaults: SamplingDefaults
    metrics: Metrics
    model_names: tuple[str, ...]
    chat_template: str | None = None  # replaces the tokenizer's own
    draining: bool = False
    faults: LatestFaults = field(default_factory=LatestFaults)
    created: int = field(default_factory=lambda: int(time.time()))

    def check_model(self, name: str | None) -> str:
        """The name to answer with. Raises HttpFault 404 for a model that is not served here."""
        if not name:
            return self.model_names[0]
        if name not in self.model_names:
            raise HttpFault(404, f"the model {name[:128]!r} does not exist; see /v1/models", "model")
        return name

    def check_open(self) -> None:
        """Raises while draining, or without an engine."""
        if self.client.dead is not None:
            raise self.client.dead
        if self.draining:
            raise HttpFault(503, "the server is shutting down", retry_after_s=5)

    def check_health(self) -> None:
        """Raises while draining, without an engine, or with one that has not finished a step for long."""
        self.check_open()
        silence_s = self.client.silence_s()
        if silence_s > HUNG_S:
            raise HttpFault(503, f"the engine has requests and has said nothing for {silence_s:.0f} s")

    async def start(
        self, reply_id: str, body: SamplingFields, prompts: Seq[list[int]], wanted: Seq[Wanted]
    ) -> Generation:
        """Submits `n` sequences for each prompt. Raises RequestError, QueueFull or EngineDead."""
        n = wanted[0].n
        if n * len(prompts) > MAX_SEQUENCES:
            raise RequestError(
                f"{len(prompts)} prompts times n = {n} is more than {MAX_SEQUENCES} sequences", "n"
            )
        packed_prompts = await packed(prompts)
        name = self.client.unique_name(reply_id)
        sequences: list[Sequence] = []
        requests: list[AddRequest] = []
        for prompt, ids, want in zip(prompts, packed_prompts, wanted, strict=True):
            first = len(sequences)
            for choice in range(n):
                sequence = self._sequence(name, len(sequences), prompt, want, body)
                fork_of = None
                if choice:
                    fork_of = sequences[first].id
                    # One list for all sequences of a prompt.
                    sequence.prompt_logprobs = sequences[first].prompt_logprobs
                sequences.append(sequence)
                requests.append(_message(sequence.id, ids, want.for_choice(choice), body, fork_of))
        generation = Generation(reply_id, sequences)
        self.client.submit(generation, requests)
        self.metrics.observe_arrival(n, wanted[0].params.max_tokens, len(sequences))
        if self.config.enable_log_requests:
            log.info("request", id=reply_id, prompts=[len(p) for p in prompts], n=n, params=wanted[0].params)
        return generation

    def _sequence(
        self, name: str, index: int, prompt: list[int], want: Wanted, body: SamplingFields
    ) -> Sequence:
        skip = body.skip_special_tokens is not False
        detokenizer = self.texts.detokenizer(prompt, skip)
        return Sequence(index, sequence_id(name, index), prompt, want.rules, detokenizer)

    def usage(self, generation: Generation) -> Usage:
        """Tokens of the whole request: each prompt counts once, completions add up over the choices."""
        sequences = generation.sequences
        # The first of n tells what the cache held; the others share with the first.
        prompts = {id(s.prompt): s for s in reversed(sequences)}.values()
        prompt_tokens = sum(len(s.prompt) for s in prompts)
        completion_tokens = sum(s.num_tokens for s in sequences)
        cached = sum(s.cached_tokens or 0 for s in prompts)
        return Usage(
            prompt_tokens, completion_tokens, prompt_tokens + completion_tokens, CachedDetails(cached)
        )


def _message(
    name: str, prompt: bytes, params: SamplingParams, body: SamplingFields, fork_of: str | None
) -> AddRequest:
    salt = body.cache_salt
    return AddRequest(
        handle=0,  # given by the client
        id=name,
        prompt=prompt,
        params=params,
        priority=body.priority or 0,
        tenant=body.tenant or "",
        timeout_ms=body.deadline_ms,
        fork_of=fork_of,
        cache_salt=b"" if salt is None else hashlib.sha256(salt.encode("utf-8", "replace")).digest(),
    )
