"""What is predicted of this engine is what it holds; what is predicted of vLLM stays as the checkpoint has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_models import DEEPSEEK_V3, GPT_OSS, write_in_mxfp4

from camshaft.core.arithmetic.memory import GIB, MemoryBudget
from camshaft.core.arithmetic.model_sheets import shape_named
from camshaft.core.arithmetic.served import served_shape
from camshaft.core.arithmetic.shape import read_shape
from camshaft.core.arithmetic.sizes import kv_bytes_per_token, weight_bytes
from camshaft.core.config import load_config, resolve
from camshaft.core.config.budget import memory_of
from camshaft.core.config.hardware import Hardware
from camshaft.core.errors import CapacityError
from camshaft.core.execute.cache import allocate_cache
from camshaft.core.execute.limits import Limits
from camshaft.core.model.fallback import FallbackModel
from camshaft.core.model.select import model_shape
from camshaft.diagnostics.cost.hardware import load_hardware
from camshaft.diagnostics.cost.step import StepCost
from camshaft.diagnostics.simulate import EngineKind, prepare

A10 = Hardware(kind="cuda", name="NVIDIA A10G", memory_bytes=24 * GIB, compute_capability=(8, 6))
CPU = Hardware(kind="cpu", name="cpu", memory_bytes=24 * GIB)


def test_the_prediction_of_latent_attention_is_what_is_allocated(make_tiny_model: Any) -> None:
    from transformers import AutoModelForCausalLM

    folder = make_tiny_model("deepseek_v3", **DEEPSEEK_V3)
    shape = served_shape(read_shape(folder))
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


def test_packed_experts_stay_so_on_a_gpu_and_are_multiplied_out_on_a_cpu(
    make_tiny_model: Any, tmp_path: Path
) -> None:
    packed, plain = tmp_path / "packed", tmp_path / "plain"
    write_in_mxfp4(make_tiny_model("gpt_oss", **GPT_OSS), packed, plain)
    for folder, on_cpu in ((packed, False), (plain, True)):
        held = sum(tensor.nbytes for tensor in load_file(folder / "model.safetensors").values())
        predicted = weight_bytes(served_shape(model_shape(packed), on_cpu=on_cpu), dtype="float32")
        assert predicted.total == pytest.approx(held, rel=0.05)  # what is missing are the experts' biases


@pytest.mark.parametrize(
    ("name", "weights_gb", "cache_bytes"),
    [  # keys and values of all heads; vLLM's 13.47 GiB and 576 elements a layer
        ("gpt-oss-20b", 13.76, 24 * 2 * 8 * 64 * 2),  # the file's own size
        ("deepseek-v2-lite", 15.71 * 2, 27 * 2 * 16 * 192 * 2),  # parameters x 2
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
    assert vllm.weights_bytes == weight_bytes(shape_named(name), packed_row_multiple=256).total
    assert vllm.bytes_per_token == kv_bytes_per_token(shape_named(name), "bfloat16")


def test_a_checkpoint_that_fits_only_packed_is_served_by_a_gpu_alone() -> None:
    def budget_on(device: Hardware) -> MemoryBudget:
        given = {"model": "gpt-oss-20b", "device": device.kind, "max_model_len": 8192, "max_num_seqs": 8}
        shape = shape_named("gpt-oss-20b")
        return memory_of(resolve(load_config(given), device, shape), device, shape)

    assert budget_on(A10).fits
    with pytest.raises(CapacityError, match=r"less weights 7\d\.\d\d"):
        budget_on(CPU).require_fit()


def test_a_step_reads_experts_as_they_are_held() -> None:
    """Of gpt-oss-20b 64 tokens visit most experts: some 10 GB packed, 36 GB multiplied out."""
    sheet, shape = load_hardware("H100"), shape_named("gpt-oss-20b")
    packed, plain = (
        StepCost(served_shape(shape, on_cpu=on_cpu), sheet).decode_step(64, 1000).experts
        for on_cpu in (False, True)
    )
    least_ms = 9.5e9 / (sheet.memory_bandwidth_gb_s * 1e6)
    assert least_ms < packed < 1.5 * least_ms < 3.5 * least_ms < plain
