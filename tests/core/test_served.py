"""What is predicted of this engine is what it holds; what is predicted of vLLM stays as the checkpoint has it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from tiny_models import DEEPSEEK_V3

from camshaft.core.config import load_config, require_machine, resolve
from camshaft.core.config.budget import memory_of
from camshaft.core.config.hardware import Hardware
from camshaft.core.errors import CapacityError
from camshaft.core.execute.cache import allocate_cache
from camshaft.core.execute.limits import Limits
from camshaft.core.memory import GIB
from camshaft.core.model.fallback import FallbackModel
from camshaft.core.model.select import model_shape
from camshaft.core.model_sheets import shape_named
from camshaft.core.served import served_shape
from camshaft.core.shape import shape_from_config
from camshaft.core.sizes import kv_bytes_per_token, weight_bytes
from camshaft.diagnostics.cost.hardware import load_hardware
from camshaft.diagnostics.simulate import EngineKind, prepare

A10 = Hardware(kind="cuda", name="NVIDIA A10G", memory_bytes=24 * GIB, compute_capability=(8, 6))
KINDS: dict[str, dict[str, Any]] = {
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16},
    "deepseek_v3": DEEPSEEK_V3,
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_prediction_is_what_is_allocated(make_tiny_model: Any, kind: str) -> None:
    from transformers import AutoModelForCausalLM

    folder = make_tiny_model(kind, **KINDS[kind])
    stored = {"quantization_config": {"quant_method": "mxfp4"}} if kind == "gpt_oss" else {}
    config = json.loads((folder / "config.json").read_text()) | stored
    shape = served_shape(shape_from_config(config))
    for stays in (served_shape(shape), model_shape(folder)):
        assert kv_bytes_per_token(stays, "float32") == kv_bytes_per_token(shape, "float32")
        assert weight_bytes(stays) == weight_bytes(shape)
    model = FallbackModel(folder, torch.device("cpu"), torch.float32)
    limits = Limits(num_blocks=3, block_size=4, max_num_seqs=1, max_model_len=8, max_num_batched_tokens=8)
    cache = allocate_cache(model, limits)
    held = sum(layer.nbytes for layer in (*cache.k, *cache.v))
    assert held == 12 * kv_bytes_per_token(shape, "float32")
    parameters = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).num_parameters()
    assert weight_bytes(shape, dtype="float32").total == pytest.approx(4 * parameters, rel=0.02)


@pytest.mark.parametrize(
    ("name", "weights_gb", "cache_bytes"),
    [  # parameters x 2, and keys and values of all heads; vLLM's 13.47 GiB and 576 elements a layer
        ("gpt-oss-20b", 20.91 * 2, 24 * 2 * 8 * 64 * 2),
        ("deepseek-v2-lite", 15.71 * 2, 27 * 2 * 16 * 192 * 2),
    ],
)
def test_every_prediction_of_this_engine_is_one_and_vllm_s_another(
    name: str, weights_gb: float, cache_bytes: int
) -> None:
    loaded, sheet = load_config({"model": name}, purpose="inspect"), load_hardware("H100")
    machine = Hardware(kind="cuda", name=sheet.name, memory_bytes=sheet.memory_bytes)
    resolved = resolve(loaded, machine, shape_named(name))
    own = prepare(loaded, sheet, engine=EngineKind("camshaft"))
    for budget in (own.budget, memory_of(resolved, machine, shape_named(name))):
        assert budget.weights_bytes == pytest.approx(weights_gb * 1e9, rel=0.01)
        assert budget.bytes_per_token == cache_bytes
    vllm = prepare(loaded, sheet, engine=EngineKind("vllm", "0.18.0")).budget
    assert (vllm.weights_bytes, vllm.bytes_per_token) != (own.budget.weights_bytes, cache_bytes)
    assert vllm.weights_bytes == weight_bytes(shape_named(name)).total
    assert vllm.bytes_per_token == kv_bytes_per_token(shape_named(name), "bfloat16")


def test_a_checkpoint_that_fits_only_packed_is_refused() -> None:
    loaded = load_config({"model": "gpt-oss-20b", "max_model_len": 8192, "max_num_seqs": 8})
    with pytest.raises(CapacityError, match=r"NVIDIA A10G"):
        require_machine(resolve(loaded, A10, shape_named("gpt-oss-20b")))
