"""The families that have definitions of their own, by the names that a `config.json` gives them."""

from __future__ import annotations

GPT_OSS = "GptOssForCausalLM"
DENSE = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})
MIXTURES = frozenset({"MixtralForCausalLM", "Qwen3MoeForCausalLM", GPT_OSS})

# Others share an architecture's name, not its tensors' (EXAONE 3 is a LlamaForCausalLM).
MODEL_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe", "gpt_oss"})
