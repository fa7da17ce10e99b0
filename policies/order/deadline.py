from __future__ import annotations

import math

from ..base import Key, RequestView, StepView
from ..parts import Order


class Deadline(Order):
    """Earliest deadline first; requests without one come after."""

    name = "deadline"

    def key(self, view: RequestView, step: StepView) -> Key:
        return (math.inf if view.deadline_s is None else view.deadline_s,)
