"""What a policy sees of a request: a read-only face over the request and its row."""

from __future__ import annotations

from ..kv.cache import KVCache
from ..request import Request
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
