"""Collects the times of tokens, a whole step at once."""

from __future__ import annotations

import numpy as np


class TokenTimes:
    """First token, last token and every gap between tokens of each request, by its number."""

    def __init__(self) -> None:
        self.first_s = np.zeros(0)
        self.last_s = np.zeros(0)
        self.tokens = np.zeros(0, dtype=np.int64)
        self._owners: list[np.ndarray] = []
        self._gaps: list[np.ndarray] = []

    def __len__(self) -> int:
        return len(self.tokens)

    def grow(self, requests: int) -> None:
        """Makes room for requests numbered below `requests`."""
        more = max(requests, 2 * len(self)) - len(self)
        if requests > len(self):
            self.first_s = np.concatenate([self.first_s, np.full(more, np.nan)])
            self.last_s = np.concatenate([self.last_s, np.full(more, np.nan)])
            self.tokens = np.concatenate([self.tokens, np.zeros(more, dtype=np.int64)])

    def record(self, numbers: np.ndarray, now_s: float, count: int = 1) -> None:
        """`count` tokens arrived now for each of some requests (int [n], no request twice).

        Tokens that arrive together are one gap and no gaps: what the reader of a stream sees.
        """
        fresh = np.isnan(self.first_s[numbers])
        self.first_s[numbers[fresh]] = now_s
        known = numbers[~fresh]
        if len(known):
            self._owners.append(known)
            self._gaps.append((now_s - self.last_s[known]) * 1e3)
        self.last_s[numbers] = now_s
        self.tokens[numbers] += count

    def gaps_ms(self) -> np.ndarray:
        """float64: every gap, in no order that matters."""
        return np.concatenate(self._gaps) if self._gaps else np.empty(0)

    def p99_by_request(self) -> np.ndarray:
        """float64 [requests]: the 99th percentile of each request's own gaps; NaN without any."""
        result = np.full(len(self), np.nan)
        if not self._gaps:
            return result
        owners, gaps = np.concatenate(self._owners), self.gaps_ms()
        order = np.lexsort((gaps, owners))
        owners, gaps = owners[order], gaps[order]
        ids, starts, counts = np.unique(owners, return_index=True, return_counts=True)
        result[ids] = gaps[starts + np.ceil(counts * 0.99).astype(np.int64) - 1]
        return result
