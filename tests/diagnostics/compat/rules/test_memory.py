"""Start-up memory: told facts, whole configs, and the published refusal of 70B in FP8 on one H100."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from camshaft.diagnostics.compat.facts.model import model_facts
from camshaft.diagnostics.compat.releases.versions import parse
from camshaft.diagnostics.compat.rules.evaluate import RuleHit, evaluate
from camshaft.diagnostics.compat.rules.records import load
from camshaft.diagnostics.compat.rules.resolvers import parser_defaults
from camshaft.diagnostics.compat.rules.scope import Facts, Scope
from camshaft.diagnostics.cost.devices import find_device

LLAMA_8B = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
}  # fmt: skip
LLAMA_70B_FP8 = LLAMA_8B | {
    "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64, "intermediate_size": 28672,
    "quantization_config": {"quant_method": "fp8"},
}  # fmt: skip
QWEN_32B = LLAMA_8B | {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 5120, "num_hidden_layers": 64,
    "num_attention_heads": 64, "head_dim": 128, "intermediate_size": 25600, "vocab_size": 151936,
    "max_position_embeddings": 40960,
}  # fmt: skip


def facts(release: str, model: dict[str, Any], device: str | None, **flags: Any) -> Facts:
    found = find_device(device) if device else None
    return Facts(flags, {}, model, found, parser_defaults("vllm", parse(release)))


def codes(release: str, model: dict[str, Any], device: str, **flags: Any) -> dict[str, RuleHit]:
    hits = evaluate("vllm", parse(release), facts(release, model, device, **flags))
    return {hit.rule.code: hit for hit in hits if hit.certain and "-ME-" in hit.rule.code}


@pytest.mark.parametrize("release", ["0.18.0", "0.33.0"])
def test_70b_in_fp8_does_not_start_on_one_h100(release: str) -> None:
    found = codes(release, LLAMA_70B_FP8, "H100", max_model_len=131072)
    assert set(found) <= {"VLLM-ME-02", "VLLM-ME-03"}
    assert found
    assert all(hit.certain and hit.would_stop for hit in found.values())
    assert not codes(release, LLAMA_70B_FP8, "H100", max_model_len=32768, tensor_parallel_size=4)


def test_8b_starts_on_one_h100_and_not_on_a_t4() -> None:
    assert not codes("0.18.0", LLAMA_8B, "H100")
    hit = codes("0.18.0", LLAMA_8B, "T4", dtype="half", max_model_len=8192)["VLLM-ME-02"]
    assert "Tesla T4" in hit.message


def test_one_request_of_full_length() -> None:
    found = codes("0.18.0", LLAMA_8B, "L4", max_model_len=131072)
    assert set(found) == {"VLLM-ME-03"}
    assert not codes("0.18.0", LLAMA_8B, "L4", max_model_len=8192)
    assert not codes("0.18.0", LLAMA_8B, "L4", max_model_len=-1)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.floats(0.05, 0.98), st.integers(1, 8))
def test_what_the_budget_does_not_fit_is_always_told(utilization: float, length_k: int) -> None:
    """The rules speak wherever `core.arithmetic.memory` misses memory: as an error beyond the estimate's error, else a warning."""
    flags: dict[str, Any] = {"gpu_memory_utilization": utilization, "max_model_len": length_k * 16384}
    scope = Scope(load("vllm"), "0.33.0", facts("0.33.0", LLAMA_8B, "H100", **flags))
    missing = max(scope("memory.request_gib") - scope("memory.kv_gib"), 0)
    found = codes("0.33.0", LLAMA_8B, "H100", **flags)
    assert bool(found) is (missing > 0)
    assert len(found) <= 1
    assert missing > scope("memory.error_gib") or not any(hit.would_stop for hit in found.values())


@pytest.mark.parametrize(("utilization", "code"), [(0.85, "VLLM-ME-03"), (0.92, "VLLM-ME-09"), (0.98, None)])
def test_one_request_within_the_error_of_the_estimate_warns(utilization: float, code: str | None) -> None:
    found = codes("0.33.0", QWEN_32B, "H100", gpu_memory_utilization=utilization)
    assert set(found) == ({code} if code else set())


@pytest.mark.parametrize(
    ("utilization", "code"), [(0.75, {"VLLM-ME-02", "VLLM-ME-04"}), (0.81, {"VLLM-ME-08"}), (0.9, set())]
)
def test_an_automatic_context_length_needs_room_for_the_cache(utilization: float, code: set[str]) -> None:
    assert (
        set(codes("0.33.0", QWEN_32B, "H100", gpu_memory_utilization=utilization, max_model_len=-1)) == code
    )


def test_graphs_are_subtracted_from_0_20_on() -> None:
    def room(release: str) -> float:
        given = facts(release, LLAMA_8B, "H100", gpu_memory_utilization=0.9)
        return Scope(load("vllm"), release, given)("memory.kv_gib")

    assert room("0.19.1") == pytest.approx(room("0.18.0"))
    assert room("0.20.0") < room("0.19.1")


def test_what_is_missing_is_named() -> None:
    def missing(model: dict[str, Any], device: str | None, asked: str = "memory.kv_gib") -> set[str]:
        value = Scope(load("vllm"), "0.18.0", facts("0.18.0", model, device))(asked)
        return set(value.missing)

    assert missing(LLAMA_8B, None) == {"device"}
    assert missing({"max_position_embeddings": 4096}, "H100") == {
        "model.hidden_size",
        "model.num_hidden_layers",
    }
    assert missing({"weights_gib": 15.0}, "H100", "memory.request_gib") == {"model.derived_max_model_len"}


def test_an_odd_config_is_unknown_and_no_crash() -> None:
    given = facts("0.18.0", LLAMA_8B | {"vocab_size": "many"}, "H100")
    assert Scope(load("vllm"), "0.18.0", given)("memory.kv_gib").missing == {"model.shape"}


ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-9, 99), st.floats(), st.text(max_size=3), st.lists(st.integers())
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.dictionaries(st.sampled_from([*LLAMA_8B, "rope_scaling", "text_config", "sliding_window"]), ODD))
def test_no_config_crashes_the_arithmetic(odd: dict[str, Any]) -> None:
    codes("0.33.0", LLAMA_8B | odd, "H100")


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({"max_position_embeddings": 4096}, 4096),
        ({"n_positions": 1024}, 1024),
        ({"max_position_embeddings": 4096, "seq_length": 2048}, 2048),
        ({"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}, 8192),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131072),
        (
            {
                "max_position_embeddings": 32768,
                "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
            },
            131072,
        ),
    ],
)
def test_derived_context_length(config: dict[str, Any], length: int) -> None:
    assert model_facts(config)["derived_max_model_len"] == length


def test_a_whole_config_settles_what_a_few_facts_leave_open() -> None:
    whole, few = model_facts(LLAMA_8B), model_facts({"model_type": "llama"})
    assert whole["is_moe"] is False
    assert whole["quantization"] is None
    assert few["is_moe"] is False
    assert "is_multimodal" not in few
    assert "is_moe" not in model_facts({"model_type": "some_new_type"})
    assert few["is_encoder_decoder"] is False
    moe = model_facts({"text_config": LLAMA_8B | {"num_experts": 128}, "vision_config": {}})
    assert (moe["is_moe"], moe["is_multimodal"], moe["num_attention_heads"]) == (True, True, 32)
    assert model_facts(LLAMA_70B_FP8)["quantization"] == "fp8"
