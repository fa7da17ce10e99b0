"""What a proposal is tried on: a configuration that can be replayed as it is and with knobs turned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from ...core.schedule.scheduler import SchedulerParams
from ...core.workload import Workload
from ...policies.registry import load_policy
from ..cost.band import error_percent
from ..cost.step import Scaled
from ..results import Targets
from ..simulate import Frontend, Prepared, Replay, Setup, replay
from .fitted_cost import FittedCost

FEWEST_OF_A_SHARE = 60  # of a load that is replayed at a low rate, which takes many steps
MOST_OF_A_SHARE = 1500
ARRIVALS_S = 60.0  # of a share: a queue that grows is then seen to


class Rig(Protocol):
    """Plays the load with some knobs changed; none is the configuration as it is."""

    confidence: Literal["simulated", "fitted"]
    assumptions: tuple[str, ...]
    workload: Workload

    @property
    def band_percent(self) -> float:
        """How far a predicted change may be off."""
        ...

    def play(self, changes: Mapping[str, Any]) -> Replay: ...

    def play_at(self, changes: Mapping[str, Any], factor: float) -> Replay: ...

    def at_rate(self, rate_per_s: float, for_s: float = ARRIVALS_S) -> Rig:
        """The same under a part of the load's requests, at another rate. Raises ConfigError for a load without one."""
        ...


@dataclass(slots=True)
class SimulatedRig:
    """Model and device are known: step times come from the cost model."""

    prepared: Prepared
    workload: Workload
    stop_after_s: float | None = None
    confidence: Literal["simulated", "fitted"] = "simulated"
    assumptions: tuple[str, ...] = ()
    _seen: dict[str, Replay] = field(default_factory=dict)

    @property
    def band_percent(self) -> float:
        return error_percent(self.prepared.hardware, self.prepared.shape)[0]

    def play(self, changes: Mapping[str, Any]) -> Replay:
        """Raises ConfigError or CapacityError where the changed configuration contradicts itself or does not fit."""
        key = repr(sorted(changes.items(), key=lambda item: item[0]))
        if key not in self._seen:
            turned = self.prepared.turned(**self._spelled(changes)) if changes else self.prepared
            self._seen[key] = turned.replay(self.workload, stop_after_s=self.stop_after_s)
        return self._seen[key]

    def play_at(self, changes: Mapping[str, Any], factor: float) -> Replay:
        """The same where every step takes `factor` times as long. Raises as `play`."""
        turned = self.prepared.turned(**self._spelled(changes)) if changes else self.prepared
        return turned.replay(self.workload, stop_after_s=self.stop_after_s, step_factor=factor)

    def at_rate(self, rate_per_s: float, for_s: float = ARRIVALS_S) -> SimulatedRig:
        """The same under a part of the load's requests, at another rate."""
        return replace(self, workload=_slower(self.workload, rate_per_s, for_s), _seen={})

    def _spelled(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Knobs as the configuration spells them: drafted tokens are a part of `speculative_config`."""
        spelled = dict(changes)
        if "num_speculative_tokens" in spelled:
            drafted = spelled.pop("num_speculative_tokens")
            told = dict(self.prepared.value("speculative_config") or {})
            spelled["speculative_config"] = {**told, "num_speculative_tokens": drafted} if drafted else {}
        return spelled


@dataclass(slots=True, kw_only=True)
class FittedRig:
    """Step times fitted from the evidence; the queue, the cache and the steps are the real scheduler's.

    kv_share: of the usable memory, what the cache has; needed to say what more memory gives.
    """

    params: SchedulerParams
    cost: FittedCost
    workload: Workload
    targets: Targets
    frontend: Frontend = field(default_factory=Frontend)
    policy: str = "continuous-chunked"
    chunk_tokens: int = 2048  # the step's budget once prompts are cut
    utilization: float = 0.9
    kv_share: float = 0.4
    assumptions: tuple[str, ...] = ()
    band_percent: float = 30.0
    confidence: Literal["simulated", "fitted"] = "fitted"
    eager_cost: FittedCost | None = None  # of steps replayed from graphs, where they are launched one by one
    _seen: dict[str, Replay] = field(default_factory=dict)

    def play(self, changes: Mapping[str, Any]) -> Replay:
        """Raises CapacityError if no request can run so."""
        key = repr(sorted(changes.items(), key=lambda item: item[0]))
        if key not in self._seen:
            self._seen[key] = replay(self._setup(changes), self.workload)
        return self._seen[key]

    def play_at(self, changes: Mapping[str, Any], factor: float) -> Replay:
        """The same where every step takes `factor` times as long. Raises as `play`."""
        setup = self._setup(changes)
        return replay(replace(setup, cost=Scaled(setup.cost, factor)), self.workload)

    def at_rate(self, rate_per_s: float, for_s: float = ARRIVALS_S) -> FittedRig:
        """The same under a part of the load's requests, at another rate."""
        return replace(self, workload=_slower(self.workload, rate_per_s, for_s), _seen={})

    def _setup(self, changes: Mapping[str, Any]) -> Setup:
        turned = self
        for knob, value in changes.items():
            if knob in _TURNS:
                turned = _TURNS[knob](turned, value)
        policy = "continuous" if turned.params.enable_chunked_prefill is False else turned.policy
        return Setup(
            params=turned.params,
            policy=load_policy(policy).build(),
            cost=turned.cost,
            vocab_size=32_000,
            frontend=turned.frontend,
            targets=self.targets,
        )


def _slower(workload: Workload, rate_per_s: float, for_s: float) -> Workload:
    """So many seconds of arrivals, and enough of them to tell a share of good ones; of a trace no more than it has."""
    wanted = min(MOST_OF_A_SHARE, max(FEWEST_OF_A_SHARE, int(for_s * rate_per_s)))
    enough = workload.trace is not None and workload.count <= wanted
    return (workload if enough else workload.first(wanted)).at_rate(rate_per_s)


Turn = Callable[[FittedRig, Any], FittedRig]


def _param(name: str) -> Turn:
    """A knob that is the scheduler's parameter of that name."""
    return lambda rig, value: replace(rig, params=replace(rig.params, **{name: value}))


def _chunks(rig: FittedRig, value: Any) -> FittedRig:
    turned = _param("enable_chunked_prefill")(rig, value)
    if not value:
        return turned
    params = replace(turned.params, max_num_batched_tokens=rig.chunk_tokens)
    return replace(turned, params=params, policy="continuous-chunked")


def _reserves(rig: FittedRig, value: Any) -> FittedRig:
    return replace(rig, params=replace(rig.params, reserve_full_prompt=bool(value)))


def _memory(rig: FittedRig, value: float) -> FittedRig:
    more = (value - rig.utilization) / (rig.utilization * rig.kv_share)
    return replace(
        rig, params=replace(rig.params, num_blocks=max(1, int(rig.params.num_blocks * (1 + more))))
    )


def _narrow_cache(rig: FittedRig, _: Any) -> FittedRig:
    return replace(rig, params=replace(rig.params, num_blocks=2 * rig.params.num_blocks))


def _eager(rig: FittedRig, value: Any) -> FittedRig:
    return rig if value or rig.eager_cost is None else replace(rig, cost=rig.eager_cost)


def _graphs(rig: FittedRig, value: Any) -> FittedRig:
    return replace(rig, cost=replace(rig.cost, graph_limit=int(value)))


def _drafts(rig: FittedRig, value: Any) -> FittedRig:
    return replace(rig, cost=replace(rig.cost, drafted=int(value or 0)))


def _servers(rig: FittedRig, value: Any) -> FittedRig:
    return replace(rig, frontend=replace(rig.frontend, processes=float(value)))


_TURNS: dict[str, Turn] = {
    **{
        name: _param(name)
        for name in (
            "max_num_seqs",
            "max_num_batched_tokens",
            "long_prefill_token_threshold",
            "enable_prefix_caching",
        )
    },
    "enable_chunked_prefill": _chunks,
    "scheduler_reserve_full_isl": _reserves,
    "gpu_memory_utilization": _memory,
    "kv_cache_dtype": _narrow_cache,
    "enforce_eager": _eager,
    "max_cudagraph_capture_size": _graphs,
    "num_speculative_tokens": _drafts,
    "api_server_count": _servers,
}
