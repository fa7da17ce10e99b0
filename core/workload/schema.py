"""The written form of a load: how requests arrive, how long they are, what they share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from .lengths import Length

MAX_REQUESTS = 10_000_000
Count = Annotated[int, Field(ge=1, le=MAX_REQUESTS)]
Positive = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]


class _Shape(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Closed(_Shape):
    """A fixed number of clients; each sends its next request when the last one has ended."""

    kind: Literal["closed"]
    concurrency: Count
    requests: Count


class Poisson(_Shape):
    """Independent arrivals at a mean rate; `burstiness` below 1 bunches them (gamma gaps of that shape)."""

    kind: Literal["poisson"]
    rate: Positive  # requests a second
    requests: Count
    burstiness: Positive = 1.0


class Bursts(_Shape):
    """`size` requests at once, every `interval_s`; `rate` adds Poisson arrivals between the bursts."""

    kind: Literal["bursts"]
    size: Count
    interval_s: Positive
    requests: Count
    rate: Annotated[float, Field(ge=0, le=1e9)] = 0.0


class Sessions(_Shape):
    """Conversations: each turn's prompt is all that was said before and `input_tokens` new ones.

    The first turn's prompt has `shared_prefix_tokens` in front of these. Sessions start at `rate` a second, or `concurrency` of them run at once. A turn begins `think_s` after
    the answer to the last one.
    """

    kind: Literal["sessions"]
    sessions: Count
    turns: Length
    think_s: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    rate: Positive | None = None
    concurrency: Count | None = None
    max_context_tokens: Count | None = None  # a session ends before a turn that would exceed it

    @model_validator(mode="after")
    def _one_start(self) -> Sessions:
        if (self.rate is None) == (self.concurrency is None):
            raise ValueError("exactly one of rate and concurrency is needed")
        return self


class Trace(_Shape):
    """Arrivals and lengths as recorded; lengths come from the file unless given here."""

    kind: Literal["trace"]
    file: str  # relative to the workload file
    format: Literal["auto", "azure", "mooncake", "recording"] = "auto"
    requests: Count | None = None  # the first so many
    speed: Positive = 1.0  # 2 replays twice as fast
    concurrency: Count | None = None  # given: the arrival times are ignored, so many run at once


Arrival = Annotated[Closed | Poisson | Bursts | Sessions | Trace, Field(discriminator="kind")]


class Class(_Shape):
    """One kind of request in a mix; what it does not say is the workload's."""

    weight: Positive = 1.0
    input_tokens: Length | None = None
    output_tokens: Length | None = None
    shared_prefix_tokens: Annotated[int, Field(ge=0)] | None = None
    tenant: str | None = None
    priority: int | None = None
    deadline_ms: Positive | None = None


class WorkloadShape(_Shape):
    """A load. The first `shared_prefix_tokens` of a prompt's `input_tokens` are its group's, equal in all of them."""

    arrival: Arrival
    input_tokens: Length | None = None
    output_tokens: Length | None = None
    shared_prefix_tokens: int = Field(default=0, ge=0)
    shared_prefix_groups: Count = 1
    mix: tuple[Class, ...] = ()
    max_input_tokens: Count | None = None  # longer prompts are cut
    max_output_tokens: Count | None = None
    tenant: str = ""
    priority: int = 0
    seed: int = Field(default=0, ge=0)
    description: str = ""

    @model_validator(mode="after")
    def _lengths_known(self) -> WorkloadShape:
        if isinstance(self.arrival, Trace):
            return self
        for name in ("input_tokens", "output_tokens"):
            if getattr(self, name) is None and not (
                self.mix and all(getattr(member, name) is not None for member in self.mix)
            ):
                raise ValueError(f"{name} is missing; e.g. {name}: {{uniform: [64, 512]}}")
        return self
