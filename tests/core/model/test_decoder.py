from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from camshaft.core.arithmetic.shape import ModelShape, read_shape, shape_from_config
from camshaft.core.errors import ModelError
from camshaft.core.model.batch import ForwardBatch, PagedCache
from camshaft.core.model.layers import window_of
from camshaft.core.model.loading import open_weights
from camshaft.core.model.registry import build, obstacle
from camshaft.core.model.rope import inverse_frequencies
from camshaft.core.model.select import model_shape, open_model

CPU = torch.device("cpu")
BLOCK = 8


def whole_prompt(tokens: torch.Tensor, wanted: torch.Tensor, padding: int = 0) -> ForwardBatch:
    """One prompt, its blocks in falling order, then so many tokens of padding."""
    count, blocks = len(tokens), -(-len(tokens) // BLOCK)
    table = torch.arange(blocks - 1, -1, -1, dtype=torch.int32)
    positions = torch.arange(count)
    slots = table[positions // BLOCK].long() * BLOCK + positions % BLOCK
    zeros = torch.zeros(padding, dtype=torch.int64)
    return ForwardBatch(
        tokens=torch.cat([tokens, zeros]),
        positions=torch.cat([positions, zeros]),
        slots=torch.cat([slots, zeros - 1]),
        query_starts=torch.tensor([0, count], dtype=torch.int32),
        context_lens=torch.tensor([count], dtype=torch.int32),
        block_tables=table[None],
        logit_indices=wanted,
        num_decodes=0,
        max_query_len=count,
        max_context_len=count,
    )


def cache_for(shape: ModelShape, count: int, dtype: torch.dtype = torch.float32) -> PagedCache:
    size = (-(-count // BLOCK), shape.num_kv_heads, BLOCK, shape.head_dim)
    made = [[torch.full(size, float("nan"), dtype=dtype) for _ in range(shape.num_layers)] for _ in "kv"]
    return PagedCache(made[0], made[1], BLOCK)


def logits_of(folder: Path, tokens: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    shape = read_shape(folder)
    model = build(shape, open_weights(folder), CPU, dtype)
    batch = whole_prompt(tokens, torch.arange(len(tokens)))
    return model.forward(batch, cache_for(shape, len(tokens), dtype)).clone()


def expected_logits(folder: Path, tokens: torch.Tensor, **options: Any) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options)
    with torch.inference_mode():
        return model(tokens[None]).logits[0]


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": False, "attention_bias": True}),
        ("llama", {"rope_parameters": LLAMA3}),
        ("llama", {"rope_parameters": YARN}),
        ("llama", {"rope_parameters": LINEAR}),
        ("llama", {"rope_parameters": DYNAMIC}),
        ("llama", {"rope_parameters": YARN, "max_position_embeddings": 64}),  # 256 with the scaling
        ("llama", {"head_dim": 24}),
        ("mistral", {}),
        ("mistral", {"sliding_window": 20}),
        ("qwen2", {}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 1}),
        ("qwen3", {}),
    ],
)
def test_logits_equal_transformers(make_tiny_model, kind: str, config: dict[str, Any]) -> None:
    folder = make_tiny_model(kind, **config)
    torch.manual_seed(1)
    tokens = torch.randint(0, 256, (150,))
    expected = expected_logits(folder, tokens)
    got = logits_of(folder, tokens)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3 * float(expected.std()))


def test_bfloat16_stays_near_float32(tiny_llama: Path) -> None:
    tokens = torch.arange(40)
    expected = logits_of(tiny_llama, tokens)
    got = logits_of(tiny_llama, tokens, torch.bfloat16)
    assert float((got - expected).abs().mean()) < 0.05 * float(expected.std())


def test_padding_changes_no_bit_and_writes_nothing(tiny_llama: Path) -> None:
    shape = read_shape(tiny_llama)
    model = build(shape, open_weights(tiny_llama), CPU, torch.float32)
    tokens, wanted = torch.arange(20), torch.tensor([0, 19])
    plain, padded = cache_for(shape, 20), cache_for(shape, 20)
    expected = model.forward(whole_prompt(tokens, wanted), plain).clone()
    assert torch.equal(model.forward(whole_prompt(tokens, wanted, padding=45), padded), expected)
    for a, b in zip([*plain.k, *plain.v], [*padded.k, *padded.v], strict=True):
        assert torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))


def test_only_wanted_logits(tiny_llama: Path) -> None:
    shape = read_shape(tiny_llama)
    model = build(shape, open_weights(tiny_llama), CPU, torch.float32)
    tokens = torch.arange(30)
    everything = model.forward(whole_prompt(tokens, torch.arange(30)), cache_for(shape, 30)).clone()
    some = torch.tensor([29, 3, 3])
    assert torch.equal(model.forward(whole_prompt(tokens, some), cache_for(shape, 30)), everything[some])
    none = model.forward(whole_prompt(tokens, some[:0]), cache_for(shape, 30))
    assert none.shape == (0, shape.vocab_size)


@pytest.mark.parametrize(
    "scaling",
    [
        LINEAR,
        LLAMA3,
        YARN,
        DYNAMIC,
        {**YARN, "truncate": False, "attention_factor": 1.5},
        {**YARN, "mscale": 0.7, "mscale_all_dim": 1.0},
        {**YARN, "mscale": 0.7},
        {**YARN, "factor": 1.0, "attention_factor": 1.5},
    ],
)
def test_frequencies_equal_transformers(scaling: dict[str, Any]) -> None:
    settings: dict[str, Any] = {
        "hidden_size": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 1,
        "intermediate_size": 8,
        "vocab_size": 8,
        "max_position_embeddings": 256,
        "rope_parameters": scaling,
    }
    config = AutoConfig.for_model("llama", **settings)
    expected, amplitude = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, CPU)
    raw = {**settings, "architectures": ["LlamaForCausalLM"], "num_key_value_heads": 4}
    got, factor = inverse_frequencies(shape_from_config(raw, "m"))
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=0)
    assert factor == pytest.approx(amplitude)


class Held:
    """A weight source over a dictionary."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = tensors

    def names(self) -> Iterable[str]:
        return self.tensors

    def file_of(self, name: str) -> Path:
        return Path("held")

    def get(self, name: str) -> torch.Tensor:
        if name not in self.tensors:
            raise ModelError(f"{name}: missing")
        return self.tensors[name]


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    source = open_weights(folder)
    return {name: source.get(name) for name in source.names()}


def test_a_weight_of_another_size_is_named(tiny_llama: Path) -> None:
    tensors = tensors_of(tiny_llama)
    name = "model.layers.1.mlp.down_proj.weight"
    tensors[name] = tensors[name][:, :-1]
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.down_proj\.weight: its size is \(64, 127\)"):
        build(read_shape(tiny_llama), Held(tensors), CPU, torch.float32)


def test_a_missing_weight_is_named(tiny_llama: Path) -> None:
    tensors = tensors_of(tiny_llama)
    del tensors["model.layers.2.self_attn.k_proj.weight"]
    with pytest.raises(ModelError, match=r"layers\.2\.self_attn\.k_proj\.weight: missing"):
        build(read_shape(tiny_llama), Held(tensors), CPU, torch.float32)


def test_a_weight_without_a_place_is_refused(tiny_llama: Path, tmp_path: Path) -> None:
    """A checkpoint that computes more than its config.json says; what belongs to no layer of the model may lie there."""
    from safetensors.torch import save_file

    folder = tmp_path / "model"
    shutil.copytree(tiny_llama, folder)
    tensors = tensors_of(tiny_llama)
    bias = torch.ones(64)
    beside = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": bias,
        "model.layers.3.q_proj.weight": bias.clone(),
    }
    save_file({**tensors, **beside}, folder / "model.safetensors")
    open_model(folder, model_shape(folder), CPU, torch.float32)
    save_file({**tensors, "model.layers.1.self_attn.q_proj.bias": bias}, folder / "model.safetensors")
    with pytest.raises(
        ModelError, match=r"1 weights .* no place in LlamaForCausalLM, first '.*1.*q_proj\.bias'"
    ):
        open_model(folder, model_shape(folder), CPU, torch.float32)


def shape_with(**raw: Any) -> ModelShape:
    base = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 4,
        "intermediate_size": 8,
        "vocab_size": 8,
    }
    return shape_from_config({**base, **raw}, "m")


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ({}, None),
        ({"architectures": ["GPT2LMHeadModel"]}, "architecture GPT2LMHeadModel"),
        ({"num_local_experts": 8}, "a mixture of experts"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope scaling 'longrope'"),
        ({"partial_rotary_factor": 0.5}, "a partial rotary embedding"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "a partial rotary embedding"),
        ({"model_type": "llama"}, None),
        ({"model_type": "exaone"}, "model type exaone"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"mlp_bias": True}, "a bias in the feed-forward layers"),
        ({"use_qk_norm": True}, "norms of queries and keys"),
    ],
)
def test_what_the_own_definitions_cannot_run_is_said(raw: dict[str, Any], reason: str | None) -> None:
    shape = shape_with(**raw)
    assert obstacle(shape) == reason
    if reason is not None:
        with pytest.raises(ModelError, match=reason.split()[0]):
            build(shape, Held({}), CPU, torch.float32)


def test_windows_by_layer() -> None:
    assert [window_of(shape_with(sliding_window=5), i) for i in range(4)] == [5] * 4
    later = shape_with(sliding_window=5, use_sliding_window=True, max_window_layers=3)
    assert [window_of(later, i) for i in range(4)] == [None, None, None, 5]
    kinds = ["full_attention", "sliding_attention", "full_attention", "sliding_attention"]
    assert [window_of(shape_with(sliding_window=5, layer_types=kinds), i) for i in range(4)] == [
        None,
        5,
        None,
        5,
    ]
    assert window_of(shape_with(), 0) is None
