"""A policy is put together from four parts, each a small class with parameters of its own.

order     who goes first                    victim    who gives way when blocks run out
chunking  how a step's tokens are shared    batching  when a request may start
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from .base import ADMIT, Admission, Budget, Events, Key, RequestView, StepView


class Part(BaseModel, ABC):
    """A part's parameters are its fields; unknown ones are refused, as are infinity and NaN."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    name: ClassVar[str]

    def on_events(self, events: Events) -> None:
        """Accounting, once a step, for parts with `accounts` set."""


class Order(Part):
    dynamic: ClassVar[bool] = False
    accounts: ClassVar[bool] = False

    @abstractmethod
    def key(self, view: RequestView, step: StepView) -> Key:
        """Smaller goes first; arrival order decides between equals."""


class Victim(Part):
    @abstractmethod
    def key(self, view: RequestView, step: StepView) -> Key:
        """Smaller gives way first; of equals, the one that came last."""


class Chunking(Part):
    @abstractmethod
    def budget(self, step: StepView) -> Budget:
        """Tokens for this step."""


class Batching(Part):
    accounts: ClassVar[bool] = False
    pads: ClassVar[bool] = False

    def admit(self, view: RequestView, step: StepView) -> Admission:
        """May this request start now?"""
        return ADMIT


def describe(part: type[Part]) -> dict[str, Any]:
    """A part's first docstring line (empty without one) and its parameters with defaults."""
    return {
        "what": (part.__doc__ or "").strip().partition("\n")[0],
        "parameters": {
            key: {"default": field.get_default(call_default_factory=True), "what": field.description or ""}
            for key, field in part.model_fields.items()
        },
    }
