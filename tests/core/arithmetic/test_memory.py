"""The memory budget against real start-up logs of vLLM on one H100 (79.18 GiB, 16,000 tokens, 0.9)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from camshaft.core.arithmetic.graph_sizes import vllm_capture_sizes
from camshaft.core.arithmetic.memory import (
    GIB,
    DeviceMemory,
    Measured,
    MemoryBudget,
    MemorySettings,
    memory_budget,
)
from camshaft.core.arithmetic.memory_rules import CAMSHAFT_CPU, CAMSHAFT_CUDA, vllm_rule
from camshaft.core.arithmetic.shape import ModelShape, shape_from_config
from camshaft.core.errors import CapacityError, ConfigError

H100 = DeviceMemory(total_bytes=int(79.18 * GIB))
LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}
LLAMA_70B_FP8 = LLAMA_8B | {
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "intermediate_size": 28672,
    "quantization_config": {"quant_method": "fp8"},
}
GPT_OSS_20B = LLAMA_8B | {
    "hidden_size": 2880,
    "head_dim": 64,
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "intermediate_size": 2880,
    "vocab_size": 201088,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "quantization_config": {"quant_method": "mxfp4"},
}
SERVER = MemorySettings(
    max_num_batched_tokens=8192, max_num_seqs=1024, max_model_len=16000, gpu_memory_utilization=0.9
)


def budget(config: dict, **changes: object) -> MemoryBudget:
    return memory_budget(
        shape_from_config(config),
        H100,
        replace(SERVER, **changes),  # type: ignore[arg-type]
        vllm_rule("0.11.0"),
    )


@pytest.mark.parametrize(
    ("config", "tp", "weights_gib", "activations_gib", "kv_gib"),
    [
        (LLAMA_70B_FP8, 1, 67.72, 4.84, -1.44),
        (LLAMA_70B_FP8, 2, 33.88, 4.84, 32.0),
        (LLAMA_8B, 1, 14.99, 4.76, 51.38),
        (GPT_OSS_20B, 1, 13.47, 7.38, 50.28),
    ],
)
def test_startup_logs_are_reproduced(
    config: dict, tp: int, weights_gib: float, activations_gib: float, kv_gib: float
) -> None:
    found = budget(config, tensor_parallel_size=tp)
    assert found.weights_bytes / GIB == pytest.approx(weights_gib, rel=0.005)
    assert found.activation_bytes / GIB == pytest.approx(activations_gib, rel=0.01)
    assert found.kv_bytes / GIB == pytest.approx(kv_gib, abs=0.1)


def test_70b_on_one_h100_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(CapacityError) as caught:
        budget(LLAMA_70B_FP8).require_fit()
    text = str(caught.value)
    for part in (
        "67.67",
        "4.87",
        "-1.41 GiB",
        "max_num_seqs (the sampler sets the peak)",
        "kv_cache_dtype: fp8",
    ):
        assert part in text


def test_fewer_sequences_let_70b_start_and_the_forward_becomes_the_peak() -> None:
    found = budget(LLAMA_70B_FP8, max_num_seqs=32, kv_cache_dtype="fp8", max_model_len=8192)
    assert found.fits
    assert found.activation_bytes == found.forward_bytes > found.sampler_bytes


def test_missing_memory_and_the_utilisation_that_holds_it() -> None:
    found = memory_budget(
        shape_from_config(LLAMA_8B),
        DeviceMemory(total_bytes=24 * GIB),
        replace(SERVER, max_num_seqs=64, max_num_batched_tokens=2048, max_model_len=65536),
        vllm_rule("0.19.0"),
    )
    assert found.missing_bytes > 0
    assert not found.fits
    raised = found.utilization + found.missing_bytes / found.total_bytes
    assert raised <= found.utilization_needed() < raised + 0.01


def test_graphs_count_from_0_20_on() -> None:
    shape, sized = shape_from_config(LLAMA_8B), replace(SERVER, num_graph_sizes=51)
    old = memory_budget(shape, H100, sized, vllm_rule("0.19.1"))
    new = memory_budget(shape, H100, sized, vllm_rule("0.20.0"))
    assert old.graph_bytes == 0
    assert new.kv_bytes == old.kv_bytes - new.graph_bytes
    assert new.graph_bytes > 0.5 * GIB
    with pytest.raises(ConfigError):
        vllm_rule("newest")


def test_windowed_layers_of_a_window_aware_engine_hold_more_requests() -> None:
    aware = budget(GPT_OSS_20B, max_num_batched_tokens=2048)
    plain = memory_budget(
        shape_from_config(GPT_OSS_20B), H100, replace(SERVER, max_num_batched_tokens=2048), CAMSHAFT_CUDA
    )
    assert aware.one_request_bytes < 0.6 * plain.one_request_bytes


def test_measurement_replaces_the_estimate() -> None:
    measured = Measured(weights=10 * GIB, activations=GIB, context=0)
    found = memory_budget(shape_from_config(LLAMA_8B), H100, SERVER, vllm_rule("0.11.0"), measured)
    assert found.kv_bytes == found.usable_bytes - 11 * GIB
    assert found.measured == ("weights", "activations", "context")


def test_a_given_cache_size_wins_over_utilisation() -> None:
    found = budget(LLAMA_8B, kv_cache_memory_bytes=2 * GIB, gpu_memory_utilization=0.1)
    assert found.num_blocks == 2 * GIB // (131072 * 16)
    assert budget(LLAMA_8B, num_blocks=7).kv_tokens == 7 * 16


def test_a_given_cache_beyond_the_device_is_refused() -> None:
    with pytest.raises(
        CapacityError, match=r"are 8[0-9.]+ GiB, and 79.18 GiB are free: .* Lower kv_cache_memory_bytes,"
    ):
        budget(LLAMA_8B, kv_cache_memory_bytes=70 * GIB).require_fit()
    with pytest.raises(CapacityError, match="Raise kv_cache_memory_bytes"):
        budget(LLAMA_8B, kv_cache_memory_bytes=GIB).require_fit()
    budget(LLAMA_8B, kv_cache_memory_bytes=4 * GIB).require_fit()
    with pytest.raises(CapacityError, match=r"Raise num_gpu_blocks_override \(vllm.yaml:3\)"):
        budget(LLAMA_8B, num_blocks=999).require_fit("vllm.yaml:3")
    budget(LLAMA_8B, num_blocks=1000).require_fit()


def test_cpu_rule_never_takes_more_blocks_than_its_sequences_can_use() -> None:
    found = memory_budget(
        shape_from_config(LLAMA_8B | {"num_hidden_layers": 2}),
        DeviceMemory(total_bytes=64 * GIB),
        MemorySettings(max_num_batched_tokens=512, max_num_seqs=4, max_model_len=1000),
        CAMSHAFT_CPU,
    )
    assert found.num_blocks == 4 * 63


def on_cpu(free_gib: int = 64, **changes: object) -> MemoryBudget:
    asked = MemorySettings(max_num_batched_tokens=512, max_num_seqs=64, max_model_len=1000)
    return memory_budget(
        shape_from_config(LLAMA_8B | {"num_hidden_layers": 2}),
        DeviceMemory(total_bytes=64 * GIB, free_bytes=free_gib * GIB),
        replace(asked, **changes),  # type: ignore[arg-type]
        CAMSHAFT_CPU,
    )


def test_a_cache_on_a_cpu_is_limited_unless_one_request_or_the_configuration_asks_for_more() -> None:
    found = on_cpu(max_num_seqs=4096)
    assert found.kv_bytes == 4 * GIB
    assert found.unclaimed_bytes > 0
    sizes = dict(found.rows())
    assert sizes["left free"] == -found.unclaimed_bytes
    assert sum(list(sizes.values())[1:-1]) == sizes["KV cache"] == found.kv_bytes
    long = on_cpu(max_model_len=600_000, max_num_seqs=1)
    assert long.kv_bytes == long.one_request_bytes > 4 * GIB
    assert long.fits
    assert on_cpu(max_num_seqs=4096, kv_cache_memory_bytes=8 * GIB).kv_bytes == 8 * GIB


def test_a_given_cache_is_held_against_what_is_free_and_not_beyond_what_is_useful() -> None:
    assert on_cpu(8, max_num_seqs=9999, kv_cache_memory_bytes=9 * GIB).excess_bytes > GIB
    assert on_cpu(8, max_num_seqs=64, kv_cache_memory_bytes=9 * GIB).fits


@pytest.mark.parametrize("blocks", [1, 40, None])
def test_a_length_that_may_be_whatever_fits_is_what_the_cache_holds(blocks: int | None) -> None:
    found = on_cpu(fit_length=True, max_model_len=8192, num_blocks=blocks)
    assert found.fits
    assert found.max_model_len == (8192 if blocks is None else blocks * 16)
    assert found.one_request_bytes <= found.kv_bytes
    assert not on_cpu(1, fit_length=True, max_model_len=8192).fits


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    seqs=st.integers(1, 2048),
    tokens=st.integers(1, 32768),
    tp=st.sampled_from([1, 2, 4, 8]),
    utilization=st.floats(0.1, 1.0),
    length=st.integers(1, 131072),
)
def test_the_table_always_adds_up(seqs: int, tokens: int, tp: int, utilization: float, length: int) -> None:
    shape: ModelShape = shape_from_config(LLAMA_70B_FP8)
    asked = MemorySettings(
        max_num_batched_tokens=tokens,
        max_num_seqs=seqs,
        max_model_len=length,
        tensor_parallel_size=tp,
        gpu_memory_utilization=utilization,
        num_graph_sizes=len(vllm_capture_sizes("0.33.0", seqs)),
    )
    found = memory_budget(shape, H100, asked, vllm_rule("0.33.0"))
    sizes = [size for _, size in found.rows()]
    assert sum(sizes[1:-1]) == sizes[-1]
    assert found.kv_tokens * found.bytes_per_token <= max(0, found.kv_bytes)
    assert found.fits == (found.num_blocks > 0 and found.kv_bytes >= found.one_request_bytes)
    if found.fits:
        found.require_fit()
        assert found.sequences(length) >= int(found.max_concurrency)
