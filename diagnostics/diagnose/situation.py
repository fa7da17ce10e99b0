"""What the evidence amounts to: one flat view that the rules, the fit and the report read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from ...core.workload import Workload
from ..evidence import Evidence, Figure
from ..results import Targets
from .dialect import sglang_defaults
from .subject import Subject

# What vLLM's server uses on a device that nobody named (arg_utils.py of 0.10.0 to 0.33.0: the smaller class).
UNTOLD = {
    "max_num_seqs": 256,
    "max_num_batched_tokens": 2048,
    "enable_chunked_prefill": True,
    "enable_prefix_caching": True,
    "long_prefill_token_threshold": 0,
    "block_size": 16,
    "kv_cache_dtype": "auto",
    "enforce_eager": False,
    "api_server_count": 1,
    "data_parallel_size": 1,
    "tensor_parallel_size": 1,
}

ASSUMED_OUTPUT = 200  # tokens of an answer, where nobody says how many
LEAST_REUSE = 0.02  # of the prompts' tokens, below which a prefix cache spares nothing worth replaying


@dataclass(frozen=True)
class Situation:
    """A subject and what was seen of it. Figures are None where nothing tells them."""

    subject: Subject
    evidence: Evidence
    targets: Targets
    effective: Mapping[str, Any]  # knobs with defaults filled in, as far as they can be known
    workload: Workload | None = None  # what is replayed, where it was given
    cache_tokens: int | None = None  # that the KV cache holds by arithmetic, where it is known

    def value(self, knob: str) -> Any:
        """A knob's effective value."""
        if knob in self.effective:
            return self.effective[knob]
        untold = {**UNTOLD, **sglang_defaults()} if self.subject.sglang else UNTOLD
        return self.subject.given.get(knob, untold.get(knob))

    @property
    def utilization(self) -> float:
        """Share of the device's memory that the engine takes, by its release where nobody says it."""
        usual = self.subject.engine.memory_rule(self.subject.hardware).default_utilization
        return float(self.value("gpu_memory_utilization") or usual)

    def given(self, knob: str) -> bool:
        return knob in self.subject.given

    def figure(self, name: str, *statistics: str) -> float | None:
        """The first of the statistics that is known, or the best figure of the name."""
        for statistic in statistics:
            found = self.evidence.find(name, statistic)
            if found is not None and found.value is not None:
                return found.value
        return self.evidence.value(name)

    @cached_property
    def running(self) -> float | None:
        told = self.figure("running")
        if told is None and self.evidence.sweep:
            told = self.evidence.sweep[-1].get("running")
        return told

    @cached_property
    def waiting(self) -> float | None:
        told = self.figure("waiting")
        if told is None and self.evidence.sweep:
            told = max(row.get("waiting", 0.0) for row in self.evidence.sweep)
        return told

    @cached_property
    def kv_usage(self) -> float | None:
        """The fullest the cache was seen."""
        seen = [f.value for f in self.evidence.figures if f.name == "kv_usage" and f.value is not None]
        seen += [row["kv_usage"] for row in self.evidence.sweep if "kv_usage" in row]
        return max(seen, default=None)

    @cached_property
    def kv_full(self) -> bool:
        if self.kv_usage is not None:
            return self.kv_usage >= 0.9
        return self.evidence.trend("kv_usage") == "high"

    @cached_property
    def late_first_token(self) -> bool:
        """Whether first tokens are said to come late, or requests are seen to wait."""
        late = (self.figure("ttft_ms", "p50", "mean") or 0) > 2000
        return late or (self.waiting or 0) >= 1 or self.evidence.trend("ttft_ms") in ("rising", "high")

    @cached_property
    def preemptions(self) -> float:
        seen = [f.value for f in self.evidence.figures if f.name == "preemptions" and f.value is not None]
        event = self.evidence.event("preempted")
        swapped = [f.value for f in self.evidence.figures if f.name == "swapped" and f.value]
        return max([*seen, *swapped, event.numbers.get("total", 1.0) if event else 0.0], default=0.0)

    @cached_property
    def preempting(self) -> bool:
        return self.preemptions > 0 or self.evidence.trend("preemptions") in ("rising", "high")

    @cached_property
    def no_preemption_told(self) -> bool:
        """Whether a source says that nothing was preempted."""
        figure = self.evidence.find("preemptions")
        return figure is not None and figure.value == 0 and not self.preempting

    @cached_property
    def concurrency(self) -> int | None:
        """Requests in the system at once: as told, or running and waiting together."""
        told = self.evidence.hint("concurrency") or self.figure("concurrency")
        seen = (self.running or 0) + (self.waiting or 0)
        rows = [int(row["concurrency"]) for row in self.evidence.sweep if "concurrency" in row]
        return int(max([told or 0, seen, *rows])) or None

    @cached_property
    def rate_per_s(self) -> float | None:
        """Requests a second that arrive: as told, or as the given load has them; None for a closed loop."""
        told = self.evidence.hint("request_rate_per_s") or self.figure("request_per_s")
        given = self.workload
        if told or given is None or given.concurrency or given.shape.arrival.kind == "sessions":
            return told
        return given.summary().rate

    @cached_property
    def given_up(self) -> str:
        """That clients abort requests, and how many; empty where hardly any do."""
        aborted, done = self.figure("aborted_per_s") or 0.0, self.figure("completed_per_s") or 0.0
        if aborted <= 0.05 * (aborted + done):
            return ""
        return (
            f"Clients give up {aborted:.2g} requests a second, {aborted / (aborted + done):.0%} of those that end: they wait "
            "longer than the clients' timeout. What is then sent again is load that only the waiting makes: longer timeouts, "
            "fewer retries, or a limit on the queue that refuses at once end it"
        )

    @cached_property
    def shares_prefix(self) -> bool | None:
        return self.evidence.hint("shared_prefix")

    @cached_property
    def random_prompts(self) -> bool:
        """Whether the load is known to share no prefixes."""
        return self.shares_prefix is False or self.evidence.hint("dataset") == "random"

    @cached_property
    def reused_share(self) -> float | None:
        """Of the prompts' tokens, those that a prefix cache was seen to spare; None where none was, or where evicted
        sequences that are computed again count as hits, too.
        """
        hits = self.figure("prefix_hit_rate")
        if not hits or hits < LEAST_REUSE or self.random_prompts or self.preempting:
            return None
        return hits if self.value("enable_prefix_caching") is not False else None

    @cached_property
    def input_tokens(self) -> int | None:
        told = self.evidence.hint("input_tokens") or self.figure("input_tokens", "mean")
        return int(told) if told else None

    @cached_property
    def output_tokens(self) -> int | None:
        told = self.evidence.hint("output_tokens") or self.figure("output_tokens", "mean")
        return int(told) if told else None

    @cached_property
    def prompt_share(self) -> float | None:
        """Prompt tokens for each output token, from the rates of a busy server; None where one was not seen."""
        prompts, outputs = (
            self.figure("prompt_tokens_per_s", "mean"),
            self.figure("output_tokens_per_s", "mean"),
        )
        if not prompts or not outputs or preemption_marks(self):  # there prompts are counted again and again
            return None
        return min(50.0, max(0.05, prompts / outputs))

    @cached_property
    def held_tokens(self) -> float | None:
        """Tokens that a running request holds on average, where the cache's size is known."""
        capacity, usage = self._told_kv_tokens or self.cache_tokens, self.figure("kv_usage", "mean")
        if not capacity or not usage or not self.running or usage < 0.02:
            return None
        return capacity * usage / self.running

    @cached_property
    def words(self) -> str:
        """Everything said in sentences about the load, lower case."""
        return " ".join(hints.text for hints in self.evidence.load).lower()

    def qualified(self, name: str) -> list[Figure]:
        """The figures of a name that belong to a circumstance, largest first."""
        found = [f for f in self.evidence.figures if f.name == name and f.qualifier and f.value]
        return sorted(found, key=lambda f: f.value or 0.0, reverse=True)

    @cached_property
    def stalled_ttft(self) -> tuple[Figure, Figure] | None:
        """A first token that is ten times later in one circumstance than in another: (late, early)."""
        ttft = self.qualified("ttft_ms")
        if len(ttft) >= 2 and (ttft[0].value or 0) > 10 * (ttft[-1].value or 0):
            return ttft[0], ttft[-1]
        return None

    @cached_property
    def behind_a_queue(self) -> str:
        """That some wait behind many others, which their order decides and no size; empty where it is not so."""
        if self.stalled_ttft is None or (self.waiting or 0) < max(1, self.value("max_num_seqs") // 2):
            return ""
        late, early = self.stalled_ttft
        way = "--enable-priority-scheduling" if self.subject.sglang else "--scheduling-policy priority"
        way = "policy: fair" if self.subject.engine.name == "camshaft" else way
        return (
            f"{self.waiting:,.0f} wait in one queue, and a first token that takes {(early.value or 0) / 1e3:g} s "
            f"({early.qualifier}) takes {(late.value or 0) / 1e3:g} s behind them: no size of anything changes who goes "
            f"first. {way} does, and so does a server of their own"
        )

    @cached_property
    def spiky_gaps(self) -> tuple[float, float] | None:
        """The p99 between tokens and the usual gap in ms, where the one is five times the other."""
        gap = self.figure("itl_ms", "p99", "max") if self._has("itl_ms", "p99", "max") else None
        usual = self.figure("itl_ms", "p50", "mean") if self._has("itl_ms", "p50", "mean") else None
        usual = usual or self.figure("tpot_ms", "p50", "mean")
        if gap and usual and gap >= 5 * usual:
            return gap, usual
        return self._stalled_decodes()

    def _stalled_decodes(self) -> tuple[float, float] | None:
        """The same from a stream's speed beside somebody's prompt and without."""
        pace = {f.qualifier: 1e3 / f.value for f in self.qualified("request_output_tokens_per_s") if f.value}
        pace |= {
            f.qualifier: f.value for name in ("tpot_ms", "itl_ms") for f in self.qualified(name) if f.value
        }
        beside = [
            ms for circumstance, ms in pace.items() if "prefill" in circumstance or "prompt" in circumstance
        ]
        if not beside or len(pace) < 2:
            return None
        gap, usual = max(beside), min(pace.values())
        return (gap, usual) if gap >= 5 * usual else None

    def _has(self, name: str, *statistics: str) -> bool:
        return any(self.evidence.find(name, statistic) is not None for statistic in statistics)

    @cached_property
    def speculation(self) -> dict[str, Any] | None:
        """The speculative configuration, if there is one."""
        told = self.value("speculative_config")
        if isinstance(told, Mapping):
            return dict(told)
        drafted = self.value("num_speculative_tokens")
        return {"num_speculative_tokens": int(drafted)} if drafted else None

    @cached_property
    def graph_limit(self) -> int | None:
        """The largest batch replayed from a captured graph, where it is told or seen; 0 in eager mode."""
        if self.value("enforce_eager"):
            return 0
        sizes = self.value("cudagraph_capture_sizes")
        told = self.value("max_cudagraph_capture_size")
        if sizes or told:
            slots, step = int(self.value("max_num_seqs")), self.value("max_num_batched_tokens")
            return max(self.subject.engine.captures(slots, step, sizes, told), default=0)
        graphed = [
            s.values["running"] for s in self.evidence.samples if s.get("graphs") == 1 and s.get("running")
        ]
        return int(max(graphed)) if graphed and self.missed_graphs else None

    @cached_property
    def missed_graphs(self) -> bool:
        """Whether steps are seen to run without a graph though there are graphs."""
        if self.evidence.event("no_graph") is not None:
            return True
        limit = self.value("max_cudagraph_capture_size") or self.value("cudagraph_capture_sizes")
        return bool(limit and self.graph_limit and (self.running or self.concurrency or 0) > self.graph_limit)

    @cached_property
    def acceptance(self) -> float | None:
        """Accepted tokens over drafted ones."""
        told = self.figure("acceptance_rate")
        drafted, accepted = self.figure("drafted_tokens"), self.figure("accepted_tokens")
        if told is None and drafted and accepted is not None:
            return accepted / drafted
        return told

    @cached_property
    def calm_row(self) -> dict[str, float] | None:
        """Of the load levels seen, the one that fills the cache most without exhausting it."""
        rows = [r for r in self.evidence.sweep if r.get("running") and 0.05 < r.get("kv_usage", 0.0) < 0.97]
        return max(rows, key=lambda row: row["kv_usage"], default=None)

    @cached_property
    def fits_sequences(self) -> int | None:
        """Full sequences that the cache holds, from what was seen."""
        if self.calm_row is not None:
            return max(1, int(self.calm_row["running"] / self.calm_row["kv_usage"] + 1e-6))
        tokens = self.kv_tokens
        if tokens and self.input_tokens:
            return max(1, int(tokens / (self.input_tokens + (self.output_tokens or ASSUMED_OUTPUT))))
        usage = self.figure("kv_usage")
        if usage and 0.05 < usage < 0.97 and self.running:
            return max(1, int(self.running / usage))
        return None

    @cached_property
    def kv_tokens(self) -> float | None:
        """Tokens the cache holds: as told, or from how full the running requests make it."""
        if self._told_kv_tokens:
            return self._told_kv_tokens
        if not self.input_tokens:
            return None
        held = self.input_tokens + (self.output_tokens or 0) / 2
        if self.calm_row is not None:
            return self.calm_row["running"] * held / self.calm_row["kv_usage"]
        usage = self.figure("kv_usage")
        if usage and self.running:
            return min(self.running * held / usage, self._thrashing_tokens(held))
        return None

    @cached_property
    def _told_kv_tokens(self) -> float | None:
        return measured_kv_tokens(self.evidence)

    def _thrashing_tokens(self, held: float) -> float:
        """Where sequences are evicted, as many as were seen running do not fit, and one fewer does."""
        if not self.preempting:
            return float("inf")
        most = max((f.value for f in self.evidence.figures if f.name == "running" and f.value), default=0.0)
        return (most - 0.5) * held if most >= 2 else float("inf")

    @cached_property
    def complaint(self) -> bool:
        """Whether anything seen is wrong by itself: a queue, a full cache, preemption, a word such as rising."""
        return bool(self.late_first_token or self.kv_full or self.preempting)


def measured_kv_tokens(evidence: Evidence) -> float | None:
    """Tokens that the cache holds, where a log, a page or a person says so; None where nobody does."""
    told = evidence.value("kv_tokens") or evidence.setting("kv_tokens")
    if told:
        return float(told)
    blocks = evidence.setting("num_gpu_blocks") or evidence.value("kv_blocks")
    return float(blocks * (evidence.setting("block_size") or 16)) if blocks else None


def preemption_marks(s: Situation) -> str:
    """What shows that sequences are evicted and computed again; empty where nothing does."""
    if s.preempting:
        count = f"{s.preemptions:g} preemptions" if s.preemptions else "preemptions rise"
        return f"{count} at {s.kv_usage:.1%} of the KV cache" if s.kv_usage is not None else count
    hits = s.evidence.value("prefix_hit_rate")
    if hits and hits > 0.05 and s.random_prompts and (s.waiting or 0) > 0:
        return (
            f"a prefix cache hit rate of {hits:.1%} on prompts that share no prefix is not reuse: it counts the tokens "
            "of preempted requests that are computed again"
        )
    for before, after in pairwise(s.evidence.sweep):
        slower = after.get("tpot_ms", 0.0) / max(before.get("tpot_ms", 0.0), 1e-9)
        if before.get("tpot_ms") and slower >= 2 and after.get("kv_usage", 0.0) >= 0.95:
            return (
                f"time per output token jumps {slower:.1f}x ({before['tpot_ms']:g} to {after['tpot_ms']:g} ms) when the "
                f"KV cache fills ({before.get('kv_usage', 0):.1%} to {after['kv_usage']:.1%})"
            )
    return ""
