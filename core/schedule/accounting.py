"""What a policy that keeps accounts is told, once a step."""

from __future__ import annotations

from collections import Counter

import numpy as np

from ...policies.base import Events
from .rows import Rows
from .views import View

_NONE = np.empty(0, dtype=np.int32)


class Accounts:
    """Gathers arrivals, ends, evictions and work done between two calls of `take`, if anyone asks."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._codes: dict[str, int] = {}  # of tenants that have requests here
        self._names: list[str] = []  # by code
        self._free: list[int] = []
        self._present: Counter[str] = Counter()
        self._ran: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._arrived: list[View] = []
        self._finished: list[View] = []
        self._preempted: list[View] = []

    def tenant(self, name: str) -> int:
        """A small number for the name of a tenant that has requests here."""
        if not self._enabled:
            return 0
        code = self._codes.get(name)
        if code is None:
            if not self._free:
                self._free.append(len(self._names))
                self._names.append("")
            code = self._codes[name] = self._free.pop()
            self._names[code] = name
        return code

    def arrived(self, view: View) -> None:
        if self._enabled:
            self._arrived.append(view)
            self._present[view.tenant] += 1

    def finished(self, view: View) -> None:
        if self._enabled:
            self._finished.append(view)

    def preempted(self, view: View) -> None:
        if self._enabled:
            self._preempted.append(view)

    def ran(
        self, rows: Rows, who: np.ndarray, num_tokens: np.ndarray, samples: np.ndarray, starts: np.ndarray
    ) -> None:
        """A step's work. A token that is drawn counts as decode, prompt positions computed as prefill."""
        prefill = np.clip(rows.prompt_len[who] - starts, 0, num_tokens).astype(np.int32)
        self._ran.append((rows.tenant[who], prefill, samples.astype(np.int32)))

    def take(self, now_s: float) -> Events:
        """Everything since the last call."""
        parts = self._ran or [(_NONE, _NONE, _NONE)]
        codes, prefill, decode = (np.concatenate(column) for column in zip(*parts, strict=True))
        events = Events(
            now_s,
            tuple(self._names),
            codes,
            prefill,
            decode,
            tuple(self._arrived),
            tuple(self._finished),
            tuple(self._preempted),
        )
        self._ran, self._arrived, self._finished, self._preempted = [], [], [], []
        for view in events.finished:  # no step that is told of from here on can be theirs
            self._leave(view.tenant)
        return events

    def _leave(self, name: str) -> None:
        self._present[name] -= 1
        if not self._present[name]:
            del self._present[name]
            code = self._codes.pop(name, None)  # none for one that never ran
            if code is not None:
                self._free.append(code)
        if not self._codes:
            self._names, self._free = [], []
