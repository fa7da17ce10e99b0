"""What a proposal is tried on: a configuration that can be replayed as it is and with knobs turned."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from ...core.errors import ConfigError
from ...core.schedule.scheduler import SchedulerParams
from ...core.workload import Workload
from ...policies.registry import load_policy
from ..cost.band import MOST_PERCENT, error_percent
from ..cost.step import Scaled
from ..results import Targets
from ..simulate import Frontend, Prepared, Replay, Setup, replay
from ..simulate.steady import Play, Steady, warm_up_s
from .fitted_cost import FittedCost


@dataclass(slots=True)
class _Kept:
    """What was played once, by the knobs turned, the factor on steps and the load."""

    seen: dict[str, Replay] = field(default_factory=dict)
    steady: dict[str, Steady] = field(default_factory=dict)

    def play(self, turned: str, load: Workload, run: Play) -> Replay:
        key = f"{turned} {load.shape!r}"
        if key not in self.seen:
            self.seen[key] = run(load)
        return self.seen[key]


class Rig(ABC):
    """Plays the load with some knobs changed; none is the configuration as it is."""

    confidence: Literal["simulated", "fitted"]
    assumptions: tuple[str, ...]
    workload: Workload
    _kept: _Kept

    @property
    @abstractmethod
    def band_percent(self) -> float:
        """How far a predicted change may be off."""

    @abstractmethod
    def _player(self, changes: Mapping[str, Any], factor: float) -> tuple[Play, Targets]:
        """What replays any load with knobs changed, and the targets that it is judged by; raises as `play`."""

    def play(self, changes: Mapping[str, Any], factor: float = 1.0) -> Replay:
        """The replay where every step takes `factor` times as long.

        Raises ConfigError or CapacityError where the changed configuration contradicts itself or does not fit.
        """
        return self.steady(changes, factor).play(self.workload)

    def steady(self, changes: Mapping[str, Any], factor: float = 1.0) -> Steady:
        """The same server under the load's requests at any rate, without the start."""
        key, kept = f"{sorted(changes.items())} x{factor}", self._kept
        if key not in kept.steady:
            run, targets = self._player(changes, factor)
            kept.steady[key] = Steady(lambda load: kept.play(key, load, run), self.workload, targets)
        return kept.steady[key]


@dataclass(slots=True)
class SimulatedRig(Rig):
    """Model and device are known: step times come from the cost model."""

    prepared: Prepared
    workload: Workload
    confidence: Literal["simulated", "fitted"] = "simulated"
    assumptions: tuple[str, ...] = ()
    _kept: _Kept = field(init=False, repr=False, default_factory=_Kept)

    @property
    def band_percent(self) -> float:
        return min(MOST_PERCENT, error_percent(self.prepared.hardware, self.prepared.shape)[0])

    def _player(self, changes: Mapping[str, Any], factor: float) -> tuple[Play, Targets]:
        turned = self.prepared.turned(**self._spelled(changes)) if changes else self.prepared
        return partial(turned.settled, step_factor=factor), turned.targets

    def _spelled(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Knobs as the configuration spells them: drafted tokens are a part of `speculative_config`."""
        spelled = dict(changes)
        if "num_speculative_tokens" in spelled:
            drafted = spelled.pop("num_speculative_tokens")
            told = dict(self.prepared.value("speculative_config") or {})
            spelled["speculative_config"] = {**told, "num_speculative_tokens": drafted} if drafted else {}
        return spelled


@dataclass(slots=True, kw_only=True)
class FittedRig(Rig):
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
    fitted_percent: float = 30.0  # how far fitted step times may be off
    confidence: Literal["simulated", "fitted"] = "fitted"
    eager_cost: FittedCost | None = None  # of steps replayed from graphs, where they are launched one by one
    _kept: _Kept = field(init=False, repr=False, default_factory=_Kept)

    @property
    def band_percent(self) -> float:
        return self.fitted_percent

    def _player(self, changes: Mapping[str, Any], factor: float) -> tuple[Play, Targets]:
        return partial(self._replay, changes, factor), self.targets

    def _replay(self, changes: Mapping[str, Any], factor: float, load: Workload) -> Replay:
        setup = self._setup(changes)
        cost = setup.cost if factor == 1.0 else Scaled(setup.cost, factor)
        return replay(replace(setup, cost=cost, warm_up_s=warm_up_s(load)), load).without_start()

    def _setup(self, changes: Mapping[str, Any]) -> Setup:
        turned = self
        for knob, value in changes.items():
            if knob not in _TURNS:
                raise ConfigError(f"{knob}: what it changes is not known from the evidence")
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
