"""A request: what was asked for, and where it stands.

The hot counters of a running request live in the scheduler's rows (`schedule/rows.py`); this object
holds identity, the tokens and the state machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from .errors import StateError

# As in vLLM: below it the draw is the argmax but for ties, and logits divided by it leave float32's range.
GREEDY_TEMPERATURE = 1e-5


class Logprob(NamedTuple):
    """One position: the token's own id first, then the most likely ones; `rank` 1 is the most likely."""

    token_ids: list[int]
    logprobs: list[float]
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are drawn and when generation ends. Stop strings belong to the detokeniser, not here."""

    max_tokens: int = 16
    min_tokens: int = 0  # end-of-sequence and stop ids are masked before this many tokens
    temperature: float = 1.0  # below GREEDY_TEMPERATURE is greedy
    top_k: int = 0  # 0 is off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] = ()  # none is no restriction
    bad_words: tuple[tuple[int, ...], ...] = ()  # token id sequences that must not be completed
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None  # number of alternatives per token; None is off
    prompt_logprobs: int | None = None

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_TEMPERATURE


class State(IntEnum):
    """Waiting and Evicted requests hold no row; Running ones do."""

    WAITING = 0
    RUNNING = 1
    EVICTED = 2
    FINISHED = 3


_ALLOWED = {
    State.WAITING: {State.RUNNING, State.FINISHED},
    State.RUNNING: {State.EVICTED, State.FINISHED},
    State.EVICTED: {State.RUNNING, State.FINISHED},
    State.FINISHED: set[State](),
}

# Why a request ended, in the API's words where it has one.
FINISH_STOP = "stop"
FINISH_LENGTH = "length"
FINISH_ABORT = "abort"
FINISH_REJECTED = "rejected"
FINISH_ERROR = "error"


@dataclass(slots=True, eq=False)
class Request:
    """One sequence. `n > 1` is several requests, the later ones with `fork_of` naming the first."""

    id: str
    prompt: np.ndarray  # int32 [prompt_len]
    params: SamplingParams
    arrival_s: float
    seq: int = -1  # arrival order, set by the scheduler; breaks ties and survives eviction
    priority: int = 0  # smaller is more urgent, as in vLLM
    tenant: str = ""
    deadline_s: float | None = None  # on the scheduler's clock
    fork_of: str | None = None
    cache_salt: bytes = b""
    handle: int = -1  # the client process's number for it

    state: State = State.WAITING
    row: int = -1
    output: list[int] = field(default_factory=list)
    preemptions: int = 0
    cached_tokens: int = 0  # prompt tokens found in the prefix cache at first admission
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None
    finish_reason: str | None = None
    error: str | None = None  # for "rejected" and "error"
    prompt_scored: int = 0  # prompt positions whose log-probabilities were told
    hashes: list[bytes] = field(default_factory=list)  # chained hashes of full blocks, grown lazily
    queued_s: float = 0.0  # when it last entered the waiting queue

    @property
    def prompt_len(self) -> int:
        return len(self.prompt)

    @property
    def length(self) -> int:
        """Tokens known so far: prompt and output."""
        return len(self.prompt) + len(self.output)

    @property
    def max_length(self) -> int:
        return len(self.prompt) + self.params.max_tokens

    def to(self, state: State) -> None:
        """Moves to `state`; raises StateError naming both states if that is illegal."""
        if state not in _ALLOWED[self.state]:
            raise StateError(f"request {self.id}: {self.state.name} cannot become {state.name}")
        self.state = state

    def tokens(self) -> np.ndarray:
        """int32 [length]: prompt and output."""
        if not self.output:
            return self.prompt
        return np.concatenate([self.prompt, np.asarray(self.output, dtype=np.int32)])
