"""Mixtures of experts on the project's own decoder give transformers' logits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from camshaft.core.arithmetic.shape import ModelShape
from camshaft.core.model import fp8
from camshaft.core.model.batch import ForwardBatch, PagedCache
from camshaft.core.model.decoder import Decoder
from camshaft.core.model.feed_forward import DenseFeedForward, ExpertFeedForward, has_experts
from camshaft.core.model.select import model_shape, open_model
from camshaft.kernels.experts import make_experts, route
from camshaft.kernels.experts.fp8 import Fp8Experts

CPU = torch.device("cpu")
KINDS: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "qwen3_moe": {
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 48,
        "head_dim": 32,
        "mlp_only_layers": [1],
    },
}


def logits(
    model: Any, shape: ModelShape, tokens: torch.Tensor, wanted: torch.Tensor | None = None
) -> torch.Tensor:
    """Those of the `wanted` tokens, else of all."""
    count = len(tokens)
    size = (2, shape.num_kv_heads, 16, shape.head_dim)
    k, v = ([torch.zeros(size) for _ in range(shape.num_layers)] for _ in range(2))
    positions, int32 = torch.arange(count), torch.int32
    batch = ForwardBatch(
        tokens, positions, positions, torch.tensor([0, count], dtype=int32), torch.tensor([count], dtype=int32),
        torch.tensor([[0, 1]], dtype=int32), positions if wanted is None else wanted, 0, count, count,
    )  # fmt: skip
    return model.forward(batch, PagedCache(k, v, 16)).clone()


@pytest.mark.parametrize("renormalise", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_transformers(kind: str, renormalise: bool, make_tiny_model: Callable[..., Path]) -> None:
    extra = {"norm_topk_prob": renormalise} if kind == "qwen3_moe" else {}
    folder = make_tiny_model(kind, **KINDS[kind], **extra)
    shape = model_shape(folder)
    model = open_model(folder, shape, CPU, torch.float32)
    assert isinstance(model, Decoder)
    tokens = torch.randint(0, 250, (23,), generator=torch.Generator().manual_seed(1))
    theirs = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.inference_mode():
        expected = theirs(input_ids=tokens[None]).logits[0]
    got = logits(model, shape, tokens)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    # A token's bits depend on its own past alone.
    assert torch.equal(logits(model, shape, tokens[:9]), got[:9])


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_whose_logits_nobody_wants(kind: str, make_tiny_model: Callable[..., Path]) -> None:
    """The middle of a long prompt, alone in its step: no token reaches the last layer's experts."""
    folder = make_tiny_model(kind, **KINDS[kind])
    shape = model_shape(folder)
    model = open_model(folder, shape, CPU, torch.float32)
    got = logits(model, shape, torch.arange(9), torch.zeros(0, dtype=torch.int64))
    assert got.shape == (0, shape.vocab_size)


def test_layers_without_experts_are_told_apart(make_tiny_model: Callable[..., Path]) -> None:
    folder = make_tiny_model("qwen3_moe", **KINDS["qwen3_moe"])
    shape = model_shape(folder)
    model = open_model(folder, shape, CPU, torch.float32)
    assert isinstance(model, Decoder)
    kinds = [type(layer.feed_forward) for layer in model._layers]
    assert kinds == [ExpertFeedForward, DenseFeedForward, ExpertFeedForward]
    assert [has_experts(shape, i) for i in range(3)] == [True, False, True]


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_experts_quantised_at_load_stay_close(
    kind: str, kept: bool, make_tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounded to FP8 and multiplied out, as on a CPU; and kept in FP8 with inputs in FP8 too, as on a GPU."""
    monkeypatch.setattr(fp8, "keeps_fp8", lambda device: kept)
    folder = make_tiny_model(kind, **KINDS[kind])
    shape = model_shape(folder)
    exact = open_model(folder, shape, CPU, torch.float32)
    narrow = open_model(folder, shape, CPU, torch.float32, quantize_fp8=True)
    assert isinstance(narrow, Decoder)
    layer = narrow._layers[0].feed_forward
    assert isinstance(layer, ExpertFeedForward)
    assert isinstance(layer.experts, Fp8Experts) == kept
    tokens = torch.randint(0, 250, (23,), generator=torch.Generator().manual_seed(1))
    expected, got = (logits(model, shape, tokens) for model in (exact, narrow))
    assert 0 < (got - expected).norm() / expected.norm() < 0.6  # a changed choice of experts costs much


def test_the_router_picks_the_heaviest_and_renormalises() -> None:
    scores = torch.tensor([[1.0, 3.0, 2.0, -1.0]])
    ids, weights = route(scores, 2, renormalise=False)
    assert ids.tolist() == [[1, 2]]
    torch.testing.assert_close(weights[0], scores[0].softmax(0)[[1, 2]])
    assert route(scores, 2, renormalise=True)[1].sum() == pytest.approx(1.0)


def test_expert_sizes_that_do_not_fit_are_refused() -> None:
    gates, downs = [torch.zeros(4, 8)] * 2, [torch.zeros(8, 4)] * 2
    with pytest.raises(ValueError, match="do not fit"):
        make_experts(gates, gates, downs[:1])
    with pytest.raises(ValueError, match="do not fit"):
        make_experts(gates, [torch.zeros(5, 8)] * 2, downs)
