"""The contract of a scheduling policy. It advises over frozen views; the engine's core decides what is safe.

Core owns block accounting, budgets, rollback, state changes and progress. A policy sees no blocks, tensors or
scheduler. If it raises or answers nonsense, core takes its own answer for that call: first come, first served, the
last to come gives way, the whole budget, admit. After 16 such steps in a row the policy is switched off for good;
the log and /metrics tell of the faults. A request that has waited longer than `max_wait_s` goes first
whatever the policy says, and a step that would do nothing while somebody could run is made without it.

How to bring one. Most need a single part: subclass `Order`, `Victim`, `Chunking` or `Batching` (policies/parts.py),
whose fields are its parameters. A whole `Policy`, as below, is for what no part can say. Offer the class, or a
callable that makes a policy from its parameters, in a package:

    [project.entry-points."camshaft.policies"]
    gold_first = "acme.scheduling:GoldFirst"

and name it in a policy file, for installing turns nothing on; `engine policies list` shows what packages offer:

    order: {name: gold_first, tenants: [a, b]}     # a part, with its parameters
    plugin: {name: gold_first, tenants: [a, b]}    # instead of the four parts: a whole policy

How it is called. All calls come from the engine's one thread, between two steps: time spent here is time nobody gets
tokens, and nothing ends a call that does not return. Only step and view tell the time and the load, so that a
recorded run replays to the same plans: no clock, no randomness without a fixed seed, no input or output. Every policy
is made afresh with the engine and lives as long; what it keeps by tenant or request it must also forget.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

API_VERSION = 1

Key = tuple[float | int, ...]


class PolicyError(ValueError):
    """A policy file, parameter or name is wrong; the message says what is allowed."""


class RequestView(Protocol):
    """One request, read-only, as it is when it is asked. Times are seconds on the scheduler's clock.

    It is the same object from arrival to end; ends are told in `Events.finished`.
    """

    @property
    def id(self) -> str: ...
    @property
    def seq(self) -> int: ...  # arrival order; core appends it to every key, so ties are never random
    @property
    def arrival_s(self) -> float: ...
    @property
    def tenant(self) -> str: ...
    @property
    def priority(self) -> int: ...  # smaller is more urgent
    @property
    def deadline_s(self) -> float | None: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...  # prompt tokens a prefix lookup finds now; each read looks up
    @property
    def computed_tokens(self) -> int: ...
    @property
    def generated_tokens(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def preemptions(self) -> int: ...
    @property
    def blocks_held(self) -> int: ...


class StepSample(NamedTuple):
    """One finished step, as a policy may learn from it."""

    prefill_tokens: int
    decode_tokens: int
    context_tokens: int  # tokens in the cache that the step's attention read
    duration_ms: float


class StepView(NamedTuple):
    """The engine at the start of a step."""

    step: int
    now_s: float
    free_blocks: int
    total_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    num_running: int
    num_decoding: int  # running requests that need one token
    num_waiting: int
    decode_context_tokens: int  # cache tokens that the decodes of this step will read
    oldest_wait_s: float  # 0 when nobody waits
    last: StepSample | None  # the latest finished step


class Budget(NamedTuple):
    """What this step may spend; core clamps it to the configured limits. Counts are Python's int."""

    tokens: int  # in all, at least 1
    prefill_tokens: int | None = None  # of these, at most so many for prompts; None is no separate limit
    chunk_tokens: int | None = None  # at most so many per prompt; None is no limit
    chunked: bool = True  # False: a prompt runs whole or waits (one longer than the budget runs alone)
    decode_first: bool = True  # False: prompts may take the budget before decodes
    pad: bool = False  # every member is padded to the longest of the step, finished ones included


class Verdict(Enum):
    ADMIT = "admit"
    DEFER = "defer"  # ask again next step
    REJECT = "reject"  # the client gets an error with the reason


@dataclass(frozen=True, slots=True)
class Admission:
    verdict: Verdict
    reason: str = ""


ADMIT = Admission(Verdict.ADMIT)


@dataclass(frozen=True, slots=True)
class Events:
    """What one step did, for accounting; given once a step. Arrays are aligned and read-only."""

    now_s: float
    tenants: tuple[str, ...]  # names; tenant_codes index into it
    tenant_codes: np.ndarray  # int32 [n] tenant of each request that ran
    prefill_tokens: np.ndarray  # int32 [n] prompt tokens computed (cached ones excluded)
    decode_tokens: np.ndarray  # int32 [n] tokens generated
    arrived: tuple[RequestView, ...] = ()
    finished: tuple[RequestView, ...] = ()
    preempted: tuple[RequestView, ...] = ()


@runtime_checkable
class Policy(Protocol):
    """What the scheduler asks. Keys are tuples of float, bool, int of at most 64 bits, and numpy's numbers of 32 and
    64 bits, none of them NaN; smaller goes first, and of equals whoever arrived first.
    """

    @property
    def name(self) -> str: ...
    @property
    def dynamic(self) -> bool: ...
    # False: order_key depends on the request alone and is asked once, at arrival.
    # True: asked again each step for the oldest candidates (a bounded window).
    @property
    def accounts(self) -> bool: ...  # True: on_events is called once a step

    def order_key(self, view: RequestView, step: StepView) -> Key:
        """Who goes first, among the waiting and among the running when the budget is short."""
        ...

    def victim_key(self, view: RequestView, step: StepView) -> Key:
        """Who gives its blocks back first when there are none left, to be computed again later; asked of everybody
        that runs. Smaller gives way first, and of equals whoever came last.
        """
        ...

    def step_budget(self, step: StepView) -> Budget:
        """Tokens for this step and how prompts and decodes share them."""
        ...

    def admit(self, view: RequestView, step: StepView) -> Admission:
        """May this request start now? Asked of the waiting in their order, each step until they start; those behind a
        deferred one may start before it. A DEFER holds for `max_wait_s` at most, and with nobody running, nobody runs.
        """
        ...

    def on_events(self, events: Events) -> None:
        """Accounting, once a step, if `accounts`."""
        ...
