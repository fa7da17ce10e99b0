from __future__ import annotations

from pydantic import PrivateAttr

from ..base import ADMIT, Admission, RequestView, StepView, Verdict
from ..parts import Batching

_BUSY = Admission(Verdict.DEFER, "one request at a time, and one is running")


class Single(Batching):
    """One request at a time."""

    name = "single"

    _admitted_in: StepView | None = PrivateAttr(default=None)

    def admit(self, view: RequestView, step: StepView) -> Admission:
        if step.num_running or step is self._admitted_in:
            return _BUSY
        self._admitted_in = step
        return ADMIT
