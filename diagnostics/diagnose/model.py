"""What a diagnosis says: the verdict, the two results it stands on, and everything a reader may check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ..results import Result
from ..simulate import Replay

Bottleneck = Literal[
    "kv_capacity",
    "kv_does_not_fit",
    "weights_do_not_fit",
    "refused",
    "preemption",
    "admission_cap",
    "token_budget",
    "prefill_interference",
    "repeated_prefill",
    "weight_bandwidth",
    "kv_bandwidth",
    "compute",
    "communication",
    "kernel_launch",
    "host",
    "speculation",
    "context_length",
    "offered_load",
    "none",
]
Default = Literal["paged_kv", "continuous_batching", "chunked_prefill", "none"]
# What a replayed turn is to whoever asks; only the first is a remedy.
Worth = Literal[
    "gains", "gains a little", "gains one thing for another", "gains, and the load stays above capacity",
    "gains, and the load is above capacity then", "gains, and as many requests miss the targets", "gains, and the target stays out of reach",
    "nothing to gain", "loses",
]  # fmt: skip
Confidence = Literal["measured", "simulated", "fitted", "thin"]

# Which of the three defaults of a serving engine stands behind a bottleneck; every other one has none.
DEFAULT_AT_FAULT: Mapping[str, Default] = {
    "kv_capacity": "paged_kv",
    "kv_does_not_fit": "paged_kv",
    "preemption": "paged_kv",
    "admission_cap": "continuous_batching",
    "token_budget": "chunked_prefill",
    "prefill_interference": "chunked_prefill",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A knob that might be at fault and where to turn it. Nothing is claimed until it is replayed."""

    bottleneck: Bottleneck
    knob: str
    before: Any
    after: Any
    why: str
    advice: str = ""  # what else helps, and what it costs
    from_evidence: bool = False  # observed figures show this mechanism at work
    changes: Mapping[str, Any] = field(default_factory=dict)  # what is turned, where it is more than the knob
    was: Mapping[str, Any] = field(default_factory=dict)  # what is turned beside the knob, before
    lossy: bool = False  # the answers may change: a narrower cache, for instance

    @property
    def turned(self) -> dict[str, Any]:
        """The knobs to turn and their values."""
        return dict(self.changes) or {self.knob: self.after}

    @property
    def beside(self) -> dict[str, tuple[Any, Any]]:
        """What is turned beside the knob: values before, as far as they are known, and after."""
        own = self.knob.split(" and ")
        return {name: (self.was.get(name), value) for name, value in self.changes.items() if name not in own}

    @property
    def text(self) -> str:
        """`tensor_parallel_size 4 -> 2, data_parallel_size 1 -> 2 (2 copies on the same devices)`."""
        own = f"{self.knob} {value_text(self.before)} -> {value_text(self.after)}"
        return ", ".join([own, *beside_texts(self.beside)])

    @property
    def set_text(self) -> str:
        """`tensor_parallel_size 2 and data_parallel_size 2`."""
        return " and ".join(f"{name} {value_text(value)}" for name, value in self.turned.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One predicted figure before and after, with the range the prediction is good for."""

    before: float
    after: float
    low: float
    high: float
    before_range: tuple[float, float] | None = (
        None  # of `before`, where it was replayed at the ends of the error
    )

    def to_dict(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "from": round(self.before, 4),
            "to": round(self.after, 4),
            "range": [round(self.low, 4), round(self.high, 4)],
        }
        if self.before_range is not None:
            told["from_range"] = [round(end, 4) for end in self.before_range]
        return told


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A proposal with both replays. `gain` is in natural-log units over the objective; above 0 is better."""

    proposal: Proposal
    before: Result
    after: Result
    gain: float
    predicted: Mapping[str, Change]
    telling: str | None = None  # the predicted figure that counts most in the gain
    worth: Worth = "nothing to gain"
    replay: Replay | None = None

    @property
    def times_done(self) -> float:
        """How many times the throughput."""
        return self.after.throughput_output_tokens_per_s / max(
            self.before.throughput_output_tokens_per_s, 1e-9
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The one thing to do, or why there is nothing."""

    bottleneck: Bottleneck
    why: str
    confidence: Confidence
    knob: str | None = None  # None: no knob is to be turned
    before: Any = None
    after: Any = None
    beside: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)  # other knobs to turn: before, after
    predicted: Mapping[str, Change] = field(default_factory=dict)
    advice: str = ""
    telling: str | None = None  # the predicted figure that counts most
    at_the_ends: str = ""  # what becomes of it where all steps are faster or slower by the declared error
    within_error: bool = False  # it holds at one end of the error and not at the other
    unexplained: str = ""  # what is seen and no replay of the load gives
    missed: bool = False  # the targets are, and no knob mends it

    @property
    def turned(self) -> dict[str, Any]:
        """The knobs to turn and their values."""
        own = {} if self.knob is None else {self.knob: self.after}
        return {**own, **{name: value for name, (_, value) in self.beside.items()}}

    @property
    def direction(self) -> str | None:
        """raise, lower, on, off or set; None without a knob."""
        if self.knob is None:
            return None
        if isinstance(self.after, bool):
            return "on" if self.after else "off"
        numbers = isinstance(self.before, int | float) and isinstance(self.after, int | float)
        if not numbers or (self.knob == "long_prefill_token_threshold" and not self.before):
            return "off" if self.after is None else "set"
        return "raise" if self.after > self.before else "lower"

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "bottleneck": self.bottleneck,
            "default_at_fault": DEFAULT_AT_FAULT.get(self.bottleneck, "none"),
            "knob": self.knob,
            "from": self.before,
            "to": self.after,
            "direction": self.direction,
            "changes": self.turned,
            "why": self.why,
            "confidence": self.confidence,
            "predicted": {name: change.to_dict() for name, change in self.predicted.items()},
            "missed": self.missed,
            "within_error": self.within_error,
            "at_the_ends": self.at_the_ends,
            "unexplained": self.unexplained,
        }


@dataclass(frozen=True, slots=True)
class Limit:
    """A floor or ceiling that no knob moves, or what the steps spend their time on."""

    name: str
    value: float
    unit: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything a diagnosis found. `before` and `after` are the replays behind the verdict, for plots."""

    title: str
    verdict: Verdict
    alternatives: tuple[Proof, ...] = ()
    limits: tuple[Limit, ...] = ()
    memory: Mapping[str, Any] = field(default_factory=dict)
    evidence: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()
    by_hand: bool = False  # the configuration sets the verdict's knob
    assumptions: tuple[str, ...] = ()
    flags: tuple[Mapping[str, Any], ...] = ()
    about: Mapping[str, str] = field(default_factory=dict)  # model, device, engine, load
    slo: Mapping[str, Any] = field(
        default_factory=dict
    )  # the targets and whether the load as it is keeps them
    servers: Mapping[str, Any] = field(default_factory=dict)  # how many of them the rate needs, if not one
    as_it_is: Mapping[str, Change] = field(default_factory=dict)  # the replay's own figures; none is turned
    steps: Confidence = "simulated"  # where the replays' step times are from
    error_percent: float = 0.0  # by which all steps of the ranges are shorter and longer; 0: not replayed so
    before: Replay | None = None
    after: Replay | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "verdict": self.verdict.to_dict(),
            "alternatives": [_alternative(proof) for proof in self.alternatives],
            "limits": [asdict(limit) for limit in self.limits],
            "memory": dict(self.memory),
            "evidence": [*self.evidence, *(f"contradiction: {text}" for text in self.contradictions)],
            "assumptions": list(self.assumptions),
            "flags": [dict(flag) for flag in self.flags],
            "about": dict(self.about),
            "slo": dict(self.slo),
            "servers": dict(self.servers),
            "as_it_is": {name: _as_it_is(change) for name, change in self.as_it_is.items()},
        }


def _as_it_is(change: Change) -> dict[str, Any]:
    told = {"value": round(change.before, 4)}
    return told if change.before_range is None else {**told, "range": change.to_dict()["from_range"]}


def _alternative(proof: Proof) -> dict[str, Any]:
    told = proof.proposal
    return {
        "bottleneck": told.bottleneck,
        "knob": told.knob,
        "from": told.before,
        "to": told.after,
        "changes": told.turned,
        "gain": round(proof.gain, 4),
        "worth": proof.worth,
        "why": told.why,
        "predicted": {name: change.to_dict() for name, change in proof.predicted.items()},
    }


def value_text(value: Any) -> str:
    """A knob's value as a reader sees it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return "unset" if value is None else str(value)


def beside_texts(beside: Mapping[str, tuple[Any, Any]]) -> list[str]:
    """What is turned beside a knob, each as `data_parallel_size 1 -> 2 (2 copies on the same devices)`."""
    texts = []
    for name, (before, after) in beside.items():
        told = f"{value_text(before)} -> " if before is not None else ""
        copies = f" ({after} copies on the same devices)" if name == "data_parallel_size" else ""
        texts.append(f"{name} {told}{value_text(after)}{copies}")
    return texts
