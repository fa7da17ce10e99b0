"""What a step left behind, on the host."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..request import Logprob


@dataclass(frozen=True, slots=True)
class Results:
    """`tokens` int32 [samples] in the plan's order; the rest by row."""

    tokens: np.ndarray
    logprobs: dict[int, Logprob]
    prompt_logprobs: dict[int, list[Logprob]]
    failed: dict[int, str]
    figures: dict[str, int] = field(default_factory=dict)  # to be added up over steps
