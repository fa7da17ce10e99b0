from __future__ import annotations

import numpy as np
from pydantic import Field, PrivateAttr

from ..base import Budget, StepSample, StepView
from ..parts import Chunking

_FEATURES = 4  # a constant, prompt tokens, decodes, thousands of tokens read from the cache


class Adaptive(Chunking):
    """Holds a target for the time between tokens: prompts get what is left of the milliseconds.

    The time of a step is taken as linear in its prompt tokens, its decodes and the cache it reads; the
    coefficients are fitted by recursive least squares with forgetting from the steps that the policy sees.
    Without decodes nobody waits for a token, so the whole budget goes to prompts.
    """

    name = "adaptive"

    itl_target_ms: float = Field(default=50.0, gt=0, description="time between tokens to hold")
    min_prompt_tokens: int = Field(
        default=16, gt=0, description="tokens a step gives to prompts at least, so they never stop"
    )
    headroom: float = Field(default=0.9, gt=0, le=1, description="part of the target that is planned for")
    forgetting: float = Field(
        default=0.98, gt=0.5, lt=1, description="weight of a step relative to the next one in the fit"
    )

    _coefficients: np.ndarray = PrivateAttr(default_factory=lambda: np.zeros(_FEATURES))
    _covariance: np.ndarray = PrivateAttr(default_factory=lambda: np.eye(_FEATURES) * 1e3)
    _seen: StepSample | None = PrivateAttr(default=None)
    _samples: int = PrivateAttr(default=0)

    def budget(self, step: StepView) -> Budget:
        if step.last is not None and step.last is not self._seen:
            self._seen = step.last
            self._learn(step.last)
        if not step.num_decoding:
            return Budget(tokens=step.max_num_batched_tokens)
        prompts = min(self._prompt_tokens(step), step.max_num_batched_tokens)
        return Budget(tokens=step.max_num_batched_tokens, prefill_tokens=prompts)

    def predict_ms(self, prefill_tokens: int, decode_tokens: int, context_tokens: int) -> float:
        """Fitted time of a step."""
        return float(self._coefficients @ _features(prefill_tokens, decode_tokens, context_tokens))

    def _prompt_tokens(self, step: StepView) -> int:
        per_token = float(self._coefficients[1])
        if self._samples < _FEATURES or per_token <= 0:
            return self.min_prompt_tokens * 4
        base = self.predict_ms(0, step.num_decoding, step.decode_context_tokens)
        left_ms = self.itl_target_ms * self.headroom - base
        return max(self.min_prompt_tokens, int(left_ms / per_token))

    def _learn(self, sample: StepSample) -> None:
        x = _features(sample.prefill_tokens, sample.decode_tokens, sample.context_tokens)
        spread = self._covariance @ x
        gain = spread / (self.forgetting + float(x @ spread))
        self._coefficients = self._coefficients + gain * (sample.duration_ms - float(x @ self._coefficients))
        covariance = (self._covariance - np.outer(gain, spread)) / self.forgetting
        # A direction that no step excites would grow without bound.
        self._covariance = covariance * min(1.0, 1e4 / max(float(np.trace(covariance)), 1e-12))
        self._samples += 1


def _features(prefill_tokens: int, decode_tokens: int, context_tokens: int) -> np.ndarray:
    return np.array([1.0, prefill_tokens, decode_tokens, context_tokens / 1e3])
