"""Tiny random models beyond sizes that all share: what their `config.json` says, and weights in another form."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

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
# gpt-oss: attention sinks, windows on some layers, experts.
GPT_OSS: dict[str, Any] = {
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "head_dim": 16,
    "sliding_window": 12,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}


def write_in_mxfp4(source: Path, packed: Path, plain: Path) -> None:
    """Two folders from that of a gpt-oss: experts drawn anew in MXFP4, and the same ones multiplied out."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, packed)
    shutil.copytree(source, plain)
    weights = load_file(source / "model.safetensors")
    stored, rng = dict(weights), np.random.default_rng(0)
    for name in [name for name in weights if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, columns, rows = weights[name].shape
        blocks = rng.integers(0, 256, (experts, rows, columns // 32, 16), dtype=np.uint8)
        scales = rng.integers(121, 126, blocks.shape[:-1], dtype=np.uint8)
        del stored[name]
        stored[f"{name}_blocks"], stored[f"{name}_scales"] = (
            torch.from_numpy(blocks),
            torch.from_numpy(scales),
        )
        weights[name] = torch.from_numpy(_multiplied_out(blocks, scales).swapaxes(1, 2).copy())
    save_file(stored, packed / "model.safetensors", {"format": "pt"})
    save_file(weights, plain / "model.safetensors", {"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    (packed / "config.json").write_text(json.dumps({**config, "quantization_config": MXFP4}))


def _multiplied_out(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """float32 [experts, rows, columns], bit by bit as OCP Microscaling Formats 1.0 has it: sign, two bits of exponent
    of bias 1, one of mantissa; the lower half of a byte is the first number.
    """
    numbers = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*scales.shape, 32).astype(np.int32)
    sign, exponent, mantissa = 1.0 - 2 * (numbers >> 3), numbers >> 1 & 3, numbers & 1
    magnitude = np.where(exponent == 0, mantissa / 2, (1 + mantissa / 2) * 2.0 ** (exponent - 1))
    values = sign * magnitude * 2.0 ** (scales[..., None].astype(np.float64) - 127)
    return values.reshape(*scales.shape[:2], -1).astype(np.float32)
