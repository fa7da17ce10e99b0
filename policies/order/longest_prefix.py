from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from ..base import Key, RequestView, StepView
from ..parts import Order


class LongestPrefix(Order):
    """Whoever has most of its prompt in the cache first, while it is still there."""

    name = "longest_prefix"
    dynamic: ClassVar[bool] = True

    granularity_tokens: int = Field(
        default=64, gt=0, description="hits closer than this count as equal, and arrival decides"
    )

    def key(self, view: RequestView, step: StepView) -> Key:
        return (-(view.cached_tokens // self.granularity_tokens),)
