"""gpt-oss with experts in MXFP4 on the project's own decoder gives transformers' logits of the same weights multiplied out."""

from __future__ import annotations

import json
import re
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import GPT_OSS, write_in_mxfp4
from transformers import AutoModelForCausalLM
from transformers.models.gpt_oss.configuration_gpt_oss import GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssRotaryEmbedding

from camshaft.core.arithmetic.shape import read_shape
from camshaft.core.errors import ModelError
from camshaft.core.model.base import Model
from camshaft.core.model.batch import ForwardBatch, PagedCache
from camshaft.core.model.decoder import Decoder
from camshaft.core.model.fallback import FallbackModel
from camshaft.core.model.loading.safetensors import SafetensorsWeights
from camshaft.core.model.rope import cos_sin_table
from camshaft.core.model.select import model_shape, open_model

CPU = torch.device("cpu")
BLOCK, BLOCKS_EACH = 4, 16
EXPERTS = "model.layers.1.mlp.experts"


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def folders(
    make_tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., tuple[Path, Path]]:
    """`folders(**config)`: of one model, the folder with packed experts and that with the same multiplied out."""
    made: dict[str, tuple[Path, Path]] = {}

    def make(**config: Any) -> tuple[Path, Path]:
        key = repr(sorted(config.items()))
        if key not in made:
            folder = tmp_path_factory.mktemp("gpt-oss-")
            made[key] = folder / "packed", folder / "plain"
            write_in_mxfp4(make_tiny_model("gpt_oss", **{**GPT_OSS, **config}), *made[key])
        return made[key]

    return make


def opened(folder: Path, dtype: torch.dtype = torch.float32) -> Model:
    return open_model(folder, model_shape(folder), CPU, dtype)


def stepwise(
    model: Model, prompts: list[torch.Tensor], chunk: int, cache_dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    """Logits of every token, all prompts in the same steps, `chunk` tokens at most of each."""
    shape, count = model.shape, len(prompts)
    size = (count * BLOCKS_EACH, shape.num_kv_heads, BLOCK, shape.head_dim)
    k, v = ([torch.zeros(size).to(cache_dtype) for _ in range(shape.num_layers)] for _ in "kv")
    tables = torch.arange(count * BLOCKS_EACH, dtype=torch.int32).view(BLOCKS_EACH, count).t().flip(1)
    done, out = [0] * count, [[] for _ in prompts]
    while live := [i for i in range(count) if done[i] < len(prompts[i])]:
        took = {i: min(chunk, len(prompts[i]) - done[i]) for i in live}
        order = sorted(live, key=lambda i: took[i] > 1)
        places = [torch.arange(done[i], done[i] + took[i]) for i in order]
        slots = [tables[i][p // BLOCK].long() * BLOCK + p % BLOCK for i, p in zip(order, places, strict=True)]
        ends = torch.tensor([0, *(took[i] for i in order)]).cumsum(0).to(torch.int32)
        for i in order:
            done[i] += took[i]
        batch = ForwardBatch(
            tokens=torch.cat([prompts[i][p] for i, p in zip(order, places, strict=True)]),
            positions=torch.cat(places),
            slots=torch.cat(slots),
            query_starts=ends,
            context_lens=torch.tensor([done[i] for i in order], dtype=torch.int32),
            block_tables=tables[order].contiguous(),
            logit_indices=torch.arange(int(ends[-1])),
            num_decodes=sum(took[i] == 1 for i in order),
            max_query_len=max(took.values()),
            max_context_len=max(done[i] for i in order),
        )
        logits = model.forward(batch, PagedCache(k, v, BLOCK)).clone()
        for i, part in zip(order, logits.split([took[i] for i in order]), strict=True):
            out[i].append(part)
    return [torch.cat(parts) for parts in out]


def expected(folder: Path, prompts: list[torch.Tensor]) -> list[torch.Tensor]:
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    with torch.inference_mode():
        return [model(input_ids=prompt[None]).logits[0] for prompt in prompts]


def prompts_of(*lengths: int) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(3)
    return [torch.randint(0, 256, (length,), generator=draw) for length in lengths]


@pytest.mark.parametrize(
    "config",
    [
        {},  # a window shorter than most prompts
        {"sliding_window": 500},
        {"swiglu_limit": 0.75, "swiglu_alpha": 1.1},
        {"hidden_size": 96, "intermediate_size": 160, "num_experts_per_tok": 4},  # odd numbers of groups
        {"attention_bias": False, "tie_word_embeddings": True},
    ],
)
def test_equals_transformers(folders: Callable[..., tuple[Path, Path]], config: dict[str, Any]) -> None:
    packed, plain = folders(**config)
    model, prompts = opened(packed), prompts_of(30, 9, 1, 17)
    assert isinstance(model, Decoder)
    reference = expected(plain, prompts)
    for chunk in (64, 7, 1):
        for got, wanted in zip(stepwise(model, prompts, chunk), reference, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4 * float(wanted.std()))


def test_each_part_of_the_definition_is_felt(
    folders: Callable[..., tuple[Path, Path]], tmp_path: Path
) -> None:
    """So that agreement means something: without it the logits are others."""
    packed, _ = folders()
    prompts = prompts_of(50)
    right = stepwise(opened(packed), prompts, 64)[0]
    config = json.loads((packed / "config.json").read_text())
    rope = {**config["rope_parameters"], "truncate": True}
    for i, change in enumerate(
        ({"swiglu_limit": 2.0}, {"swiglu_alpha": 1.0}, {"sliding_window": 13}, {"rope_parameters": rope})
    ):
        folder = _changed(packed, tmp_path / str(i), **change)
        assert not torch.allclose(stepwise(opened(folder), prompts, 64)[0], right, atol=1e-3), change
    for i, name in enumerate(
        ("self_attn.sinks", "self_attn.o_proj.bias", "mlp.router.bias", "mlp.experts.down_proj_bias")
    ):
        folder = _changed(packed, tmp_path / f"t{i}")
        _tensors(folder, lambda held, name=name: held[f"model.layers.1.{name}"].neg_())
        assert not torch.allclose(stepwise(opened(folder), prompts, 64)[0], right, atol=1e-3), name


def test_an_fp8_cache_changes_little(folders: Callable[..., tuple[Path, Path]]) -> None:
    packed, _ = folders()
    model, prompts = opened(packed), prompts_of(40)
    exact, narrow = (stepwise(model, prompts, 7, kept)[0] for kept in (torch.float32, torch.float8_e4m3fn))
    assert 0 < (narrow - exact).norm() / exact.norm() < 0.4


def test_bfloat16_stays_near_float32(folders: Callable[..., tuple[Path, Path]]) -> None:
    packed, _ = folders()
    prompts = prompts_of(40)
    exact = stepwise(opened(packed), prompts, 64)[0]
    got = stepwise(opened(packed, torch.bfloat16), prompts, 64, torch.bfloat16)[0]
    assert float((got - exact).abs().mean()) < 0.1 * float(exact.std())


def test_angles_of_the_published_model_equal_transformers(tmp_path: Path) -> None:
    """YaRN without rounding its bounds, up to the last position."""
    config = GptOssConfig(num_hidden_layers=1, architectures=["GptOssForCausalLM"])
    config.save_pretrained(tmp_path)
    positions = torch.tensor([0, 1, 127, 4095, 4096, 65_537, 131_071])
    cos, sin = GptOssRotaryEmbedding(config)(torch.zeros(1), positions[None])
    table = cos_sin_table(read_shape(tmp_path), 131_072)[positions]
    torch.testing.assert_close(table, torch.cat([cos[0], sin[0]], dim=-1), rtol=1e-5, atol=1e-5)


def test_packed_weights_are_let_go_layer_by_layer(
    folders: Callable[..., tuple[Path, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole of them never lies in memory beside what is made of it."""
    read, seen = SafetensorsWeights.get, []

    def watched(self: SafetensorsWeights, name: str) -> torch.Tensor:
        found = read(self, name)
        if name.endswith(("_blocks", "_scales")):
            layer = name.split(".")[2]
            seen.append((layer, weakref.ref(found)))
            assert all(tensor() is None for other, tensor in seen if other != layer)
        return found

    monkeypatch.setattr(SafetensorsWeights, "get", watched)
    opened(folders()[0])
    assert len(seen) == 12


def test_a_checkpoint_multiplied_out_goes_through_transformers(
    folders: Callable[..., tuple[Path, Path]],
) -> None:
    packed, plain = folders()
    model, prompts = opened(plain), prompts_of(30, 5)
    assert isinstance(model, FallbackModel)
    for got, wanted in zip(stepwise(model, prompts, 7), stepwise(opened(packed), prompts, 7), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-3)


def _changed(source: Path, target: Path, **config: object) -> Path:
    """A copy of a folder with another config.json; `...` takes a key out."""
    shutil.copytree(source, target)
    held = {**json.loads((source / "config.json").read_text()), **config}
    (target / "config.json").write_text(json.dumps({k: v for k, v in held.items() if v is not ...}))
    return target


def _tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    held = load_file(folder / "model.safetensors")
    change(held)
    save_file({name: tensor.contiguous() for name, tensor in held.items()}, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"hidden_act": "gelu"}, "activation 'gelu' is not among"),
        ({"swiglu_limit": "seven"}, "swiglu_limit 'seven' is not among"),
        ({"swiglu_limit": 0}, "swiglu_limit 0 is not among"),
        ({"swiglu_alpha": None}, "swiglu_alpha None is not among"),
        ({"layer_types": ...}, "a config.json without layer_types"),
        (
            {"layer_types": ["full_attention"]},
            "layer_types that are not 3 of full_attention and sliding_attention",
        ),
        ({"layer_types": ["chunked_attention"] * 3}, "layer_types that are not 3"),
        ({"rope_parameters": ...}, "a config.json without rope_parameters and rope_scaling"),
        ({"num_experts_per_tok": 5}, "a choice of 5 of 4 experts"),
        (
            {"quantization_config": {"quant_method": "awq"}},
            r"quantised \(awq\), which this engine does not load",
        ),
        ({"quantization_config": {"quant_method": "fp8"}}, "experts that are not in MXFP4 is not among"),
        ({"architectures": ["LlamaForCausalLM"]}, "a mixture of experts is not among"),
        ({"num_local_experts": "many"}, "unusable value"),
    ],
)
def test_a_configuration_of_another_model_is_refused(
    folders: Callable[..., tuple[Path, Path]], tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        model_shape(_changed(folders()[0], tmp_path / "m", **config))


def test_mxfp4_of_another_architecture_is_refused(tiny_llama: Path, tmp_path: Path) -> None:
    folder = _changed(tiny_llama, tmp_path / "m", quantization_config={"quant_method": "mxfp4"})
    with pytest.raises(ModelError, match="weights in MXFP4 is not among"):
        model_shape(folder)


DAMAGES: list[tuple[str, Callable[[torch.Tensor], torch.Tensor | None], str]] = [
    *((name, lambda held: None, rf"no tensor '{re.escape(name)}'") for name in (
        f"{EXPERTS}.down_proj_scales", f"{EXPERTS}.gate_up_proj_blocks", f"{EXPERTS}.gate_up_proj_bias",
        "model.layers.2.self_attn.sinks", "model.layers.0.self_attn.o_proj.bias", "model.layers.0.mlp.router.bias",
    )),
    (f"{EXPERTS}.gate_up_proj_scales", lambda held: held[:, :, :1], r"_scales: its size is \(4, 256, 1\), the config says \(4, 256, 2\)"),
    (f"{EXPERTS}.down_proj_blocks", lambda held: held[..., :8], r"down_proj_blocks: its size is"),
    (f"{EXPERTS}.down_proj_bias", lambda held: held[:3], r"down_proj_bias: its size is"),
    ("model.layers.2.self_attn.sinks", lambda held: held[:3], r"sinks: its size is \(3,\)"),
    (f"{EXPERTS}.down_proj_blocks", lambda held: held.float(), r"down_proj_blocks: .*not uint8"),
    (f"{EXPERTS}.down_proj_scales", lambda held: held.index_fill(2, torch.tensor([1]), 255), r"down_proj_scales: its largest leaves the range of torch\.float32"),
    ("model.layers.2.self_attn.sinks", lambda held: held.fill_(float("nan")), r"sinks' holds NaN"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "message"), DAMAGES)
def test_a_damaged_checkpoint_names_file_and_tensor(
    folders: Callable[..., tuple[Path, Path]],
    tmp_path: Path,
    name: str,
    change: Callable[[torch.Tensor], torch.Tensor | None],
    message: str,
) -> None:
    folder = _changed(folders()[0], tmp_path / "m")

    def damage(held: dict[str, torch.Tensor]) -> None:
        changed = change(held.pop(name))
        if changed is not None:
            held[name] = changed

    _tensors(folder, damage)
    with pytest.raises(ModelError, match=message) as caught:
        opened(folder)
    assert str(folder) in str(caught.value)


def test_a_range_that_a_type_lacks_is_refused(
    folders: Callable[..., tuple[Path, Path]], tmp_path: Path
) -> None:
    folder = _changed(folders()[0], tmp_path / "m")
    _tensors(folder, lambda held: held[f"{EXPERTS}.down_proj_scales"].fill_(141))
    opened(folder, torch.bfloat16)
    with pytest.raises(ModelError, match=r"leaves the range of torch\.float16"):
        opened(folder, torch.float16)


def test_quantising_what_is_packed_is_refused(folders: Callable[..., tuple[Path, Path]]) -> None:
    packed, _ = folders()
    with pytest.raises(ModelError, match="already quantised"):
        open_model(packed, model_shape(packed), CPU, torch.float32, quantize_fp8=True)
