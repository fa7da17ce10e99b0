from __future__ import annotations

from ..base import Key, RequestView, StepView
from ..parts import Order


class Priority(Order):
    """Smaller `priority` first, as in vLLM."""

    name = "priority"

    def key(self, view: RequestView, step: StepView) -> Key:
        return (view.priority,)
