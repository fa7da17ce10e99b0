"""Sequences of one prompt: the later ones start on the blocks that the first has computed."""

from __future__ import annotations

import numpy as np

from ..errors import RequestError
from ..kv.cache import Match
from ..request import Request, State
from .running import Running


class Siblings:
    """Knows the unfinished requests by id. A request names in `fork_of` the first sequence of its prompt: the one
    of that id when it arrives, whoever takes the id later.
    """

    def __init__(self, running: Running) -> None:
        self._rows, self._kv = running.rows, running.kv
        self._by_id: dict[str, Request] = {}
        self._firsts: dict[Request, Request] = {}

    def add(self, request: Request) -> None:
        """Raises RequestError if the request names a first sequence whose prompt is another."""
        first = self._by_id.get(request.fork_of) if request.fork_of else None
        if first is not None:
            if not np.array_equal(first.prompt, request.prompt):
                raise RequestError(f"fork_of names {first.id}, whose prompt is another", "fork_of")
            self._firsts[request] = first
        self._by_id[request.id] = request

    def remove(self, request: Request) -> None:
        self._firsts.pop(request, None)
        if self._by_id.get(request.id) is request:
            del self._by_id[request.id]

    def must_wait(self, request: Request) -> bool:
        """Whether the first sequence of the same prompt has yet to compute it."""
        first = self._first(request)
        if first is None or request.state is not State.WAITING:
            return False
        return first.state is not State.RUNNING or self._rows.computed[first.row] < first.prompt_len

    def match(self, request: Request) -> Match:
        """What the cache holds for a request: the first sequence's blocks, else the longest known prefix."""
        first = self._first(request)
        if first is not None and first.state is State.RUNNING and request.state is State.WAITING:
            return self._kv.fork(first.row, request.prompt_len - 1)
        if request.params.prompt_logprobs is not None and not request.output:
            return Match([], 0)  # every position's logits are wanted
        return self._kv.match(request, request.tokens())

    def _first(self, request: Request) -> Request | None:
        first = self._firsts.get(request)
        return None if first is None or first.state is State.FINISHED else first
