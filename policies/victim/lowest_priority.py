from __future__ import annotations

from ..base import Key, RequestView, StepView
from ..parts import Victim


class LowestPriority(Victim):
    """The least urgent gives way; among equals, whoever has least to compute again."""

    name = "lowest_priority"

    def key(self, view: RequestView, step: StepView) -> Key:
        return (-view.priority, view.computed_tokens)
