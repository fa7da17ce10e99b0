"""What rules need to know of a model, from its ``config.json``, a model sheet, or a few facts of one.

From a whole config (it has `num_hidden_layers` and `hidden_size`) an absent key means that the model lacks the
feature. From a few facts it means nothing, and the feature stays unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

_MLA_TYPES = {
    "deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_mtp", "kimi_k2", "glm_moe_dsa", "longcat_flash",
}  # fmt: skip
_HYBRID_TYPES = {
    "jamba", "bamba", "zamba2", "falcon_h1", "nemotron_h", "granitemoehybrid", "qwen3_next", "qwen3_5",
    "qwen3_5_moe", "lfm2", "lfm2_moe", "plamo2", "minimax_text_01", "kimi_linear", "bailing_moe_linear",
}  # fmt: skip
_ATTENTION_FREE_TYPES = {"mamba", "mamba2", "falcon_mamba"}
_ENCODER_DECODER_TYPES = {"whisper", "bart", "mbart", "t5", "mllama", "florence2", "donut", "nemotron_parse"}
_ENCODER_ONLY_TYPES = {
    "bert", "roberta", "xlm-roberta", "modernbert", "nomic_bert", "gte", "distilbert", "albert",
}  # fmt: skip
# Types and architectures without experts, so that naming one settles it.
_DENSE_TYPES = {
    "llama", "mistral", "qwen2", "qwen3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "gemma", "gemma2", "gemma3",
    "gemma3_text", "phi", "phi3", "opt", "gpt2", "gpt_neox", "falcon", "bloom", "mpt", "starcoder2", "cohere",
    "cohere2", "olmo", "olmo2", "glm4", "chatglm", "internlm2", "exaone", "smollm3",
}  # fmt: skip
_DENSE_ARCHITECTURES = {
    "LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "GemmaForCausalLM",
    "Gemma2ForCausalLM", "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration", "Phi3ForCausalLM", "OPTForCausalLM",
    "Qwen2_5_VLForConditionalGeneration", "Qwen3VLForConditionalGeneration",
}  # fmt: skip
_EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_POOLING_SUFFIXES = ("ForSequenceClassification", "RewardModel", "ForTokenClassification", "Embedding")
_MULTIMODAL_KEYS = (
    "vision_config",
    "audio_config",
    "vision_tower_config",
    "mm_vision_tower",
    "thinker_config",
)


def model_facts(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The given facts, those of a nested text config, and the derived ones (`is_moe`, `use_mla`, `is_pooling`, ...).

    A derived fact that was given is kept as given; one that cannot be told is absent.
    """
    text = raw.get("text_config")
    facts: dict[str, Any] = {**text, **raw} if isinstance(text, Mapping) else dict(raw)
    whole = "num_hidden_layers" in facts and "hidden_size" in facts
    kind = facts.get("model_type") if isinstance(facts.get("model_type"), str) else None
    architectures = facts.get("architectures")
    if isinstance(architectures, list) and architectures and architectures[0] is not None:
        facts.setdefault("architecture", architectures[0])
    if facts.get("architecture", "") is None:
        del facts["architecture"]
    _quantization(facts, whole)
    _dtype(facts)
    if whole:
        facts.setdefault("num_key_value_heads", facts.get("num_attention_heads"))
    if "num_local_experts" in facts and "intermediate_size" in facts:  # Mixtral's: every layer is of experts
        facts.setdefault("moe_intermediate_size", facts["intermediate_size"])
    for name, evidence in _features(facts, kind).items():
        if evidence or whole or (kind is not None and name in _BY_TYPE):
            facts.setdefault(name, evidence)
    if _is_dense(facts, kind):
        facts.setdefault("is_moe", False)
    _sliding_window(facts, whole)
    _context(facts)
    return facts


# Features that the model type alone decides, so that naming the type settles them.
_BY_TYPE = {"is_encoder_decoder", "is_hybrid", "is_attention_free", "is_encoder_only", "is_pooling"}


def _features(facts: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    kinds = facts.get("layer_types")
    layers = {str(layer) for layer in kinds} if isinstance(kinds, list) else set()
    rope = facts.get("rope_scaling")
    architecture = str(facts.get("architecture", ""))
    pooling = architecture.endswith(_POOLING_SUFFIXES) or kind in _ENCODER_ONLY_TYPES
    return {
        "is_moe": any(facts[key] > 1 for key in _EXPERT_KEYS if isinstance(facts.get(key), int)),
        "use_mla": bool(facts.get("kv_lora_rank")) or kind in _MLA_TYPES,
        "is_multimodal": any(key in facts for key in _MULTIMODAL_KEYS),
        "is_encoder_decoder": bool(facts.get("is_encoder_decoder")) or kind in _ENCODER_DECODER_TYPES,
        "is_hybrid": kind in _HYBRID_TYPES or bool(layers & {"linear_attention", "mamba"}),
        "is_attention_free": kind in _ATTENTION_FREE_TYPES,
        "is_encoder_only": kind in _ENCODER_ONLY_TYPES,
        "has_chunked_local_attention": bool(facts.get("attention_chunk_size")),
        "uses_mrope": isinstance(rope, Mapping) and "mrope_section" in rope,
        "is_pooling": pooling,
    }


def _is_dense(facts: Mapping[str, Any], kind: Any) -> bool:
    """Whether what is known settles that the model has no experts: a count of them, its type or its architecture."""
    if any(isinstance(facts.get(key), int) for key in _EXPERT_KEYS):
        return True  # a count above one has already made it a mixture
    return kind in _DENSE_TYPES or facts.get("architecture") in _DENSE_ARCHITECTURES


def _quantization(facts: dict[str, Any], whole: bool) -> None:
    config = facts.get("quantization_config") or facts.get("compression_config")
    if "quantization" not in facts and isinstance(config, Mapping) and config.get("quant_method"):
        facts["quantization"] = str(config["quant_method"]).lower()
    if whole:
        facts.setdefault("quantization", None)
    scheme = _weight_scheme(config) if isinstance(config, Mapping) else None
    if scheme is not None:
        facts.setdefault("weight_scheme", scheme)
    block = config.get("weight_block_size") if isinstance(config, Mapping) else None
    if isinstance(block, list) and block and facts.get("quantization") == "fp8":
        facts.setdefault("fp8_block", block[0])
    elif whole:
        facts.setdefault("fp8_block", None)


def _weight_scheme(config: Mapping[str, Any]) -> str | None:
    """What compressed-tensors makes of its `config_groups`, where all agree: `wna16`, `int8`, `fp8` or `fp4`."""
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping):
        return None
    schemes = {_group_scheme(group) for group in groups.values() if isinstance(group, Mapping)}
    return schemes.pop() if len(schemes) == 1 else None


def _group_scheme(group: Mapping[str, Any]) -> str | None:
    weights = group.get("weights")
    if not isinstance(weights, Mapping):
        return None
    match weights.get("type"), weights.get("num_bits"):
        case "float", 8:
            return "fp8"
        case "float", 4:
            return "fp4"
        case "int", _:
            return "int8" if group.get("input_activations") else "wna16"
        case _:
            return None


def _dtype(facts: dict[str, Any]) -> None:
    dtype = facts.get("dtype") or facts.get("torch_dtype")
    if dtype is not None:
        facts["dtype"] = str(dtype).removeprefix("torch.")


def _sliding_window(facts: dict[str, Any], whole: bool) -> None:
    window = facts.get("sliding_window")
    if window and facts.get("use_sliding_window", True):
        facts.setdefault("has_sliding_window", True)
    elif whole or "sliding_window" in facts:
        facts.setdefault("has_sliding_window", False)


# transformers' names for the context length, in the order vLLM tries them (config/model.py, _get_and_verify_max_len).
_CONTEXT_KEYS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length", "max_seq_length",
    "seq_len",
)  # fmt: skip
_UNSCALED_ROPE = {"default", "su", "longrope", "llama3", "mrope", "linear_default"}


def _context(facts: dict[str, Any]) -> None:
    """The longest context a release derives from the config: the smallest length named, times the rope's factor."""
    lengths = [facts[key] for key in _CONTEXT_KEYS if isinstance(facts.get(key), int)]
    if not lengths or "derived_max_model_len" in facts:
        return
    length = min(lengths)
    rope = facts.get("rope_scaling") or facts.get("rope_parameters") or {}
    kind = rope.get("rope_type") or rope.get("type") if isinstance(rope, Mapping) else None
    factor = rope.get("factor") if isinstance(rope, Mapping) else None
    scaled = isinstance(kind, str) and kind not in _UNSCALED_ROPE
    if scaled and isinstance(factor, (int, float)) and isfinite(factor):
        original = rope.get("original_max_position_embeddings") if kind == "yarn" else None
        length = int((original if isinstance(original, int) else length) * factor)
    facts["derived_max_model_len"] = length
