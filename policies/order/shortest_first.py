from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from ..base import Key, RequestView, StepView
from ..parts import Order


class ShortestFirst(Order):
    """Fewest tokens to compute first; waiting shortens a request, so the long ones do not starve."""

    name = "shortest_first"
    dynamic: ClassVar[bool] = True

    aging_tokens_per_s: float = Field(
        default=512.0, ge=0, description="tokens by which a second of waiting shortens a request"
    )
    granularity_tokens: int = Field(
        default=64, gt=0, description="lengths closer than this count as equal, and arrival decides"
    )

    def key(self, view: RequestView, step: StepView) -> Key:
        missing = view.prompt_tokens + view.generated_tokens - view.cached_tokens
        aged = missing - self.aging_tokens_per_s * (step.now_s - view.arrival_s)
        return (aged // self.granularity_tokens,)
