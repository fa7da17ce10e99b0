"""FP8 checkpoints of every writer give the logits of the same weights multiplied out."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from camshaft.core.arithmetic.shape import ModelShape
from camshaft.core.errors import ModelError
from camshaft.core.model import fp8
from camshaft.core.model.batch import ForwardBatch, PagedCache
from camshaft.core.model.decoder import Decoder
from camshaft.core.model.feed_forward import ExpertFeedForward, Fp8FeedForward
from camshaft.core.model.fp8 import matrix_linear, obstacle_in
from camshaft.core.model.registry import build
from camshaft.core.model.select import model_shape, open_model
from camshaft.core.model.weights import Loader
from camshaft.kernels.experts.fp8 import Fp8Experts
from camshaft.kernels.linear.fp8 import Fp8Linear, Fp8Weight, quantize_weight

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


def logits(model: Any, shape: ModelShape, cache_dtype: torch.dtype = torch.float32) -> torch.Tensor:
    tokens = torch.tensor([5, 99, 200, 7, 31])
    size = (1, shape.num_kv_heads, 16, shape.head_dim)
    cache = PagedCache(
        *([torch.zeros(size, dtype=cache_dtype) for _ in range(shape.num_layers)] for _ in range(2)),
        block_size=16,
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
    on_cpu = matrix_linear(
        [quantize_weight(weight), quantize_weight(weight)], torch.float32, None, None, None
    )
    kept = Fp8Linear(Fp8Weight(quantize_weight(weight).values, quantize_weight(weight).scales))
    assert not isinstance(on_cpu, Fp8Linear)
    x = torch.randn(3, 64)
    torch.testing.assert_close(on_cpu(x)[:, :32], kept(x), rtol=0.1, atol=1.0)
    assert kept.weight_bytes == 32 * 64 + 32 * 4


@pytest.mark.parametrize(("capability", "kept"), [((8, 0), False), ((8, 9), True), ((9, 0), True)])
def test_a_gpu_before_ada_multiplies_out_too(
    capability: tuple[int, int], kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: capability)
    assert fp8.keeps_fp8(torch.device("cuda")) is kept
    assert fp8.keeps_fp8(CPU) is False


MIXTURES: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "head_dim": 32},
}


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("writer", CONFIGS)
@pytest.mark.parametrize("kind", ["qwen2", *MIXTURES])
def test_fp8_checkpoints_with_and_without_experts(
    kind: str, writer: str, kept: bool, make_tiny_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a CPU, multiplied out exactly; and as on a GPU, where inputs are rounded to FP8 as well."""
    monkeypatch.setattr(fp8, "keeps_fp8", lambda device: kept)
    sizes = {"hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 4}
    folder = make_tiny_model(kind, **sizes, **MIXTURES.get(kind, {}))
    tensors = load_file(folder / "model.safetensors")
    stored, plain = narrowed(tensors, writer)
    for name in [n for n in stored if n.endswith((".mlp.gate.weight", "block_sparse_moe.gate.weight"))]:
        stored[name] = plain[name] = tensors[name]  # every writer leaves the router as it is
    if writer == "modelopt":
        stored |= {n: torch.tensor(0.05) for n in stored if n.endswith("input_scale")}
    shape = model_shape(folder)
    model = build(shape, Held(stored), CPU, torch.float32)
    got, expected = (logits(m, shape) for m in (model, build(shape, Held(plain), CPU, torch.float32)))
    if not kept:
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)
        return
    assert isinstance(model, Decoder)
    layer = model._layers[0].feed_forward
    assert isinstance(
        layer.experts if isinstance(layer, ExpertFeedForward) else layer, Fp8Experts | Fp8FeedForward
    )
    assert 0 < (got - expected).norm() / expected.norm() < 0.6  # a changed choice of experts costs much


@pytest.mark.parametrize(
    "names",
    [
        ("self_attn.k_scale", "self_attn.v_scale"),
        ("self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"),
        ("self_attn.kv_scale", "self_attn.kv_scale"),
    ],
)
def test_calibrated_scales_of_k_and_v_are_applied(names: tuple[str, str], tiny_qwen2: Path) -> None:
    """Keys and values far outside of e4m3's range are lost without their scales, and only without them."""
    shape = model_shape(tiny_qwen2)
    tensors = dict(load_file(tiny_qwen2 / "model.safetensors"))
    for i in range(shape.num_layers):
        at = f"model.layers.{i}.self_attn"
        for part, factor in (("q_proj", 2.0**-12), ("k_proj", 2.0**12), ("v_proj", 2.0**12)):
            for name in (f"{at}.{part}.weight", f"{at}.{part}.bias"):
                tensors[name] = tensors[name] * factor
        tensors[f"{at}.o_proj.weight"] = tensors[f"{at}.o_proj.weight"] * 2.0**-12
    scales = {
        f"model.layers.{i}.{name}": torch.tensor(64.0) for i in range(shape.num_layers) for name in names
    }
    plain, scaled = (build(shape, Held(held), CPU, torch.float32) for held in (tensors, tensors | scales))
    assert isinstance(scaled, Decoder)
    assert {layer.kv_scales for layer in scaled._layers} == {(64.0, 64.0)}
    exact = logits(scaled, shape)
    torch.testing.assert_close(exact, logits(plain, shape))  # a wide cache has no scales

    def error(model: Any) -> float:
        return float((logits(model, shape, FP8) - exact).norm() / exact.norm())

    assert error(scaled) < 0.1 < 3 * error(scaled) < error(plain)


@pytest.mark.parametrize(
    ("stored", "expected"),
    [({}, 1.0), ({"k_scale": torch.tensor([-1.0])}, 1.0), ({"k_scale": torch.tensor([0.5, 2.0])}, 2.0)],
)
def test_a_scale_that_is_no_scale_is_one(stored: dict[str, torch.Tensor], expected: float) -> None:
    held = {f"a.{name}": scale for name, scale in stored.items()}
    assert Loader(Held(held), CPU, torch.float32).kv_scales("a") == (expected, 1.0)


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
