"""The counters of running requests, one array each, indexed by row."""

from __future__ import annotations

import numpy as np

from ..request import Request


class Rows:
    """A request keeps one row from admission to its end; an evicted one gets a new row when it returns.

    computed: tokens in the cache, those of the step in flight included
    target:   tokens the request will have once the steps in flight are done; a step hands out
              target - computed tokens at most
    known:    tokens whose values the host has
    limit:    tokens at which it ends
    """

    def __init__(self, max_rows: int, max_tokens: int) -> None:
        self.max_rows = max_rows
        self.requests: list[Request | None] = [None] * max_rows
        self.tokens = np.empty((max_rows, max_tokens), dtype=np.int32)
        self.computed = np.zeros(max_rows, dtype=np.int32)
        self.target = np.zeros(max_rows, dtype=np.int32)
        self.known = np.zeros(max_rows, dtype=np.int32)
        self.limit = np.zeros(max_rows, dtype=np.int32)
        self.prompt_len = np.zeros(max_rows, dtype=np.int32)
        self.seq = np.full(max_rows, -1, dtype=np.int64)
        self.handle = np.full(max_rows, -1, dtype=np.int32)
        self.tenant = np.zeros(max_rows, dtype=np.int32)
        self.stops_at_eos = np.zeros(max_rows, dtype=bool)
        self.plain = np.zeros(max_rows, dtype=bool)  # nothing to report or check but its next token
        self.num_special = 0  # running rows that are not plain
        self.turnover = 0  # rows ended so far: while it stands still, no row changed hands
        self._free = list(range(max_rows - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def begin(self, request: Request, computed: int, limit: int, tenant: int) -> int:
        """Gives a request the lowest free row, `computed` of its tokens already in the cache."""
        row = self._free.pop()
        length = request.length
        self.requests[row] = request
        self.tokens[row, : request.prompt_len] = request.prompt
        self.tokens[row, request.prompt_len : length] = request.output
        self.computed[row] = computed
        self.target[row] = self.known[row] = length
        self.limit[row] = limit
        self.prompt_len[row] = request.prompt_len
        self.seq[row] = request.seq
        self.handle[row] = request.handle
        self.tenant[row] = tenant
        params = request.params
        self.stops_at_eos[row] = not params.ignore_eos
        self.plain[row] = False  # its first token is news of its own
        self.num_special += 1
        return row

    def end(self, row: int) -> Request:
        """Frees a row; the request keeps the tokens it generated."""
        request = self.requests[row]
        assert request is not None
        request.output = self.tokens[row, request.prompt_len : self.known[row]].tolist()
        self.requests[row] = None
        self.seq[row] = -1
        self.num_special -= not self.plain[row]
        self.turnover += 1
        self._free.append(row)
        return request

    def make_plain(self, row: int) -> None:
        """From now on the row has nothing to report but its tokens."""
        self.num_special -= not self.plain[row]
        self.plain[row] = True

    def request(self, row: int) -> Request:
        request = self.requests[row]
        assert request is not None
        return request
