"""Architectures without a definition of ours give transformers' own greedy tokens through the paged cache."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import DEEPSEEK_V3, GPT_OSS

from camshaft.core.errors import ModelError
from camshaft.core.execute.limits import Limits, Loaded
from camshaft.core.execute.torch_executor import TorchExecutor
from camshaft.core.model.fallback import FallbackModel
from camshaft.core.model.trial import fallback_shape
from camshaft.core.request import SamplingParams
from camshaft.core.schedule.plan import NewRow, StepPlan

CPU = torch.device("cpu")
# Learned positions, partial rotary, parallel residuals, fused qkv, one kv head, norms elsewhere, scaled logits,
# experts, windows on some layers, capped scores, sinks, latent attention.
KINDS: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "gpt_neox": {"rotary_pct": 0.25},
    "opt": {"ffn_dim": 128, "word_embed_proj_dim": 64},
    "phi": {"partial_rotary_factor": 0.5},
    "olmo2": {},
    "gpt_bigcode": {},
    "cohere": {"logit_scale": 0.25},
    "granite": {"logits_scaling": 3.0, "attention_multiplier": 0.1},
    "starcoder2": {"sliding_window": 12},
    "gemma3_text": {
        "sliding_window": 12,
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "gemma2": {  # caps small enough to be felt
        "sliding_window": 12,
        "head_dim": 16,
        "query_pre_attn_scalar": 1,
        "attn_logit_softcapping": 0.05,
        "final_logit_softcapping": 0.5,
    },
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "gpt_oss": GPT_OSS,
    "deepseek_v3": DEEPSEEK_V3,
}


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def greedy_reference(folder: Path, prompts: list[np.ndarray], steps: int) -> list[list[int]]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    out = []
    for prompt in prompts:
        ids = torch.from_numpy(prompt.astype(np.int64))[None]
        with torch.inference_mode():
            for _ in range(steps):
                ids = torch.cat(
                    [ids, model(input_ids=ids, use_cache=False).logits[:, -1].argmax(-1)[None]], dim=1
                )
        out.append(ids[0, len(prompt) :].tolist())
    return out


def greedy_paged(folder: Path, prompts: list[np.ndarray], steps: int, chunk: int) -> list[list[int]]:
    """The executor runs all prompts together, each cut into chunks, so that prefills meet decodes."""
    model = FallbackModel(folder, CPU, torch.float32)
    limits = Limits(num_blocks=64, block_size=4, max_num_seqs=8, max_model_len=64, max_num_batched_tokens=512)
    executor = TorchExecutor.of(Loaded(model, limits))
    executor.open()
    rows, params = range(len(prompts)), SamplingParams(temperature=0.0)
    computed, out = [0 for _ in rows], [[] for _ in rows]
    added = tuple(NewRow(r, str(r), prompts[r].astype(np.int32), len(prompts[r]), params) for r in rows)
    tables = [(r, i, r * 16 + (i * 7) % 16) for r in rows for i in range(16)]
    columns = [np.array(column, np.int32) for column in zip(*tables, strict=True)]
    step = 0
    while any(len(tokens) < steps for tokens in out):
        live = [r for r in rows if len(out[r]) < steps]
        todo = {r: min(chunk, len(prompts[r]) + len(out[r]) - computed[r]) for r in live}
        order = sorted(live, key=lambda r: computed[r] < len(prompts[r]))
        plan = StepPlan(
            step=step,
            rows=np.array(order, np.int32),
            starts=np.array([computed[r] for r in order], np.int32),
            num_tokens=np.array([todo[r] for r in order], np.int32),
            samples=np.array([computed[r] + todo[r] == len(prompts[r]) + len(out[r]) for r in order]),
            num_decodes=sum(computed[r] >= len(prompts[r]) for r in order),
            added=added if step == 0 else (),
            table_rows=columns[0] if step == 0 else columns[0][:0],
            table_indices=columns[1] if step == 0 else columns[1][:0],
            table_blocks=columns[2] if step == 0 else columns[2][:0],
        )
        result = executor.collect(executor.launch(plan))
        for r in order:
            computed[r] += todo[r]
        for r, token in zip(result.rows.tolist(), result.tokens.tolist(), strict=True):
            out[r].append(token)
        step += 1
    executor.close()
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_same_greedy_tokens_as_transformers(make_tiny_model, kind: str) -> None:
    folder = make_tiny_model(kind, **KINDS[kind])
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 256, n) for n in (23, 5, 1)]
    expected = greedy_reference(folder, prompts, 8)
    assert greedy_paged(folder, prompts, 8, chunk=7) == expected
    assert len({tuple(tokens) for tokens in expected}) == 3


def test_the_shape_is_what_attention_asks_for(make_tiny_model) -> None:
    gpt2 = fallback_shape(make_tiny_model("gpt2"))
    assert (gpt2.num_layers, gpt2.num_kv_heads, gpt2.head_dim, gpt2.vocab_size) == (3, 4, 16, 384)
    assert gpt2.max_position_embeddings == 2048
    assert gpt2.eos_token_ids == (257,)
    assert (gpt2.hidden_size, gpt2.num_heads, gpt2.dtype) == (64, 4, "float32")
    assert fallback_shape(make_tiny_model("opt", **KINDS["opt"])).intermediate_size == 128
    assert gpt2.architecture == "GPT2LMHeadModel"
    assert fallback_shape(make_tiny_model("gpt_bigcode")).num_kv_heads == 1
    assert fallback_shape(make_tiny_model("gemma3_text", **KINDS["gemma3_text"])).head_dim == 16


def test_a_model_that_would_compute_something_else_is_refused(
    make_tiny_model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check at load sees a wrong attention, here one that forgets the scale."""
    from camshaft.core.model import plugged_attention

    right = plugged_attention.paged_attention
    monkeypatch.setattr(
        plugged_attention,
        "paged_attention",
        lambda q, k, v, sequences, scale, window, **caps: right(
            q, k, v, sequences, scale * 1.5, window, **caps
        ),
    )
    with pytest.raises(ModelError, match="cannot run over the paged cache: its logits would be off by"):
        FallbackModel(make_tiny_model("gpt2"), CPU, torch.float32)


def test_missing_and_damaged_weights_are_named(make_tiny_model, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    source = make_tiny_model("gpt2")
    for file in source.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(source / "model.safetensors")
    del weights["transformer.h.1.mlp.c_fc.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"1 tensors missing.*h\.1\.mlp\.c_fc\.weight"):
        FallbackModel(tmp_path, CPU, torch.float32)
    (tmp_path / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(ModelError, match="transformers cannot load it"):
        FallbackModel(tmp_path, CPU, torch.float32)
    (tmp_path / "config.json").write_text('{"model_type": "nothing-known"}')
    with pytest.raises(ModelError, match="cannot read its configuration"):
        FallbackModel(tmp_path, CPU, torch.float32)


@pytest.mark.parametrize(("kind", "name"), [("gpt2", "transformer.wpe.weight"), ("mixtral", None)])
def test_a_number_that_is_none_names_file_and_tensor(
    make_tiny_model: Any, tmp_path: Path, kind: str, name: str | None
) -> None:
    """Also one that no trial step meets, and one among tensors that transformers joins."""
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "model"
    shutil.copytree(make_tiny_model(kind, **KINDS[kind]), folder)
    tensors = load_file(folder / "model.safetensors")
    name = name or next(each for each in tensors if "experts" in each)
    tensors[name].view(-1)[-1] = float("nan")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=rf"model\.safetensors: tensor '{name}' holds NaN or infinity at"):
        FallbackModel(folder, CPU, torch.float32)


def test_weights_beyond_the_range_of_a_type_are_refused(make_tiny_model: Any, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "model"
    shutil.copytree(make_tiny_model("gpt2"), folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["transformer.wpe.weight"].view(-1)[-1] = 1e6
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    FallbackModel(folder, CPU, torch.float32)
    with pytest.raises(ModelError, match=r"wpe\.weight.* leaves the range of torch\.float16"):
        FallbackModel(folder, CPU, torch.float16)
