"""Keeps a policy honest: checks every answer, falls back to first come, first served, counts the faults."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np

from ...policies.base import ADMIT, Admission, Budget, Events, Key, Policy, RequestView, StepView, Verdict
from ..logs import get_logger

T = TypeVar("T")

# Exactly these: a subclass may compare as it likes. `part == part` is False for NaN.
_NUMBERS = frozenset({float, bool, np.float64, np.float32, np.int64, np.int32})
_INT64 = range(-(1 << 63), 1 << 63)  # numpy's floats cannot be compared with every int

_log = get_logger("camshaft.policy")

# What a policy may raise without ending the engine; a key press still does.
FAULTS = (Exception, SystemExit, GeneratorExit)
FIRST_COME: Key = ()  # core appends the arrival number to every key


class Guard:
    """The scheduler's only way to a policy. An answer that raises or makes no sense is replaced for that
    step; after PATIENCE faulty steps in a row the policy is switched off for good.
    """

    PATIENCE = 16

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.faults = 0
        self._told = 0  # of the faults, when one was logged
        self.enabled = True
        self._faulty_steps = 0
        self._fault_this_step = False
        self.name = type(policy).__name__
        self.name = self._ask("name", _is_text, self.name)
        self.dynamic = self._ask("dynamic", _is_bool, False)
        self.accounts = self._ask("accounts", _is_bool, False)

    def begin_step(self) -> None:
        """Counts whether the last step was faulty, and forgets it."""
        if self._fault_this_step:
            self._fault_this_step = False
            self._faulty_steps += 1
            if self._faulty_steps >= self.PATIENCE and self.enabled:
                self.enabled = False
                _log.error("policy switched off", policy=self.name, faulty_steps=self._faulty_steps)
        else:
            self._faulty_steps = 0

    def order_key(self, view: RequestView, step: StepView) -> Key:
        return self._ask("order_key", _is_key, FIRST_COME, view, step)

    def victim_key(self, view: RequestView, step: StepView) -> Key:
        """Falls back to the request that came last."""
        return self._ask("victim_key", _is_key, (-view.seq,), view, step)

    def step_budget(self, step: StepView) -> Budget:
        whole = Budget(tokens=step.max_num_batched_tokens)
        return self._ask("step_budget", _is_budget, whole, step)

    def admit(self, view: RequestView, step: StepView) -> Admission:
        return self._ask("admit", _is_admission, ADMIT, view, step)

    def on_events(self, events: Events) -> None:
        self._ask("on_events", lambda answer: answer is None, None, events)

    def overrule(self, what: str) -> None:
        """Core acted against the policy's word to keep a promise (progress, longest wait)."""
        self._fault(what, "overruled")

    def _ask(self, name: str, valid: Callable[[Any], bool], fallback: T, *arguments: Any) -> T:
        """An attribute of the policy; with arguments, what that answers to them."""
        if not self.enabled:
            return fallback
        try:
            answer = getattr(self.policy, name)
            if arguments:
                answer = answer(*arguments)
            if valid(answer):
                return answer
            fault = f"unusable answer {answer!r:.100}"
        except FAULTS as error:  # of the policy, or of what it answered
            fault = type(error).__name__
            with suppress(*FAULTS):
                fault += f": {error}"
            fault += _raised_at(error)
        self._fault(name, fault)
        return fallback

    def _fault(self, name: str, what: str) -> None:
        self.faults += 1
        if not self._fault_this_step:
            self._fault_this_step = True
            # Those that never come in a row do not disable the policy; each would be a line of the log.
            if self._faulty_steps == 0 and self.faults >= 2 * self._told:
                self._told = self.faults
                _log.warning("policy fault", policy=self.name, call=name, fault=what, faults=self.faults)


def _raised_at(error: BaseException) -> str:
    """The file and the line that raised; empty where that is core itself."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    if frame is None or frame.tb_frame.f_code.co_filename == __file__:
        return ""
    return f" ({frame.tb_frame.f_code.co_filename}:{frame.tb_lineno})"


def _is_text(answer: Any) -> bool:
    """Whether it is text that can be sent; raises for half of a surrogate pair."""
    return type(answer) is str and answer.encode() is not None


def _is_bool(answer: Any) -> bool:
    return isinstance(answer, bool)


def _is_key(answer: Any) -> bool:
    return type(answer) is tuple and all(map(_is_number, answer))


def _is_number(part: Any) -> bool:
    if type(part) is int:
        return part in _INT64
    return type(part) in _NUMBERS and bool(part == part)


def _is_admission(answer: Any) -> bool:
    return type(answer) is Admission and isinstance(answer.verdict, Verdict) and _is_text(answer.reason)


def _is_budget(answer: Any) -> bool:
    if type(answer) is not Budget:
        return False
    return (
        type(answer.tokens) is int
        and answer.tokens > 0
        and all(type(flag) is bool for flag in (answer.chunked, answer.decode_first, answer.pad))
        and _is_count_or_none(answer.prefill_tokens)
        and _is_count_or_none(answer.chunk_tokens)
    )


def _is_count_or_none(part: Any) -> bool:
    return part is None or (type(part) is int and part >= 0)
