"""Counts of parameters, weight bytes and cache bytes against published figures."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parameters import parameters

from camshaft.core.arithmetic.products import dense_gemms, expert_gemms
from camshaft.core.arithmetic.quantization import quantization_named, stored_quantization
from camshaft.core.arithmetic.shape import LARGEST, read_shape, shape_from_config
from camshaft.core.arithmetic.sizes import (
    kv_bytes_per_token,
    kv_bytes_per_token_per_layer,
    resolve_kv_dtype,
    weight_bytes,
)
from camshaft.core.errors import ModelError
from camshaft.core.model.layers import window_of
from camshaft.core.model.registry import obstacle

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
LLAMA_70B = LLAMA_8B | {
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "intermediate_size": 28672,
}
QWEN3_30B_A3B = LLAMA_8B | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151936,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
DEEPSEEK_V3 = LLAMA_8B | {
    "architectures": ["DeepseekV3ForCausalLM"],
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "vocab_size": 129280,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}


@pytest.mark.parametrize(
    ("config", "total", "active"),
    [
        (LLAMA_8B, 8_030_261_248, 8_030_261_248),
        (LLAMA_70B, 70_553_706_496, 70_553_706_496),
        (QWEN3_30B_A3B, 30.53e9, 3.35e9),
        (DEEPSEEK_V3, 671e9, 37.5e9),
    ],
)
def test_parameters_match_published_counts(config: dict, total: float, active: float) -> None:
    assert parameters(shape_from_config(config)) == (
        pytest.approx(total, rel=0.005),
        pytest.approx(active, rel=0.02),
    )


def test_70b_in_fp8_takes_72_65_gb() -> None:
    shape = shape_from_config(LLAMA_70B)
    assert weight_bytes(shape, quantization=quantization_named("fp8")).total == pytest.approx(
        72.65e9, rel=1e-3
    )


def test_kv_of_8192_tokens_of_70b_is_2_5_gib() -> None:
    shape = shape_from_config(LLAMA_70B)
    assert kv_bytes_per_token(shape, "bfloat16") * 8192 == 2_684_354_560
    assert kv_bytes_per_token(shape, "fp8") * 8192 == 1_342_177_280


def test_kv_heads_are_copied_when_devices_outnumber_them() -> None:
    shape = shape_from_config(LLAMA_8B)
    assert kv_bytes_per_token(shape, "bfloat16", 8) == kv_bytes_per_token(shape, "bfloat16", 16)


@pytest.mark.parametrize(
    "text", ["null", "[1]", '"x"', '{"text_config": null}', '{"text_config": [1]}', "{}", "{"]
)
def test_a_file_that_holds_no_model_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError):
        read_shape(tmp_path)


def test_a_folder_without_a_model_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no such file; a model folder needs a config\.json"):
        read_shape(tmp_path)


def test_latent_attention_caches_576_elements_a_layer() -> None:
    assert kv_bytes_per_token_per_layer(shape_from_config(DEEPSEEK_V3), "bfloat16") == 576 * 2


def test_tensor_parallel_devices_share_every_product() -> None:
    shape = shape_from_config(QWEN3_30B_A3B)
    whole = sum(g.elements for g in dense_gemms(shape) if g.name != "router")
    assert sum(g.elements for g in dense_gemms(shape, 4) if g.name != "router") * 4 == whole
    assert sum(g.elements for g in expert_gemms(shape, 4)) * 4 == sum(g.elements for g in expert_gemms(shape))


def test_flops_follow_active_parameters() -> None:
    shape = shape_from_config(LLAMA_8B)
    assert sum(g.elements for g in dense_gemms(shape)) == 8_030_261_248 - 2 * 128256 * 4096 - 65 * 4096


@pytest.mark.parametrize(
    ("changes", "normed"),
    [
        ({}, False),
        ({"architectures": ["Qwen3ForCausalLM"]}, True),
        ({"architectures": ["Gemma3ForCausalLM"]}, True),
        ({"architectures": ["Glm4MoeForCausalLM"], "use_qk_norm": True}, True),
        ({"architectures": ["Glm4MoeForCausalLM"], "use_qk_norm": False}, False),
    ],
)
def test_queries_and_keys_are_normed_by_architecture_or_by_key(changes: dict, normed: bool) -> None:
    assert shape_from_config(LLAMA_8B | changes).qk_norm == normed


def test_sliding_layers_by_type_list_and_by_pattern() -> None:
    windowed = LLAMA_8B | {"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 16}
    assert shape_from_config(windowed).num_sliding_layers == 16
    gemma = LLAMA_8B | {"sliding_window": 1024, "sliding_window_pattern": 6, "num_hidden_layers": 62}
    assert shape_from_config(gemma).num_sliding_layers == 52
    unused = LLAMA_8B | {"sliding_window": 4096, "use_sliding_window": False}
    assert shape_from_config(unused).num_sliding_layers == 0


@pytest.mark.parametrize(
    ("stored", "bits", "activations"),
    [
        ({"quant_method": "fp8"}, 8, "fp8"),
        ({"quant_method": "awq", "bits": 4}, 4.15625, "bfloat16"),
        ({"quant_method": "gptq", "bits": 8}, 8.125, "bfloat16"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {
                        "weights": {"num_bits": 8, "type": "int"},
                        "input_activations": {"num_bits": 8},
                    }
                },
            },
            8,
            "int8",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}},
            },
            8,
            "fp8",
        ),
    ],
)
def test_quantisation_is_read_from_the_checkpoint(stored: dict, bits: float, activations: str) -> None:
    scheme = stored_quantization({"quantization_config": stored})
    assert (scheme.bits, scheme.activations) == (bits, activations)


def test_unknown_quantisation_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match="vector99"):
        stored_quantization({"quantization_config": {"quant_method": "vector99"}})


def test_auto_cache_dtype_follows_the_configured_dtype() -> None:
    shape = shape_from_config(LLAMA_8B)
    assert resolve_kv_dtype(shape, "auto") == "bfloat16"
    assert resolve_kv_dtype(shape, "auto", "float32") == "float32"
    assert resolve_kv_dtype(shape, "fp8", "float32") == "fp8"


@pytest.mark.parametrize("key", ["hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size"])
@pytest.mark.parametrize("value", [0, -4, False, True])
def test_a_size_below_one_is_refused_by_name(key: str, value: object) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "intermediate_size": 128,
        "vocab_size": 100,
    }
    with pytest.raises(ModelError, match=key):
        shape_from_config({**config, key: value})


def test_a_tied_head_is_read_once_and_an_untied_embedding_not_at_all() -> None:
    tied, untied = shape_from_config(LLAMA_8B | {"tie_word_embeddings": True}), shape_from_config(LLAMA_8B)
    weights = weight_bytes(tied)
    assert weights.read_by_one_token(tied) == weights.total
    weights = weight_bytes(untied)
    assert weights.embedding > 1e9
    assert weights.read_by_one_token(untied) == weights.total - weights.embedding


def test_a_token_reads_its_own_experts() -> None:
    shape = shape_from_config(QWEN3_30B_A3B)
    weights = weight_bytes(shape)
    read = weights.read_by_one_token(shape)
    assert read == weights.total - weights.embedding - weights.experts * 120 // 128


@pytest.mark.parametrize(
    ("stored", "bits"),
    [
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"num_bits": 4, "type": "int"}}},
            },
            4.15625,
        ),
        ({"quant_method": "fp8"}, 8),
        ({}, 8),
    ],
)
def test_a_method_that_only_names_a_file_format_takes_the_checkpoint_s_scheme(
    stored: dict, bits: float
) -> None:
    """`--quantization compressed-tensors` says nothing about bits; an undescribed checkpoint is taken as FP8."""
    assert stored_quantization({"quantization_config": stored}, "compressed-tensors").bits == bits


def test_a_mistyped_quantisation_is_answered_with_the_nearest() -> None:
    with pytest.raises(ModelError, match="did you mean compressed-tensors"):
        quantization_named("compressed-tensor")


KEYS = [
    *QWEN3_30B_A3B, "architectures", "model_type", "rope_parameters", "rope_scaling", "rope_theta", "sliding_window",
    "use_sliding_window", "max_window_layers", "layer_types", "sliding_window_pattern", "kv_lora_rank",
    "qk_rope_head_dim", "n_shared_experts", "first_k_dense_replace", "quantization_config", "text_config",
    "partial_rotary_factor", "attention_bias", "original_max_position_embeddings", "eos_token_id",
]  # fmt: skip
NUMBERS = st.sampled_from([-5, -1, 0, 0.5, 1, 2.5, 64, 1e12, 10**20, 1e308, float("inf"), float("nan")])
SCALING = st.fixed_dictionaries(
    {"rope_type": st.sampled_from(["yarn", "longrope", "dynamic", "linear", "x", 5])},
    optional={key: NUMBERS | st.text(max_size=3) for key in ("factor", "original_max_position_embeddings")},
)
STORED = st.fixed_dictionaries(
    {"quant_method": st.sampled_from(["fp8", "compressed-tensors", "mxfp4", 5])},
    optional={"config_groups": st.just([1]) | st.just({"g": {"weights": 5}}), "bits": st.text(max_size=2)},
)
VALUES = (
    st.none()
    | st.booleans()
    | NUMBERS
    | st.text(max_size=5)
    | st.lists(NUMBERS, max_size=2)
    | SCALING
    | STORED
)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"rope_scaling": {"rope_type": "dynamic", "original_max_position_embeddings": -5}}, "rope scaling"),
        (
            {"rope_scaling": {"rope_type": "dynamic", "original_max_position_embeddings": 0.5}},
            "longest_context",
        ),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 1e11}}, "longest_context"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": float("nan")}}, "rope scaling"),
        ({"rope_theta": -1.0}, "rope_theta"),
        ({"rope_theta": float("nan")}, "rope_theta"),
        ({"sliding_window": 8, "sliding_window_pattern": -2}, "sliding_window_pattern"),
        ({"architectures": "LlamaForCausalLM"}, "architectures"),
    ],
)
def test_a_value_that_no_model_has_is_refused_by_name(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ModelError, match=told):
        shape_from_config(LLAMA_8B | changes)


@pytest.mark.parametrize("full", [None, 0, 5, 40])
def test_layers_that_slide_are_those_the_decoder_gives_a_window(full: int | None) -> None:
    shape = shape_from_config(LLAMA_8B | {"sliding_window": 64, "max_window_layers": full})
    assert shape.num_sliding_layers == sum(window_of(shape, layer) is not None for layer in range(32))


@settings(max_examples=300, derandomize=True, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=3))
def test_any_config_json_has_a_shape_or_is_refused(values: dict[str, Any]) -> None:
    with contextlib.suppress(ModelError):  # and no other error
        shape = shape_from_config(QWEN3_30B_A3B | values)
        assert 0 < shape.longest_context <= LARGEST
        assert 0 < shape.rope_theta < float("inf")
        assert 0 <= shape.num_sliding_layers <= shape.num_layers
        assert weight_bytes(shape).total > 0
        assert kv_bytes_per_token(shape, "bfloat16") >= 0
        assert obstacle(shape) is None or isinstance(obstacle(shape), str)
