"""What `config.json` of tiny random models says beyond sizes that all share."""

from __future__ import annotations

# DeepSeek V3: latent attention, whose values are narrower than its keys, and experts.
DEEPSEEK_V3 = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 32,
}
