"""A limit is a bound: no replay goes beyond it, whatever the sheet, the model and the load."""

from __future__ import annotations

from typing import Any

import pytest

from camshaft.core.arithmetic.model_sheets import shape_named
from camshaft.core.config import load_config
from camshaft.core.workload import load_workload
from camshaft.diagnostics.cost.hardware import load_hardware
from camshaft.diagnostics.diagnose.limits import hardware_limits
from camshaft.diagnostics.simulate import EngineKind, Prepared, prepare

VLLM = EngineKind("vllm", "0.18.0")


def _prepared(model: str, gpu: str, engine: EngineKind = VLLM, **knobs: Any) -> Prepared:
    config = {"model": model, "max_model_len": 16384, **knobs}
    loaded = load_config(config, purpose="inspect")
    return prepare(loaded, load_hardware(gpu), shape_named(model), engine=engine)


def _load(clients: int, requests: int, inputs: Any, outputs: Any, **more: Any):
    arrival = {"kind": "closed", "concurrency": clients, "requests": requests}
    return load_workload({"arrival": arrival, "input_tokens": inputs, "output_tokens": outputs, **more})


def _share_of_ceiling(prepared: Prepared, load: Any) -> float:
    """What a replay gives, as a share of the limit."""
    limits = {limit.name: limit.value for limit in hardware_limits(prepared, load)}
    done = prepared.replay(load).result
    return done.throughput_output_tokens_per_s / limits["output_ceiling_tokens_per_s"]


MIXED = ({"uniform": [200, 2000]}, {"uniform": [50, 350]})


@pytest.mark.parametrize(
    ("model", "gpu", "knobs", "load"),
    [
        ("qwen3-30b-a3b", "h200", {}, _load(512, 1024, *MIXED)),
        ("deepseek-ai/DeepSeek-V3", "h200", {"tensor_parallel_size": 8}, _load(256, 512, *MIXED)),
        ("llama-3.1-8b", "a100", {}, _load(256, 768, 100, 300)),
        ("llama-3.1-8b", "l4", {"max_model_len": 4096}, _load(48, 200, *MIXED)),
        ("llama-3.1-8b", "h100", {"max_num_seqs": 16}, _load(32, 200, 4000, 20)),
        ("gpt-oss-20b", "h100", {}, _load(128, 400, *MIXED)),
        ("llama-3.1-8b", "h100", {"enable_chunked_prefill": False}, _load(64, 256, *MIXED)),
        (
            "llama-3.1-70b-FP8",
            "h200",
            {"speculative_config": {"method": "eagle", "num_speculative_tokens": 3, "acceptance": 0.7}},
            _load(16, 64, 500, 200),
        ),
        (
            "llama-3.1-8b",
            "h100",
            {},
            _load(128, 512, 2000, 100, shared_prefix_tokens=1500, shared_prefix_groups=4),
        ),
    ],
)
def test_no_replay_gives_more_tokens_than_the_limit(
    model: str, gpu: str, knobs: dict[str, Any], load: Any
) -> None:
    assert _share_of_ceiling(_prepared(model, gpu, **knobs), load) <= 1.0


def test_the_limit_is_no_idle_boast() -> None:
    """With every slot taken all the time a replay comes near it."""
    near = _share_of_ceiling(_prepared("llama-3.1-8b", "h100", max_num_seqs=64), _load(128, 640, 200, 200))
    assert near > 0.8


def test_copies_that_share_experts_have_one_limit_together() -> None:
    copies = {"data_parallel_size": 8, "enable_expert_parallel": True}
    found = _prepared("deepseek-ai/DeepSeek-V3", "h200", **copies)
    assert 0.3 < _share_of_ceiling(found, _load(512, 1024, *MIXED)) <= 1.0


def test_the_first_tokens_floor_is_of_prompts_that_a_target_must_hold_for() -> None:
    prepared, lengths = _prepared("llama-3.1-8b", "h100"), {"uniform": [100, 8000]}
    floors = {
        name: next(limit for limit in hardware_limits(prepared, load) if limit.name == "ttft_floor_ms")
        for name, load in (
            ("mean", _load(4, 400, 4050, 20)),
            ("spread", _load(4, 400, lengths, 20)),
            ("shared", _load(4, 400, {"uniform": [7000, 8000]}, 20, shared_prefix_tokens=6900)),
        )
    }
    assert floors["spread"].value > 1.5 * floors["mean"].value
    assert floors["shared"].value < 0.5 * floors["spread"].value
    assert "behind 6," in floors["shared"].why
