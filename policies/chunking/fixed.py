from __future__ import annotations

from pydantic import Field

from ..base import Budget, StepView
from ..parts import Chunking


class Fixed(Chunking):
    """Every step has the same number of tokens; decodes take theirs first, prompts the rest in chunks."""

    name = "fixed"

    tokens: int | None = Field(
        default=None, gt=0, description="tokens of a step; max_num_batched_tokens if not given"
    )
    prompt_share: float = Field(
        default=1.0, gt=0, le=1, description="largest part of the step that one prompt may take"
    )

    def budget(self, step: StepView) -> Budget:
        tokens = min(self.tokens or step.max_num_batched_tokens, step.max_num_batched_tokens)
        chunk = None if self.prompt_share == 1.0 else max(1, int(tokens * self.prompt_share))
        return Budget(tokens=tokens, chunk_tokens=chunk)
