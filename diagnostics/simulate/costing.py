"""The cost model of a resolved configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core.arithmetic.model_sheets import default_sampling, shape_named
from ...core.arithmetic.shape import ModelShape
from ...core.config import Effective
from ..cost.hardware import HardwareSheet
from ..cost.speculation import SpeculativeCost
from ..cost.step import CostSettings, StepCost
from .room import Room


def step_cost(
    values: Mapping[str, Effective],
    hardware: HardwareSheet,
    shape: ModelShape,
    largest_graph: int,
    assumptions: list[str],
    copies: int,
    room: Room,
    whole_graphs: bool = True,
) -> StepCost | SpeculativeCost:
    """The cost model of a configuration, with speculation if it has some.

    copies: those that share experts. room: how the engine draws with top-k or top-p, and the weights that stay in the
    host's memory. whole_graphs: whether those of decodes hold attention. What is assumed is added to `assumptions`.
    """
    if hardware.curves_of:
        assumptions.append(f"{hardware.name}: efficiency curves of {hardware.curves_of}, not measured on it")
    given = {name: effective.value for name, effective in values.items()}
    settings = CostSettings(
        tensor_parallel_size=given["tensor_parallel_size"],
        pipeline_parallel_size=given["pipeline_parallel_size"],
        data_parallel_size=copies,
        quantization=given["quantization"],
        dtype=given["dtype"],
        kv_cache_dtype=given["kv_cache_dtype"],
        enable_expert_parallel=bool(given["enable_expert_parallel"]),
        enforce_eager=bool(given["enforce_eager"]),
        max_graph_size=largest_graph,
        attention_in_graphs=whole_graphs,
        async_scheduling=bool(given["async_scheduling"]),
        offloaded_bytes=room.offloaded_bytes,
        sorted_sampling=room.sorts_logits
        and hardware.device_type != "cpu"
        and given["generation_config"] != "vllm"
        and default_sampling(shape.name) == "sorted",
    )
    target = StepCost(shape, hardware, settings)
    speculation = given["speculative_config"]
    if not speculation:
        return target
    return _speculative(target, dict(speculation), hardware, settings, assumptions)


def _speculative(
    target: StepCost,
    told: dict[str, Any],
    hardware: HardwareSheet,
    settings: CostSettings,
    assumptions: list[str],
) -> SpeculativeCost:
    drafted = int(told.get("num_speculative_tokens") or 3)
    accepted = told.get("acceptance")
    acceptance = DEFAULT_ACCEPTANCE if accepted is None else float(accepted)
    if accepted is None:
        assumptions.append(f"speculation: {acceptance:.0%} of drafted tokens accepted")
    method, draft = str(told.get("method") or ""), None
    if told.get("model") and method not in ("eagle", "eagle3", "mtp", "medusa"):
        draft = StepCost(shape_named(str(told["model"])), hardware, settings)
    head = 0.0 if draft is not None or method == "ngram" else HEAD_SHARE
    return SpeculativeCost(target, draft, drafted, acceptance, head)


DEFAULT_ACCEPTANCE = 0.6
HEAD_SHARE = 0.06  # of the target's step, for one token of an EAGLE or MTP head: one layer and the logits
