"""Prometheus metrics under vLLM's names and labels (0.18, and what its dashboards of 0.33 ask for).

Histograms are plain lists bumped by bisection: an observation costs well under a microsecond, and
prometheus-client sees them only when someone scrapes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ...config import ServeConfig
from ...messages import Ready, Stats
from ..text.generation import Generation, Sequence

# Buckets as in vLLM 0.18.0, vllm/v1/metrics/loggers.py.
_TTFT_S = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0]
_TTFT_S += [20.0, 40.0, 80.0, 160.0, 640.0, 2560.0]
_ITL_S = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0]
_ITL_S += [20.0, 40.0, 80.0]
_REQUEST_S = [0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0]
_REQUEST_S += [120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0]
_STEP_TOKENS = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]
_STEP_S = [0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0]
_N = [1, 2, 5, 10, 20]
_PREEMPTIONS = [1, 2, 3, 4, 5, 10, 20]
_HTTP_S = [0.1, 0.5, 1.0]  # as prometheus-fastapi-instrumentator's, whose names the HTTP metrics have

# vllm's names, without the prefix: help, and bounds; None: in steps of 1, 2, 5 up to the model's length.
_HISTOGRAMS: dict[str, tuple[str, Iterable[float] | None]] = {
    "time_to_first_token_seconds": ("Time to first token in seconds.", _TTFT_S),
    "inter_token_latency_seconds": ("Inter-token latency in seconds.", _ITL_S),
    "request_time_per_output_token_seconds": ("Time per output token of a request in seconds.", _ITL_S),
    "e2e_request_latency_seconds": ("End to end request latency in seconds.", _REQUEST_S),
    "request_queue_time_seconds": ("Time spent WAITING in seconds.", _REQUEST_S),
    "request_inference_time_seconds": ("Time spent RUNNING in seconds.", _REQUEST_S),
    "request_prefill_time_seconds": ("Time spent in PREFILL in seconds.", _REQUEST_S),
    "request_decode_time_seconds": ("Time spent in DECODE in seconds.", _REQUEST_S),
    "iteration_tokens_total": ("Tokens per engine step.", _STEP_TOKENS),
    "request_params_n": ("The n request parameter.", _N),
    "request_num_preemptions": ("Times a request was preempted.", _PREEMPTIONS),
    "request_prompt_tokens": ("Prefill tokens processed.", None),
    "request_generation_tokens": ("Generation tokens processed.", None),
    "request_max_num_generation_tokens": ("Maximum number of requested generation tokens.", None),
    "request_params_max_tokens": ("The max_tokens request parameter.", None),
    "request_prefill_kv_computed_tokens": (
        "New KV tokens computed during prefill, cached ones excluded.",
        None,
    ),
}
_NOTHING = Stats(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, waste=0.0)

FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")


def _one_two_five(limit: int) -> list[int]:
    buckets: list[int] = []
    scale = 1
    while True:
        for step in (1, 2, 5):
            if step * scale > limit:
                return buckets or [1]
            buckets.append(step * scale)
        scale *= 10


class Histogram:
    """Counts per bucket, and a sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Iterable[float]) -> None:
        self.bounds = list(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound, samples at or below it), `+Inf` last."""
        total = 0
        rows: list[tuple[str, float]] = []
        for bound, count in zip([*map(float, self.bounds), float("inf")], self.counts, strict=True):
            total += count
            rows.append(("+Inf" if bound == float("inf") else str(bound), total))
        return rows


class Metrics(Collector):
    """All figures of the server. Written on the event loop only."""

    def __init__(self, model_name: str) -> None:
        self._labels = (model_name, "0")
        self.stats = _NOTHING
        self._cache_labels: dict[str, str] = {}  # empty until the engine is ready
        self.admission_rejections = 0
        self.prompt_tokens = 0
        self.prompt_tokens_cached = 0
        self.generation_tokens = 0
        self.finished = dict.fromkeys(FINISH_REASONS, 0)
        self.http: dict[tuple[str, str, str], int] = {}
        self.http_s: dict[tuple[str, str], Histogram] = {}
        self.step_s = Histogram(_STEP_S)
        self._size(32768)

    def _size(self, max_model_len: int) -> None:
        lengths = _one_two_five(max_model_len)
        self.histograms = {name: Histogram(bounds or lengths) for name, (_, bounds) in _HISTOGRAMS.items()}

    # what the server tells

    def engine_ready(self, ready: Ready, config: ServeConfig) -> None:
        """Sizes what depends on the model's length; call once, before traffic."""
        self._cache_labels = _cache_labels(ready, config)
        self._size(ready.max_model_len)

    def observe_arrival(self, n: int, max_tokens: int, sequences: int) -> None:
        """A request was accepted: `sequences` of them, each with `max_tokens`."""
        self.histograms["request_params_n"].observe(n)
        self.histograms["request_params_max_tokens"].observe(max_tokens, sequences)
        self.histograms["request_max_num_generation_tokens"].observe(max_tokens, sequences)

    def observe_output(self, generation: Generation, sequence: Sequence, tokens: int, now_s: float) -> None:
        """A sequence got `tokens` new tokens, or ended."""
        if tokens:
            self.generation_tokens += tokens
            if sequence.first_token_s is None:
                sequence.first_token_s = now_s
                self.prompt_tokens += len(sequence.prompt)
                self.prompt_tokens_cached += sequence.cached_tokens or 0
                self.histograms["time_to_first_token_seconds"].observe(now_s - generation.arrival_s)
            else:
                gap_s = (now_s - sequence.last_token_s) / tokens
                self.histograms["inter_token_latency_seconds"].observe(gap_s, tokens)
            sequence.last_token_s = now_s
        if sequence.finished:
            self._observe_end(generation, sequence, now_s)

    def _observe_end(self, generation: Generation, sequence: Sequence, now_s: float) -> None:
        reason = sequence.finish_reason or "error"
        self.finished[reason if reason in self.finished else "error"] += 1
        if sequence.error is not None:
            return
        observe = self.histograms
        observe["e2e_request_latency_seconds"].observe(now_s - generation.arrival_s)
        self.histograms["request_prompt_tokens"].observe(len(sequence.prompt))
        self.histograms["request_generation_tokens"].observe(sequence.num_tokens)
        computed = len(sequence.prompt) - (sequence.cached_tokens or 0)
        self.histograms["request_prefill_kv_computed_tokens"].observe(computed)
        if sequence.num_tokens > 1 and sequence.first_token_s is not None:
            per_token_s = (now_s - sequence.first_token_s) / (sequence.num_tokens - 1)
            observe["request_time_per_output_token_seconds"].observe(per_token_s)
        timing = sequence.timing
        if timing is not None:
            observe["request_queue_time_seconds"].observe(timing.queued_ms / 1e3)
            observe["request_prefill_time_seconds"].observe(timing.prefill_ms / 1e3)
            observe["request_decode_time_seconds"].observe(timing.decode_ms / 1e3)
            inference_ms = timing.prefill_ms + timing.decode_ms
            observe["request_inference_time_seconds"].observe(inference_ms / 1e3)
            observe["request_num_preemptions"].observe(timing.preemptions)

    def count_aborted(self, sequences: int) -> None:
        """Sequences ended by their client."""
        self.finished["abort"] += sequences

    def take_stats(self, stats: Stats) -> None:
        """The engine's own figures."""
        self.stats = stats
        iteration = self.histograms["iteration_tokens_total"]
        for tokens in stats.iteration_tokens:
            iteration.observe(tokens)
        for duration_ms in stats.step_ms:
            self.step_s.observe(duration_ms / 1e3)

    def count_http(self, method: str, handler: str, status: int, duration_s: float) -> None:
        """One answered HTTP request; `handler` is the route, never a path a client made up."""
        key = (method, handler, f"{status // 100}xx")
        self.http[key] = self.http.get(key, 0) + 1
        self.http_s.setdefault((method, handler), Histogram(_HTTP_S)).observe(duration_s)

    # what a scrape reads

    def collect(self) -> Iterator[Metric]:
        yield from self._engine_families()
        for name, histogram in self.histograms.items():
            yield self._histogram(f"vllm:{name}", _HISTOGRAMS[name][0], histogram)
        yield self._histogram("camshaft:step_duration_seconds", "Duration of a step in seconds.", self.step_s)
        yield from self._split_families()
        yield from self._executor_families(self.stats.figures)
        yield from self._http_families()
        if self._cache_labels:
            family = GaugeMetricFamily(
                "vllm:cache_config_info", "KV cache configuration.", labels=list(self._cache_labels)
            )
            family.add_metric(list(self._cache_labels.values()), 1)
            yield family

    def _engine_families(self) -> Iterator[Metric]:
        stats = self.stats
        used = stats.used_blocks / stats.total_blocks if stats.total_blocks else 0.0
        gauges = {
            "vllm:num_requests_running": ("Requests in execution.", stats.running),
            "vllm:num_requests_waiting": ("Requests waiting.", stats.waiting),
            "vllm:kv_cache_usage_perc": ("KV-cache usage, 1 is 100 percent.", used),
            "camshaft:kv_waste_ratio": (
                "Share of the slots of used blocks that hold no token.",
                stats.waste,
            ),
        }
        for name, (text, value) in gauges.items():
            gauge = GaugeMetricFamily(name, text, labels=["model_name", "engine"])
            gauge.add_metric(self._labels, value)
            yield gauge
        counters = {
            "vllm:prefix_cache_queries": ("Prompt tokens looked up.", stats.prefix_queries),
            "vllm:prefix_cache_hits": ("Prompt tokens found.", stats.prefix_hits),
            "vllm:num_preemptions": ("Preemptions.", stats.preemptions),
            "vllm:prompt_tokens": ("Prefill tokens processed.", self.prompt_tokens),
            "vllm:prompt_tokens_cached": ("Prompt tokens found in the cache.", self.prompt_tokens_cached),
            "vllm:generation_tokens": ("Generation tokens processed.", self.generation_tokens),
            "camshaft:policy_faults": ("Steps a policy failed in.", stats.policy_faults),
            "camshaft:steps": ("Engine steps.", stats.step),
        }
        for name, (text, value) in counters.items():
            counter = CounterMetricFamily(name, text, labels=["model_name", "engine"])
            counter.add_metric(self._labels, value)
            yield counter

    def _histogram(self, name: str, text: str, histogram: Histogram) -> Metric:
        family = HistogramMetricFamily(name, text, labels=["model_name", "engine"])
        family.add_metric(self._labels, buckets=histogram.cumulative(), sum_value=histogram.sum)
        return family

    def _split_families(self) -> Iterator[Metric]:
        """Figures that carry one more label."""
        computed, cached = self.prompt_tokens - self.prompt_tokens_cached, self.prompt_tokens_cached
        counters = (
            ("request_success", "Finished requests by reason.", "finished_reason", self.finished),
            (
                "admission_rejections",
                "Requests refused at a full queue.",
                "reason",
                {"max_num_queued_reqs": self.admission_rejections},
            ),
            (
                "prompt_tokens_by_source",
                "Prompt tokens by where their keys and values came from.",
                "source",
                {"local_compute": computed, "local_cache_hit": cached},
            ),
            (
                "prompt_tokens_cached_by_source",
                "Prefix hits by the memory that held them.",
                "source",
                {"device": self.stats.prefix_hits},
            ),
        )
        for name, text, label, values in counters:
            yield self._split(CounterMetricFamily, f"vllm:{name}", text, label, values)
        gauges = (
            (
                "num_requests_waiting_by_reason",
                "Waiting requests by reason; no adapter or transfer ever defers one here.",
                "reason",
                {"capacity": self.stats.waiting, "deferred": 0},
            ),
            (
                "engine_sleep_state",
                "awake = 1: this engine never sleeps.",
                "sleep_state",
                {"awake": 1, "weights_offloaded": 0, "discard_all": 0},
            ),
        )
        for name, text, label, values in gauges:
            yield self._split(GaugeMetricFamily, f"vllm:{name}", text, label, values)

    def _split(self, kind: Any, name: str, text: str, label: str, values: Mapping[Any, int]) -> Metric:
        family = kind(name, text, labels=["model_name", "engine", label])
        for value, number in values.items():
            family.add_metric([*self._labels, value], number)
        return family

    def _executor_families(self, figures: Mapping[str, int]) -> Iterator[Metric]:
        """Totals that the executor counts: how its steps ran, and how often its memory ran out."""
        steps = CounterMetricFamily(
            "camshaft:executor_steps",
            "Steps by how the device ran them: replayed from a graph, or eagerly and why.",
            labels=["model_name", "engine", "path", "reason"],
        )
        for name, count in figures.items():
            kind, _, reason = name.partition(".")
            if kind in ("graph_steps", "eager_steps"):
                steps.add_metric([*self._labels, kind.removesuffix("_steps"), reason], count)
        yield steps
        exhausted = CounterMetricFamily(
            "camshaft:out_of_memory",
            "Steps that found no device memory and were made smaller.",
            labels=["model_name", "engine"],
        )
        exhausted.add_metric(self._labels, figures.get("out_of_memory", 0))
        yield exhausted

    def _http_families(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "http_requests",
            "HTTP requests by method, status and handler.",
            labels=["method", "handler", "status"],
        )
        for (method, handler, status), count in self.http.items():
            requests.add_metric([method, handler, status], count)
        yield requests
        durations = HistogramMetricFamily(
            "http_request_duration_seconds",
            "Duration of HTTP requests by method and handler, to the end of the answer.",
            labels=["method", "handler"],
        )
        for key, histogram in self.http_s.items():
            durations.add_metric(key, buckets=histogram.cumulative(), sum_value=histogram.sum)
        yield durations


def _cache_labels(ready: Ready, config: ServeConfig) -> dict[str, str]:
    """Of `vllm:cache_config_info`: what routers and dashboards read of vLLM's, and the policy."""
    tokens = ready.num_blocks * ready.block_size
    labels = {
        "block_size": ready.block_size,
        "cache_dtype": config.kv_cache_dtype,
        "enable_prefix_caching": config.enable_prefix_caching,
        "engine": 0,
        "gpu_memory_utilization": config.gpu_memory_utilization,
        "kv_cache_max_concurrency": tokens / ready.max_model_len,
        "kv_cache_size_tokens": tokens,
        "num_gpu_blocks": ready.num_blocks,
        "policy": ready.policy,
    }
    return {name: str(value) for name, value in labels.items()}


def registry_of(metrics: Metrics) -> CollectorRegistry:
    """A registry of its own, so that two servers in one process do not collide."""
    registry = CollectorRegistry()
    registry.register(metrics)
    default: Any
    for default in (ProcessCollector, PlatformCollector, GCCollector):
        default(registry=registry)
    return registry
