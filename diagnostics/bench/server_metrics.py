"""What a server says of itself while it is measured: its Prometheus page before, during and after."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

import httpx

from ...core.errors import EvidenceError
from ..evidence.prometheus import Scrape, parse

SAMPLE_S = 1.0

# vLLM's names, which this engine shares; older releases had the second one of a pair.
_PREEMPTIONS = ("vllm:num_preemptions_total",)
_QUERIES = ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total")
_HITS = ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")
_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")


@dataclass(frozen=True, slots=True)
class ServerMetrics:
    """Over the run; None where the server does not say. `kv_usage_peak` is of one sample a second."""

    preemptions: int | None
    kv_usage_peak: float | None  # share of the KV cache
    prefix_hit_rate: float | None  # of prompt tokens


class MetricsWatch:
    """Reads a metrics page now and then. A server without one is measured all the same."""

    def __init__(self, client: httpx.AsyncClient, url: str) -> None:
        self._client, self._url = client, url
        self._before: Scrape | None = None
        self._usages: list[float] = []
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Takes the totals before the run and begins to sample."""
        self._before = await self._read()
        if self._before is not None:
            self._task = asyncio.create_task(self._sample())

    async def stop(self) -> ServerMetrics | None:
        """What the run came to by the server's own figures; None where it has no page."""
        if self._task is None:
            return None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        after = await self._read()
        queries = self._growth(after, _QUERIES)
        hits = self._growth(after, _HITS)
        preemptions = self._growth(after, _PREEMPTIONS)
        return ServerMetrics(
            None if preemptions is None else round(preemptions),
            max(self._usages, default=None),
            hits / queries if queries and hits is not None else None,
        )

    def _growth(self, after: Scrape | None, names: tuple[str, ...]) -> float | None:
        end, start = _first(after, names), _first(self._before, names)
        return None if end is None or start is None else end - start

    async def _sample(self) -> None:
        while True:
            usage = _first(await self._read(), _USAGE)
            if usage is not None:
                self._usages.append(usage)
            await asyncio.sleep(SAMPLE_S)

    async def _read(self) -> Scrape | None:
        try:
            answer = await self._client.get(self._url, timeout=10.0)
            answer.raise_for_status()
            return parse(answer.text, self._url)
        except (httpx.HTTPError, EvidenceError):
            return None


def _first(page: Scrape | None, names: tuple[str, ...]) -> float | None:
    """The first of the names that is on a page, summed over its labels (one engine or several behind an address)."""
    if page is None:
        return None
    return next((total for name in names if (total := page.total(name)) is not None), None)
