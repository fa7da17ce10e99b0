import json
from pathlib import Path

import pytest
import torch

from camshaft.core.errors import ModelError
from camshaft.core.model.decoder import Decoder
from camshaft.core.model.fallback import FallbackModel
from camshaft.core.model.select import model_shape, open_model

CPU = torch.device("cpu")


def _changed(source: Path, target: Path, **config: object) -> Path:
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    held = {**json.loads((source / "config.json").read_text()), **config}
    (target / "config.json").write_text(json.dumps({k: v for k, v in held.items() if v is not ...}))
    return target


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
def test_families_of_ours_run_on_our_definitions(make_tiny_model, kind: str) -> None:
    folder = make_tiny_model(kind)
    assert isinstance(open_model(folder, model_shape(folder), CPU, torch.float32), Decoder)


def test_other_families_and_variants_run_through_transformers(make_tiny_model) -> None:
    for folder in (make_tiny_model("gpt2"), make_tiny_model("llama", mlp_bias=True)):
        shape = model_shape(folder)
        model = open_model(folder, shape, CPU, torch.float32)
        assert isinstance(model, FallbackModel)
        assert model.shape == shape
        assert shape.eos_token_ids == (257,)


def test_heads_that_no_gpu_kernel_takes_are_refused(make_tiny_model) -> None:
    folder = make_tiny_model("llama", head_dim=264)
    shape = model_shape(folder)
    open_model(folder, shape, CPU, torch.float32)
    with pytest.raises(ModelError, match="heads of 264 are larger than the 256"):
        open_model(folder, shape, torch.device("cuda"), torch.bfloat16)


def test_end_tokens_of_every_file(tiny_llama: Path, tmp_path: Path) -> None:
    folder = _changed(tiny_llama, tmp_path, eos_token_id=11)
    (folder / "generation_config.json").write_text('{"eos_token_id": [12, 13]}')
    assert model_shape(folder).eos_token_ids == (12, 13, 11, 257)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"hidden_size": ...}, "'hidden_size' is missing"),
        ({"num_hidden_layers": "many"}, "unusable value"),
        ({"rms_norm_eps": float("nan")}, r"config\.json: .*NaN"),
        ({"architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": "many"}, "unusable value"),
    ],
)
def test_a_broken_configuration_of_a_known_family(
    tiny_llama: Path, tmp_path: Path, config: dict, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        model_shape(_changed(tiny_llama, tmp_path, **config))


def test_a_tensor_of_another_size_names_file_and_tensor(tiny_llama: Path, tmp_path: Path) -> None:
    folder = _changed(tiny_llama, tmp_path, intermediate_size=120)
    message = r"model\.safetensors: model\.layers\.0\.mlp\.\w+\.weight: its size is"
    with pytest.raises(ModelError, match=message):
        open_model(folder, model_shape(folder), CPU, torch.float32)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    "name", ["model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight", "model.norm.weight"]
)
def test_a_number_that_is_none_names_file_and_tensor(
    tiny_llama: Path, tmp_path: Path, name: str, value: float
) -> None:
    from safetensors.torch import load_file, save_file

    folder = _changed(tiny_llama, tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors[name].view(-1)[-1] = value
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(
        ModelError,
        match=rf"model\.safetensors: tensor '{name}' holds NaN or infinity at .* and 0 more places; .*damaged",
    ):
        open_model(folder, model_shape(folder), CPU, torch.float32)


def test_large_numbers_are_finite(tiny_llama: Path, tmp_path: Path) -> None:
    """Their sum may not be."""
    from safetensors.torch import load_file, save_file

    folder = _changed(tiny_llama, tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"].fill_(3e38)
    save_file(tensors, folder / "model.safetensors")
    open_model(folder, model_shape(folder), CPU, torch.float32)


def test_quantised_weights_are_refused_by_name(tiny_llama: Path, tmp_path: Path) -> None:
    folder = _changed(tiny_llama, tmp_path, quantization_config={"quant_method": "awq", "bits": 4})
    with pytest.raises(ModelError, match=r"quantised \(awq\).*GGUF"):
        model_shape(folder)


def test_an_architecture_that_nothing_runs(tiny_llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no-such-family"):
        model_shape(_changed(tiny_llama, tmp_path, architectures=["NoSuch"], model_type="no-such-family"))


def test_a_gguf_that_our_definitions_cannot_run_says_so(
    make_tiny_model, write_gguf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from camshaft.core.model.loading.hub import locate

    monkeypatch.setenv("CAMSHAFT_CACHE", str(tmp_path / "cache"))
    write_gguf(make_tiny_model("llama"), tmp_path / "m.gguf", "llama")
    folder = locate(tmp_path / "m.gguf")
    assert isinstance(open_model(folder, model_shape(folder), CPU, torch.float32), Decoder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "mlp_bias": True}))
    with pytest.raises(ModelError, match="feed-forward layers is not supported from GGUF"):
        model_shape(folder)
