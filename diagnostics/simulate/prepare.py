"""From a configuration, a model sheet and a hardware sheet to a simulation that can be run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from ...core.arithmetic.memory import (
    GIB,
    MemoryBudget,
    MemorySettings,
    request_kv_bytes,
)
from ...core.arithmetic.model_sheets import shape_named
from ...core.arithmetic.served import served_shape
from ...core.arithmetic.shape import ModelShape
from ...core.config import (
    Effective,
    LoadedConfig,
    ServeConfig,
    load_config,
    memory_settings,
    policy_file,
    resolve,
    with_policy,
)
from ...core.config.hardware import Hardware
from ...core.engine import scheduler_params
from ...core.errors import CapacityError, ConfigError
from ...core.execute.base import Capacity
from ...core.schedule.scheduler import SchedulerParams
from ...core.workload import Workload
from ..cost.band import error_percent
from ..cost.hardware import HardwareSheet
from ..cost.speculation import SpeculativeCost
from ..cost.step import Scaled, StepCost
from ..results import Result, Targets
from .clients import Frontend
from .costing import step_cost
from .engines import EngineKind, watermark
from .modelled import unmodelled
from .replay import Replay, Setup, replay
from .room import room_of, within_error
from .settled import (
    attention_in_graphs,
    captured,
    require_release,
    say_assumed_scheme,
    sharing_copies,
    with_vllm_defaults,
)
from .steady import warm_up_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A configuration as it would run on a device, ready to be replayed, and changed a knob at a time."""

    loaded: LoadedConfig  # as written
    engine: EngineKind
    hardware: HardwareSheet
    shape: ModelShape
    values: Mapping[str, Effective]  # every knob's effective value and where it came from
    foreign: Mapping[str, Any]  # knobs of the other engine that this one's schema lacks
    settings: MemorySettings
    budget: MemoryBudget
    cost: StepCost | SpeculativeCost
    params: SchedulerParams
    targets: Targets
    assumptions: tuple[str, ...]
    unseen_bytes: int = 0  # what the arithmetic of memory leaves out, by what the cache was seen to hold
    flashinfer: bool = False  # its sampler draws, in a release that uses it where it is installed

    def value(self, name: str) -> Any:
        """A knob's effective value; knobs of the other engine included."""
        return self.values[name].value if name in self.values else self.foreign.get(name)

    @property
    def devices(self) -> int:
        """How many of the device it takes."""
        return device_count({name: effective.value for name, effective in self.values.items()})

    @property
    def title(self) -> str:
        """`meta-llama/Llama-3.1-70B on 2 x H100 SXM, vllm 0.18.0`."""
        return f"{self.shape.name} on {several(self.devices, self.hardware.name)}, {self.engine.describe()}"

    def fastest_token_ms(self, context_tokens: float) -> float:
        """The time per token of one sequence that has the engine to itself: no load makes it less."""
        none = np.empty(0, dtype=np.int64)
        return self.cost.step(np.full(1, context_tokens), none, none, 1).total

    def turned(self, **changes: Any) -> Prepared:
        """The same with knobs changed. Raises ConfigError if the values contradict each other."""
        written = {
            name: entry.value for name, entry in {**self.loaded.entries, **self.loaded.foreign}.items()
        }
        loaded = load_config({**written, **changes}, purpose="inspect")
        return self._again(loaded)

    def under(self, policy: str) -> Prepared:
        """The same under another policy, whose own knobs win over what was written. Raises ConfigError."""
        loaded = with_policy(self.loaded, policy)
        return self._again(loaded)

    def _again(self, loaded: LoadedConfig, unseen_bytes: int = 0) -> Prepared:
        """Another configuration in the same place; `unseen_bytes` more are left out of its arithmetic."""
        return prepare(
            loaded,
            self.hardware,
            self.shape,
            engine=self.engine,
            targets=self.targets,
            unseen_bytes=self.unseen_bytes + unseen_bytes,
            flashinfer=self.flashinfer,
        )

    def holding(self, kv_tokens: int) -> Prepared:
        """The same where the cache was measured to hold so many tokens; turned knobs keep the difference."""
        if self.budget.kv_given or kv_tokens == self.budget.kv_tokens:
            return self
        missing = int(self.budget.kv_bytes + self.budget.unclaimed_bytes - self._measured_bytes(kv_tokens))
        found = self._again(self.loaded, missing)
        note = (
            f"the KV cache holds {kv_tokens:,} tokens, as measured; the arithmetic alone gives "
            f"{self.budget.kv_tokens:,}, and the difference of {abs(missing) / GIB:.2f} GiB is kept where knobs are turned"
        )
        return replace(found, assumptions=(*found.assumptions, note))

    def started(self) -> Prepared:
        """The same with the least cache that a start needs, for a server that was seen to run and does not fit on paper."""
        budget = self.budget
        note = (
            f"{budget.arithmetic()}, {budget.missing_bytes / GIB:.2f} GiB too little for one request of max_model_len "
            f"{budget.max_model_len:,}, and the server was seen to run: its cache is taken to hold just that one. Its "
            "start-up log says how many tokens it holds"
        )
        found = self._again(
            self.loaded, -int(budget.missing_bytes) - budget.block_size * budget.bytes_per_token
        )
        return replace(found, assumptions=(*found.assumptions, note))

    def _measured_bytes(self, kv_tokens: int) -> float:
        """The cache behind a number of tokens, as the engine counts them.

        vLLM tells tokens of all layers, and from 0.21.0 on so many requests of max_model_len as fit times that length
        (v1/core/kv_cache_utils.py), which differs where layers with a window keep less of a long request.
        """
        windowed = self.shape.num_sliding_layers and self.engine.name == "vllm"
        if windowed and self.engine.release >= (0, 21):
            return kv_tokens / self.settings.max_model_len * self.budget.one_request_bytes
        return kv_tokens * self.budget.bytes_per_token

    def replay(self, workload: Workload, *, warm_up_s: float = 0.0, step_factor: float = 1.0) -> Replay:
        """Plays a workload, every step `step_factor` times as long as predicted; what arrives in `warm_up_s` is not counted.

        Raises CapacityError with the arithmetic if the configuration cannot start, ConfigError if its parts cannot.
        """
        self._require_whole_heads()
        self._require_fit()
        copies = int(self.value("data_parallel_size") or 1)
        setup = replace(self.setup(workload, copies), warm_up_s=warm_up_s)
        if step_factor != 1.0:
            setup = replace(setup, cost=Scaled(setup.cost, step_factor))
        done = replay(setup, _share(workload, copies))
        if copies == 1:
            return done
        later = None if done.later is None else _times(done.later, copies)
        return replace(done, result=_times(done.result, copies), later=later, copies=copies)

    def settled(self, workload: Workload, step_factor: float = 1.0) -> Replay:
        """As `replay`, without the start: of a load that arrives at a rate, and of clients that all start at once."""
        return self.replay(workload, warm_up_s=warm_up_s(workload), step_factor=step_factor).without_start()

    def _require_fit(self) -> None:
        try:
            self.budget.require_fit()
        except CapacityError as error:
            doubt = within_error(self.budget)
            raise CapacityError(f"{error} But {doubt}." if doubt else str(error)) from error

    def _require_whole_heads(self) -> None:
        """vLLM refuses a model whose attention heads do not divide by the devices that share a layer."""
        parts = int(self.value("tensor_parallel_size") or 1)
        if self.shape.num_heads % parts:
            raise ConfigError(
                f"tensor_parallel_size: {self.shape.num_heads} attention heads do not divide by {parts}"
            )

    def setup(self, workload: Workload, copies: int = 1) -> Setup:
        """The simulation's inputs for one workload."""
        summary = workload.summary()
        longest = summary.input_tokens_max + summary.output_tokens_max
        typical = int(summary.input_tokens_mean + summary.output_tokens_mean / 2)
        params = replace(
            self.params,
            max_model_len=min(self.params.max_model_len, longest + 1),
            num_blocks=self._blocks(typical),
        )
        host = self.hardware.host
        frontend = Frontend(
            latency_s=host.request_latency_us / 1e6,
            request_s=host.frontend_request_us / 1e6,
            token_s=host.frontend_token_us / 1e6 / max(1, int(self.value("stream_interval") or 1)),
            processes=max(1, int(self.value("api_server_count") or 1)) / copies,
        )
        band = self.hardware.error_band
        tpot_percent, ttft_percent = error_percent(self.hardware, self.shape)
        # A CPU's sheet is measured with this engine, a GPU's with vLLM.
        its_own = self.engine.name == "vllm" or self.hardware.device_type == "cpu"
        return Setup(
            params=params,
            policy=policy_file(self.loaded.config).build(),
            cost=self.cost,
            vocab_size=self.shape.vocab_size,
            frontend=frontend,
            targets=self.targets,
            jitter=self.hardware.jitter,
            error_band={
                "tpot_percent": tpot_percent,
                "ttft_percent": ttft_percent,
                "source": band.source if its_own else f"{band.source}{_NOT_ITS_OWN}",
                "curves_of": self.hardware.curves_of,
            },
        )

    def _blocks(self, typical_tokens: int) -> int:
        """Blocks for requests of that length: a window-aware engine fits more than the plain division."""
        rule = self.engine.memory_rule(self.hardware)
        if not (rule.window_aware and self.shape.num_sliding_layers and typical_tokens):
            return self.params.num_blocks
        plain = typical_tokens * self.budget.bytes_per_token
        real = request_kv_bytes(self.shape, self.settings, rule, typical_tokens)
        return max(1, int(self.params.num_blocks * plain / real))


def several(devices: int, name: str) -> str:
    """`2 x H100 SXM`; the name alone for one."""
    return f"{devices} x {name}" if devices > 1 else name


def device_count(values: Mapping[str, Any]) -> int:
    """The devices of all parallel copies and parts together."""
    sizes = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    return math.prod(int(values.get(name) or 1) for name in sizes)


_NOT_ITS_OWN = "; of vLLM: this engine was not measured there"

_RATES = (
    "throughput_output_tokens_per_s",
    "throughput_total_tokens_per_s",
    "throughput_requests_per_s",
    "goodput_requests_per_s",
    "goodput_output_tokens_per_s",
)


def _times(result: Result, copies: int) -> Result:
    """A result of one copy with the rates of so many."""
    return replace(result, **{name: getattr(result, name) * copies for name in _RATES})


def prepare(
    loaded: LoadedConfig,
    hardware: HardwareSheet,
    shape: ModelShape | None = None,
    *,
    engine: EngineKind | None = None,
    targets: Targets | None = None,
    unseen_bytes: int = 0,
    flashinfer: bool = False,
) -> Prepared:
    """Settles every knob for an engine on a device and budgets its memory; nothing is refused for size here.

    unseen_bytes: what the arithmetic of memory is known to leave out, on each device; below 0 it counts too much.
    flashinfer: its sampler is known to be installed, where the release uses it if so.

    Raises ConfigError for contradictions, ModelError for a model without sheet or folder.
    """
    engine, targets = engine or EngineKind(), targets or Targets()
    shape = shape or shape_named(loaded.config.model)
    if engine.name == "camshaft":
        shape = served_shape(shape, on_cpu=hardware.device_type == "cpu")
    entries = {**loaded.entries, **loaded.foreign}
    assumptions = list(
        unmodelled(name for name, entry in entries.items() if entry.value not in (None, False))
    )
    written = loaded  # a default may depend on a knob that is turned later
    if engine.name == "vllm":
        loaded = with_vllm_defaults(loaded, engine, hardware, shape)
    device = _machine(hardware)
    resolved = resolve(loaded, device, shape)
    foreign = {name: entry.value for name, entry in loaded.foreign.items()}
    batches = captured(resolved.values, foreign, engine)
    say_assumed_scheme(resolved.config.quantization, shape, assumptions)
    copies = sharing_copies(resolved.values, engine, shape, assumptions)
    settings = replace(
        _memory_settings(resolved.config, shape, device.kind, engine, unseen_bytes),
        num_graph_sizes=len(batches),
        data_parallel_size=copies,
    )
    offload = foreign.get("cpu_offload_gb") if engine.name == "vllm" else None
    room = room_of(shape, hardware, settings, engine, offload, flashinfer, assumptions)
    budget = room.budget
    require_release(engine)
    whole = attention_in_graphs(foreign, engine)
    largest = max(batches, default=0)
    cost = step_cost(resolved.values, hardware, shape, largest, assumptions, copies, room, whole)
    return Prepared(
        loaded=written,
        engine=engine,
        hardware=hardware,
        shape=shape,
        values=resolved.values,
        foreign=foreign,
        settings=settings,
        budget=budget,
        cost=cost,
        params=_scheduler_params(resolved.config, engine, shape, settings, budget),
        targets=targets,
        assumptions=tuple(assumptions),
        unseen_bytes=unseen_bytes,
        flashinfer=room.flashinfer,
    )


def _machine(hardware: HardwareSheet) -> Hardware:
    return Hardware(
        kind="cpu" if hardware.device_type == "cpu" else "cuda",
        name=hardware.name,
        memory_bytes=hardware.memory_bytes,
    )


def _memory_settings(
    config: ServeConfig,
    shape: ModelShape,
    kind: Literal["cpu", "cuda"],
    engine: EngineKind,
    unseen_bytes: int,
) -> MemorySettings:
    """What decides memory; the rows' tables, which the settings count, are this engine's alone."""
    settings = memory_settings(config, shape, kind)
    return replace(
        settings,
        enable_expert_parallel=bool(config.enable_expert_parallel),
        other_bytes=unseen_bytes + (0 if engine.name == "vllm" else settings.other_bytes),
    )


def _scheduler_params(
    config: ServeConfig, engine: EngineKind, shape: ModelShape, settings: MemorySettings, budget: MemoryBudget
) -> SchedulerParams:
    """The scheduler's limits on a device that holds what the budget says."""
    capacity = Capacity(
        max(1, budget.num_blocks),
        settings.block_size,
        budget.max_model_len,
        settings.max_num_seqs,
        shape.vocab_size,
    )
    params, margin = scheduler_params(config, capacity), watermark(engine)
    return params if margin is None else replace(params, watermark=margin)


def _share(workload: Workload, copies: int) -> Workload:
    """One copy's part of a load that is spread evenly over several."""
    if copies <= 1:
        return workload
    arrival = workload.shape.arrival
    sessions = arrival.kind == "sessions"
    fewer = workload.first(max(1, (arrival.sessions if sessions else workload.count) // copies))
    if workload.concurrency is not None:
        return fewer.at_concurrency(max(1, workload.concurrency // copies))
    rate = arrival.rate if sessions else workload.summary().rate
    return fewer.at_rate(rate / copies) if rate else fewer
