from __future__ import annotations

from ..base import Key, RequestView, StepView
from ..parts import Victim


class Latest(Victim):
    """Whoever arrived last gives way."""

    name = "latest"

    def key(self, view: RequestView, step: StepView) -> Key:
        return (-view.seq,)
