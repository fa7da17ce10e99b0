from __future__ import annotations

from ..base import Key, RequestView, StepView
from ..parts import Order


class Fcfs(Order):
    """First come, first served."""

    name = "fcfs"

    def key(self, view: RequestView, step: StepView) -> Key:
        return ()
