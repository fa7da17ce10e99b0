"""Models of a given size with random weights, made on the device as they are asked for: no file, no copy."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch

from camshaft.core.arithmetic.shape import shape_from_config
from camshaft.core.model.decoder import Decoder
from camshaft.core.model.registry import build
from camshaft.kernels.fp8 import FP8

SIZES: dict[str, dict[str, int]] = {
    "8B": {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "vocab_size": 128256, "num_hidden_layers": 32},
    "70B layers": {"hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "vocab_size": 1024, "num_hidden_layers": 10},
    "tiny": {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 2, "vocab_size": 512, "num_hidden_layers": 2},
}  # fmt: skip


class RandomWeights:
    """Weights of a Llama as a weight source: layers in FP8 with a scale a row, or a block of 128 x 128, the rest
    in bfloat16.
    """

    def __init__(self, config: dict[str, Any], device: torch.device, *, blocked: bool = False) -> None:
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        width, kv_width = (
            config[key] * config["head_dim"] for key in ("num_attention_heads", "num_key_value_heads")
        )
        self._device, self._blocked = device, blocked
        self._scale = "weight_scale_inv" if blocked else "weight_scale"
        self._matrices = {
            "q_proj": (width, hidden), "k_proj": (kv_width, hidden), "v_proj": (kv_width, hidden),
            "o_proj": (hidden, width), "gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner),
        }  # fmt: skip
        names = ("model.embed_tokens", "lm_head")
        self._wide: dict[str, tuple[int, int]] = dict.fromkeys(names, (config["vocab_size"], hidden))
        self._hidden, self._layers = hidden, config["num_hidden_layers"]

    def names(self) -> Iterable[str]:
        yield from (f"{name}.weight" for name in (*self._wide, "model.norm"))
        for i in range(self._layers):
            at = f"model.layers.{i}"
            yield from (f"{at}.{norm}.weight" for norm in ("input_layernorm", "post_attention_layernorm"))
            for name in self._matrices:
                room = "self_attn" if name[0] in "qkvo" else "mlp"
                yield from (f"{at}.{room}.{name}.{what}" for what in ("weight", self._scale))

    def get(self, name: str) -> torch.Tensor:
        if "norm" in name:
            return torch.ones(self._hidden, device=self._device)
        base, what = name.rsplit(".", 1)
        rows, columns = self._wide.get(base) or self._matrices[re.sub(r".*\.", "", base)]
        if what == self._scale:
            size = (-(-rows // 128), -(-columns // 128)) if self._blocked else (rows, 1)
            return torch.full(size, columns**-0.5, device=self._device)
        numbers = torch.randn(rows, columns, device=self._device, dtype=torch.bfloat16)
        return numbers / 50 if base in self._wide else numbers.to(FP8)


def llama(size: str, device: torch.device, dtype: torch.dtype, *, blocked: bool = False) -> Decoder:
    """A decoder of one of SIZES with 8 KV heads of 128, or fewer where it has fewer heads."""
    config: dict[str, Any] = {
        **SIZES[size], "architectures": ["LlamaForCausalLM"], "head_dim": 128, "max_position_embeddings": 8192,
        "tie_word_embeddings": False, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    config["num_key_value_heads"] = min(8, config["num_attention_heads"])
    model = build(
        shape_from_config(config, size), RandomWeights(config, device, blocked=blocked), device, dtype
    )
    assert isinstance(model, Decoder)
    return model


def layer_bytes(size: str) -> int:
    """Of all layers' weights in FP8 and of the head in bfloat16: what a decode step must read of the model."""
    s = SIZES[size]
    hidden, heads = s["hidden_size"], s["num_attention_heads"]
    width, kv_width = heads * 128, min(8, heads) * 128
    layer = hidden * (width + 2 * kv_width) + width * hidden + 3 * hidden * s["intermediate_size"]
    return s["num_hidden_layers"] * layer + 2 * s["vocab_size"] * hidden
