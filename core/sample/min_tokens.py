"""min_tokens: what would end a generation is masked until so many tokens have been drawn."""

from __future__ import annotations

import numpy as np

from ..request import SamplingParams
from .edits import token_ids


def ending_ids(params: SamplingParams, eos_token_ids: tuple[int, ...], vocab: int) -> np.ndarray:
    """int64: end-of-sequence and stop ids. With `ignore_eos` too, as in vLLM."""
    return token_ids([*eos_token_ids, *params.stop_token_ids], vocab)
