"""FP8 checkpoints of every writer give the logits of the same weights multiplied out."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from camshaft.core.errors import ModelError
from camshaft.core.model.batch import ForwardBatch, PagedCache
from camshaft.core.model.fp8 import matrix_linear, obstacle_in, quantized
from camshaft.core.model.layers import Loader
from camshaft.core.model.registry import build
from camshaft.core.model.select import model_shape, open_model
from camshaft.core.shape import ModelShape
from camshaft.kernels.linear.fp8 import Fp8Linear, Fp8Weight

CPU = torch.device("cpu")
FP8 = torch.float8_e4m3fn


class Held:
    """Weights in memory."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = tensors

    def names(self) -> Iterable[str]:
        return self.tensors

    def get(self, name: str) -> torch.Tensor:
        return self.tensors[name]


def narrowed(
    tensors: dict[str, torch.Tensor], writer: str
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """(as `writer` stores it, the same multiplied out)."""
    stored, plain = dict(tensors), dict(tensors)
    for name, weight in tensors.items():
        if not name.startswith("model.layers.") or weight.ndim != 2:
            continue
        base = name.removesuffix(".weight")
        rows, columns = weight.shape
        if writer == "block":
            size = (-(-rows // 128), -(-columns // 128))
            scales = torch.rand(size) * 0.01 + 0.005
            wide = scales.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]
            stored[f"{base}.weight_scale_inv"] = scales
        elif writer == "modelopt":
            scales = wide = weight.abs().max() / 448
            stored[f"{base}.weight_scale"], stored[f"{base}.input_scale"] = scales, torch.tensor(0.02)
        else:
            scales = wide = weight.abs().amax(1, keepdim=True) / 448
            stored[f"{base}.weight_scale"] = scales
            if writer == "fbgemm":
                stored[f"{base}.input_scale_ub"] = torch.tensor([1200.0])
        stored[name] = (weight / wide).clamp(-448, 448).to(FP8)
        plain[name] = stored[name].float() * wide
    return stored, plain


CONFIGS: dict[str, dict[str, Any]] = {
    "compressed": {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": {"type": "float", "num_bits": 8, "strategy": "channel"}}},
    },
    "fbgemm": {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0},
    "modelopt": {"quant_method": "modelopt", "quant_algo": "FP8"},
    "block": {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"},
}


def logits(model: Any, shape: ModelShape) -> torch.Tensor:
    tokens = torch.tensor([5, 99, 200, 7, 31])
    size = (1, shape.num_kv_heads, 16, shape.head_dim)
    cache = PagedCache(
        *([torch.zeros(size) for _ in range(shape.num_layers)] for _ in range(2)), block_size=16
    )
    positions = torch.arange(5)
    int32 = torch.int32
    batch = ForwardBatch(
        tokens, positions, positions, torch.tensor([0, 5], dtype=int32), torch.tensor([5], dtype=int32),
        torch.zeros((1, 1), dtype=int32), positions, 0, 5, 5,
    )  # fmt: skip
    return model.forward(batch, cache)


@pytest.mark.parametrize("writer", CONFIGS)
def test_an_fp8_checkpoint_equals_its_weights_multiplied_out(
    writer: str, tiny_qwen2: Path, tmp_path: Path
) -> None:
    tensors = load_file(tiny_qwen2 / "model.safetensors")
    stored, plain = narrowed(tensors, writer)
    config = json.loads((tiny_qwen2 / "config.json").read_text())
    for file in tiny_qwen2.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": CONFIGS[writer]}))
    save_file(stored, tmp_path / "model.safetensors")
    shape = model_shape(tmp_path)
    got = logits(open_model(tmp_path, shape, CPU, torch.float32), shape)
    expected = logits(build(shape, Held(plain), CPU, torch.float32), shape)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)
    original = logits(build(shape, Held(tensors), CPU, torch.float32), shape)
    assert not torch.equal(got, original)


def test_weights_quantised_at_load_stay_close(tiny_qwen2: Path) -> None:
    shape = model_shape(tiny_qwen2)
    tensors = load_file(tiny_qwen2 / "model.safetensors")
    exact = logits(build(shape, Held(tensors), CPU, torch.float32), shape)
    rounded = logits(build(shape, Held(tensors), CPU, torch.float32, quantize_fp8=True), shape)
    assert 0 < (exact - rounded).norm() / exact.norm() < 0.2


def test_a_gpu_keeps_fp8_and_a_cpu_multiplies_out() -> None:
    weight = torch.randn(32, 64)
    on_cpu = matrix_linear([quantized(weight), quantized(weight)], torch.float32, None, None, None)
    kept = Fp8Linear(Fp8Weight(quantized(weight).values, quantized(weight).scales))
    assert not isinstance(on_cpu, Fp8Linear)
    x = torch.randn(3, 64)
    torch.testing.assert_close(on_cpu(x)[:, :32], kept(x), rtol=0.1, atol=1.0)
    assert kept.weight_bytes == 32 * 64 + 32 * 4


def test_a_missing_or_odd_scale_is_named() -> None:
    values = torch.randn(32, 64).to(FP8)
    for scales in (None, torch.ones(7)):
        held = {"a.weight": values} | ({} if scales is None else {"a.weight_scale": scales})
        with pytest.raises(ModelError, match=r"a\.weight"):
            Loader(Held(held), CPU, torch.float32).matrix("a", 32, 64)
    with pytest.raises(ModelError, match="only linear layers"):
        Loader(Held({"e.weight": values}), CPU, torch.float32).tensor("e.weight", 32, 64)


@pytest.mark.parametrize(
    "stored",
    [
        {"quant_method": "awq"},
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
        {"quant_method": "fp8", "weight_block_size": [64, 64]},
        {"quant_method": "fp8", "fmt": "e5m2"},
        {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"type": "int", "num_bits": 8}}}},
    ],
)  # fmt: skip
def test_other_schemes_are_refused_by_name(stored: dict[str, Any]) -> None:
    assert stored["quant_method"] in (obstacle_in(stored) or "")
