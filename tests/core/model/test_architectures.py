"""Decoders of transformers, one by one: served, as the check at load finds, or refused for a reason that is named."""

import contextlib
import re
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from camshaft.core.arithmetic.served import served_shape
from camshaft.core.arithmetic.shape import read_shape
from camshaft.core.arithmetic.sizes import kv_bytes_per_token, weight_bytes
from camshaft.core.errors import ModelError
from camshaft.core.model.decoder import Decoder
from camshaft.core.model.fallback import FallbackModel
from camshaft.core.model.select import model_shape, open_model

CPU = torch.device("cpu")
SLIDING = {
    "sliding_window": 12,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
EXPERTS = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_k": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
}
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 16,
}
# What the tiny models of the tests share, for a decoder inside a model of several kinds of input.
TEXT = {
    "vocab_size": 384,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "initializer_range": 0.15,
}

# Beside those whose tokens are compared in test_fallback.py.
SERVED: dict[str, dict[str, Any]] = {
    "apertus": {},
    "arcee": {},
    "biogpt": {},
    "codegen": {"rotary_dim": 8},
    "cohere2": SLIDING,
    "deepseek_v2": {**LATENT, **EXPERTS, "topk_method": "greedy"},
    "ernie4_5": {},
    "ernie4_5_moe": EXPERTS,
    "exaone": {},  # a LlamaForCausalLM with other names
    "exaone4": SLIDING,
    "gemma": {"head_dim": 16},
    "gemma3": {
        "text_config": {**TEXT, **SLIDING, "head_dim": 16},
        "vision_config": VISION,
        "mm_tokens_per_image": 4,
    },
    "glm": {"head_dim": 16},
    "glm4": {"head_dim": 16},
    "glm4_moe": {**EXPERTS, "head_dim": 16},
    "glm4_moe_lite": {**LATENT, **EXPERTS},
    "gptj": {"rotary_dim": 8},
    "granitemoehybrid": {"layer_types": ["attention"] * 3, "num_local_experts": 0},
    "helium": {"head_dim": 16},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16, "num_experts": 4, "moe_topk": 2},
    "minicpm3": LATENT,
    "minimax_m2": {**EXPERTS, "head_dim": 16, "rotary_dim": 8},
    "ministral3": {"head_dim": 16},
    "nemotron": {"head_dim": 16},
    "olmo": {},
    "olmo3": SLIDING,
    "olmo2": {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
    "olmoe": EXPERTS,
    "persimmon": {},
    "phi3": {"sliding_window": 12},
    "phimoe": EXPERTS,
    "qwen2_moe": {**EXPERTS, "shared_expert_intermediate_size": 32},
    "seed_oss": {"head_dim": 16},
    "smollm3": {},
    "stablelm": {},
}
UNGROUPED = {"biogpt", "persimmon"}  # they have no key num_key_value_heads, which the tiny models share
HYBRID = "layers of kinds .*; the paged cache holds keys and values of attention, full_attention, sliding_attention alone"
CHANGED = "cannot run over the paged cache: its logits would be off"
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "bert": ({}, "attention that is not causal"),
    "bloom": ({}, "no layer calls its attention through transformers' interface"),
    "diffllama": ({}, "attends more than once in a layer"),
    "falcon": ({}, "no layer calls its attention through transformers' interface"),
    "falcon_mamba": ({}, HYBRID),
    "gemma4_text": (
        {**SLIDING, "head_dim": 16, "global_head_dim": 32, "hidden_size_per_layer_input": 0},
        "its layers differ in heads and their size",
    ),
    "jamba": ({}, HYBRID),
    "lfm2": ({"layer_types": ["conv", "full_attention", "conv"]}, HYBRID),
    "llama4_text": ({"layer_types": ["chunked_attention", "full_attention", "chunked_attention"]}, HYBRID),
    "mamba2": ({"num_heads": 8, "head_dim": 16}, HYBRID),
    "mpt": ({}, "no layer calls its attention through transformers' interface"),
    "qwen3_next": ({}, HYBRID),
    "recurrent_gemma": ({}, HYBRID),
}


@pytest.mark.parametrize("kind", SERVED)
def test_is_served_through_the_fallback(make_tiny_model: Any, kind: str) -> None:
    folder = make_tiny_model(kind, **SERVED[kind])
    shape = model_shape(folder)
    assert isinstance(open_model(folder, shape, CPU, torch.float32), FallbackModel)
    if kind in UNGROUPED:
        return
    with contextlib.suppress(ModelError):  # keys that transformers alone reads
        predicted = served_shape(read_shape(folder))
        assert kv_bytes_per_token(predicted, "bfloat16") == kv_bytes_per_token(shape, "bfloat16")
        assert weight_bytes(predicted) == weight_bytes(shape)


@pytest.mark.parametrize("kind", REFUSED)
def test_is_refused_for_a_reason_that_is_named(tmp_path: Any, capfd: Any, kind: str) -> None:
    """By its configuration alone, before any weight is read, and without a word besides."""
    config, reason = REFUSED[kind]
    sizes = {**TEXT, "max_position_embeddings": 256, **config}
    AutoConfig.for_model(kind, **sizes).save_pretrained(tmp_path)
    capfd.readouterr()
    with pytest.raises(ModelError, match=reason):
        model_shape(tmp_path)
    assert capfd.readouterr() == ("", "")


def test_what_only_weights_tell_is_refused_when_they_load(make_tiny_model: Any) -> None:
    """BART's decoder counts positions itself."""
    folder = make_tiny_model(
        "bart", d_model=64, decoder_layers=2, decoder_attention_heads=4, scale_embedding=True
    )
    with pytest.raises(ModelError, match=re.escape(CHANGED)):
        open_model(folder, model_shape(folder), CPU, torch.float32)


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "rope_theta": 1e4,
         "original_max_position_embeddings": 128},
        {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    ],
)  # fmt: skip
def test_what_the_own_definitions_cannot_rotate_goes_through_the_fallback(
    make_tiny_model: Any, scaling: dict[str, Any]
) -> None:
    folder = make_tiny_model("llama", rope_parameters=scaling)
    shape = model_shape(folder)
    assert isinstance(open_model(folder, shape, CPU, torch.float32), FallbackModel)
    assert shape.longest_context == (128 if "short_factor" in scaling else 2048)


def test_angles_that_change_with_length_are_served_before_they_do(make_tiny_model: Any) -> None:
    """By the own definitions and by transformers' alike."""
    scaling = {
        "rope_type": "dynamic",
        "factor": 2.0,
        "rope_theta": 1e4,
        "original_max_position_embeddings": 512,
    }
    lengths = {
        kind: model_shape(make_tiny_model(kind, rope_parameters=dict(scaling))).longest_context
        for kind in ("llama", "olmo2")
    }
    assert lengths == {"llama": 512, "olmo2": 512}


def test_own_definitions_are_not_the_fallback(make_tiny_model: Any) -> None:
    folder = make_tiny_model("llama")
    assert isinstance(open_model(folder, model_shape(folder), CPU, torch.float32), Decoder)
