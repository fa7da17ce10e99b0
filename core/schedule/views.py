"""What a policy sees of a request: a read-only face over the request and its row."""

from __future__ import annotations

from collections.abc import Callable

from ...policies.base import Key, StepView
from ..kv.cache import KVCache
from ..request import Request
from .guard import Guard
from .rows import Rows


class View:
    """Implements `policies.base.RequestView`; one a request, made once, reading the columns when asked."""

    __slots__ = ("_kv", "_request", "_rows")

    def __init__(self, request: Request, rows: Rows, kv: KVCache) -> None:
        self._request, self._rows, self._kv = request, rows, kv

    @property
    def request(self) -> Request:
        """For core; a policy's protocol does not have it."""
        return self._request

    @property
    def id(self) -> str:
        return self._request.id

    @property
    def seq(self) -> int:
        return self._request.seq

    @property
    def arrival_s(self) -> float:
        return self._request.arrival_s

    @property
    def tenant(self) -> str:
        return self._request.tenant

    @property
    def priority(self) -> int:
        return self._request.priority

    @property
    def deadline_s(self) -> float | None:
        return self._request.deadline_s

    @property
    def prompt_tokens(self) -> int:
        return self._request.prompt_len

    @property
    def cached_tokens(self) -> int:
        request = self._request
        if request.row >= 0:
            return request.cached_tokens
        return self._kv.match(request, request.tokens()).tokens

    @property
    def computed_tokens(self) -> int:
        row = self._request.row
        return int(self._rows.computed[row]) if row >= 0 else 0

    @property
    def generated_tokens(self) -> int:
        request = self._request
        if request.row >= 0:
            return int(self._rows.known[request.row]) - request.prompt_len
        return len(request.output)

    @property
    def max_tokens(self) -> int:
        return self._request.params.max_tokens

    @property
    def preemptions(self) -> int:
        return self._request.preemptions

    @property
    def blocks_held(self) -> int:
        row = self._request.row
        return int(self._kv.tables.count[row]) if row >= 0 else 0


class Views:
    """The view of every request that has not ended, and the policy's order among them."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._by_seq: dict[int, View] = {}

    def __getitem__(self, request: Request) -> View:
        return self._by_seq[request.seq]

    def add(self, view: View) -> None:
        """For a request that has its number."""
        self._by_seq[view.seq] = view

    def pop(self, request: Request) -> View:
        """Forgets a request that ends; returns its view."""
        return self._by_seq.pop(request.seq)

    def request(self, seq: int) -> Request | None:
        """The request of a number; None once it has ended."""
        view = self._by_seq.get(seq)
        return None if view is None else view.request

    def key_of(self, step: StepView) -> Callable[[Request], Key]:
        """The policy's order at a step."""
        return lambda request: self._guard.order_key(self[request], step)
