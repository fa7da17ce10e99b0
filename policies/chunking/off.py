from __future__ import annotations

from ..base import Budget, StepView
from ..parts import Chunking


class Off(Chunking):
    """A prompt is computed whole, beside the decodes of the step."""

    name = "off"

    def budget(self, step: StepView) -> Budget:
        return Budget(tokens=step.max_num_batched_tokens, chunked=False)
