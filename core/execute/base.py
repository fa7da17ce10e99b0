"""The contract between the step loop and whatever runs a step: torch on a device, or a virtual clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from ..schedule.plan import StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class Capacity:
    """What an opened executor can hold."""

    num_blocks: int
    block_size: int  # tokens
    max_model_len: int  # tokens
    max_num_seqs: int  # rows
    vocab_size: int
    eos_token_ids: tuple[int, ...] = ()
    memory: dict[str, Any] = field(default_factory=dict)  # where the bytes went, for reports


@runtime_checkable
class Relievable(Protocol):
    """An executor whose launch and collect may raise OutOfMemory."""

    def relieve(self) -> None:
        """Gives memory that no tensor uses back to the device."""
        ...


class Executor(Protocol):
    """Runs step plans. Plans must be launched in the order they were made.

    After OutOfMemory from `launch` the step has not run, and what the plan changed still holds; after one from
    `collect` nothing of that step or of later ones may be used.
    """

    def open(self) -> Capacity:
        """Loads what is needed and sizes the cache. Raises ModelError or CapacityError."""
        ...

    def launch(self, plan: StepPlan) -> Any:
        """Starts a step and returns a handle for `collect`. Must not wait for the device."""
        ...

    def collect(self, handle: Any) -> StepResult:
        """Waits for a launched step."""
        ...

    def close(self) -> None:
        """Frees everything; safe to call twice."""
        ...
