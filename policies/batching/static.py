from __future__ import annotations

from typing import ClassVar

from pydantic import Field, PrivateAttr

from ..base import ADMIT, Admission, RequestView, StepView, Verdict
from ..parts import Batching

_CLOSED = Admission(Verdict.DEFER, "the batch is closed until its slowest member ends")
_FILLING = Admission(Verdict.DEFER, "the batch is being filled")


class Static(Batching):
    """A batch is filled, then closed until its slowest member ends; its members are padded alike."""

    name = "static"
    pads: ClassVar[bool] = True

    fill_timeout_ms: float = Field(
        default=100.0, ge=0, description="longest wait for a batch to fill before it starts as it is"
    )

    _seen: StepView | None = PrivateAttr(default=None)
    _open: bool = PrivateAttr(default=False)

    def admit(self, view: RequestView, step: StepView) -> Admission:
        if step is not self._seen:
            self._seen = step
            self._open = self._may_open(step)
        if self._open:
            return ADMIT
        return _CLOSED if step.num_running else _FILLING

    def _may_open(self, step: StepView) -> bool:
        if step.num_running:
            # Still filling while every member is a prompt and there is room.
            return self._open and step.num_decoding == 0 and step.num_running < step.max_num_seqs
        full = step.num_waiting >= step.max_num_seqs
        return full or step.oldest_wait_s * 1e3 >= self.fill_timeout_ms
