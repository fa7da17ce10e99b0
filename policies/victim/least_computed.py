from __future__ import annotations

from ..base import Key, RequestView, StepView
from ..parts import Victim


class LeastComputed(Victim):
    """Whoever would have the least to compute again gives way."""

    name = "least_computed"

    def key(self, view: RequestView, step: StepView) -> Key:
        return (view.computed_tokens,)
