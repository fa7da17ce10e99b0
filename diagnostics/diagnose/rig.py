"""What a proposal is tried on: a configuration that can be replayed as it is and with knobs turned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Protocol

from ...core.schedule.scheduler import SchedulerParams
from ...core.workload import Workload
from ...policies.registry import load_policy
from ..cost.speculation import SpeculativeCost
from ..cost.step import StepCost, StepTime
from ..results import Targets
from ..simulate import Frontend, Prepared, Replay, Setup, replay
from .fitted_cost import FittedCost


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


@dataclass(frozen=True, slots=True)
class Scaled:
    """A cost model all of whose steps take `factor` times as long."""

    cost: StepCost | SpeculativeCost | FittedCost
    factor: float

    def step(self, *arguments: Any) -> StepTime:
        """As `StepCost.step`."""
        told = self.cost.step(*arguments)
        return StepTime(**{part.name: getattr(told, part.name) * self.factor for part in fields(told)})


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
        band = self.prepared.hardware.error_band
        return band.moe_tpot_percent if self.prepared.shape.num_experts else band.tpot_percent

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
        scaled = replace(turned, cost=Scaled(turned.cost, factor))  # type: ignore[arg-type]  # has `step`
        return scaled.replay(self.workload, stop_after_s=self.stop_after_s)

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
        scaled = Scaled(setup.cost, factor)
        return replay(replace(setup, cost=scaled), self.workload)  # type: ignore[arg-type]  # it has `step`

    def _setup(self, changes: Mapping[str, Any]) -> Setup:
        params, cost, frontend, policy = self.params, self.cost, self.frontend, self.policy
        for knob, value in changes.items():
            if knob in _LIMITS:
                params = replace(params, **{knob: value})
                if knob == "enable_chunked_prefill" and value:
                    policy = "continuous-chunked"
                    params = replace(params, max_num_batched_tokens=self.chunk_tokens)
            elif knob == "scheduler_reserve_full_isl":
                params = replace(params, reserve_full_prompt=bool(value))
            elif knob == "gpu_memory_utilization":
                more = (value - self.utilization) / (self.utilization * self.kv_share)
                params = replace(params, num_blocks=max(1, int(params.num_blocks * (1 + more))))
            elif knob == "kv_cache_dtype":
                params = replace(params, num_blocks=2 * params.num_blocks)
            elif knob == "enforce_eager" and not value and self.eager_cost is not None:
                cost = self.eager_cost
            elif knob == "max_cudagraph_capture_size":
                cost = replace(cost, graph_limit=int(value))
            elif knob == "num_speculative_tokens":
                cost = replace(cost, drafted=int(value or 0))
            elif knob == "api_server_count":
                frontend = replace(frontend, processes=float(value))
        if params.enable_chunked_prefill is False:
            policy = "continuous"
        return Setup(
            params=params,
            policy=load_policy(policy).build(),
            cost=cost,  # type: ignore[arg-type]  # it has the `step` that a replay calls
            vocab_size=32_000,
            frontend=frontend,
            targets=self.targets,
        )


_LIMITS = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "long_prefill_token_threshold",
    "enable_prefix_caching",
    "enable_chunked_prefill",
)
