"""Kernels at the shapes of every shipped model sheet, each distinct shape once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from camshaft.kernels.experts import route
from camshaft.kernels.experts.mxfp4 import make_mxfp4_experts, reference
from camshaft.kernels.fp8 import FP8
from camshaft.kernels.linear.fp8 import Fp8Linear, Fp8Weight
from camshaft.kernels.sample import reference as sample_reference
from camshaft.kernels.sample.triton import sample

from . import attention_checks, fp8_checks, row_checks
from .check import Check, Place, seed_all
from .mxfp4_checks import drawn
from .sample_checks import draws_of

SHEETS = Path(__file__).parents[2] / "presets/models"
LARGEST_PRODUCT = 300e6  # elements of a weight: larger ones say no more and take their time


@dataclass(frozen=True, slots=True)
class Sheet:
    """What the kernels see of a model."""

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    window: int | None
    packed_experts: tuple[int, int] | None  # of a mixture in MXFP4: how many, and of these a token's


def sheets() -> list[Sheet]:
    """Of every sheet with plain attention; read by hand, as the script may import no YAML."""
    found = []
    for path in sorted(SHEETS.glob("*.yaml")):
        config = _config(path.read_text())
        if "kv_lora_rank" in config:  # attention over latent vectors
            continue
        heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
        window = config.get("sliding_window", "null")
        found.append(
            Sheet(
                hidden=hidden,
                inner=int(config.get("moe_intermediate_size") or config["intermediate_size"]),
                heads=heads,
                kv_heads=int(config.get("num_key_value_heads", heads)),
                head_dim=int(config.get("head_dim", hidden // heads)),
                vocab=int(config["vocab_size"]),
                window=int(window) if window.isdigit() else None,
                packed_experts=(int(config["num_local_experts"]), int(config["num_experts_per_tok"]))
                if "mxfp4" in config.get("quantization_config", "")
                else None,
            )
        )
    return found


def _config(text: str) -> dict[str, str]:
    """`key: value` lines below `config:`, nested ones under their last key."""
    lines = text.partition("\nconfig:\n")[2].splitlines()
    pairs = [line.split("#")[0].strip().partition(": ") for line in lines if line.startswith(" ")]
    return {key: value.strip() for key, _, value in pairs if value}


def attention(sheet: Sheet) -> Check:
    """Decodes and a chunk of a prompt in one batch, with all heads."""
    lengths = [(1, 700), (1, 33), (1, 1), (70, 300)]
    shape = attention_checks.Shape(
        dim=sheet.head_dim,
        group=sheet.heads // sheet.kv_heads,
        kv_heads=sheet.kv_heads,
        page=16,
        lengths=lengths,
    )
    inner = attention_checks.check(shape)
    return Check(f"sheet-attention-{sheet.heads}h{sheet.kv_heads}-d{sheet.head_dim}", inner.run)


def vocabulary(vocab: int) -> Check:
    def run(place: Place) -> None:
        seed_all(vocab)
        logits = 3 * torch.randn(9, vocab, device=place.device)
        draws = draws_of(9, place.device)
        expected, got = (torch.full((9,), -1, device=place.device) for _ in range(2))
        sample_reference.sample(logits, draws, expected)
        sample(logits, draws, got)
        assert int((got != expected).sum()) <= 1, (got.tolist(), expected.tolist())

    return Check(f"sheet-sample-{vocab}", run)


def product(rows: int, out_features: int, in_features: int, *, blocked: bool) -> Check:
    """An FP8 layer against its weight multiplied out, on the device."""

    def run(place: Place) -> None:
        seed_all(rows)
        values = torch.randn(out_features, in_features, device=place.device, dtype=place.dtype).to(FP8)
        size = (-(-out_features // 128), in_features // 128) if blocked else (out_features,)
        weight = Fp8Weight(values, torch.rand(size, device=place.device) * in_features**-0.5)
        x = place.tensor(rows, in_features)
        expected = torch.nn.functional.linear(x.float(), weight.dense())
        got = Fp8Linear(weight)(x).float()
        error = float((got - expected).norm() / expected.norm())
        assert error < 0.05, f"relative error {error:.3f}"

    return Check(f"sheet-fp8-{rows}x{in_features}x{out_features}{'-blocks' if blocked else ''}", run)


def packed_experts(tokens: int, sheet: Sheet) -> Check:
    """A layer in MXFP4 against the same in 16 bits, whose sums are rounded more often."""
    assert sheet.packed_experts is not None
    experts, top_k = sheet.packed_experts

    def run(place: Place) -> None:
        seed_all(tokens)
        weights = (
            drawn(place, experts, 2 * sheet.inner, sheet.hidden),
            drawn(place, experts, sheet.hidden, sheet.inner),
        )
        x, out = place.tensor(tokens, sheet.hidden), place.tensor(tokens, sheet.hidden)
        chosen = route(place.tensor(tokens, experts), top_k, renormalise=True)
        plain = reference.make_mxfp4_experts(*weights, place.dtype, 7.0, 1.702)
        expected = plain(x, *chosen, out.clone()).float()
        del plain
        got = make_mxfp4_experts(*weights, place.dtype)(x, *chosen, out.clone()).float()
        error = float((got - expected).norm() / (expected - out).norm())
        assert error < 0.02, f"relative error {error:.3f}"

    return Check(f"sheet-experts-mxfp4-{tokens}x{experts}of{top_k}-{sheet.hidden}-{sheet.inner}", run)


def checks() -> list[Check]:
    """Each distinct shape once."""
    all_sheets = sheets()
    heads = {(s.heads, s.kv_heads, s.head_dim): s for s in all_sheets}
    widths = sorted({s.hidden for s in all_sheets})
    products = {(s.inner, s.hidden) for s in all_sheets} | {(s.hidden, s.inner) for s in all_sheets}
    small = sorted(size for size in products if size[0] * size[1] <= LARGEST_PRODUCT and not size[1] % 16)
    made = [
        *(attention(sheet) for sheet in heads.values()),
        *(row_checks.rope(h, kv, dim, 16, norms=False) for h, kv, dim in heads),
        *(row_checks.norm(5, width, residual=residual) for width in widths for residual in (False, True)),
        *(row_checks.gate(3, width) for width in sorted({s.inner for s in all_sheets})),
        *(fp8_checks.quantized(3, width, 0, norm=True, residual=True) for width in widths),
        *(fp8_checks.quantized(3, width, 0, gated=True) for width in sorted({s.inner for s in all_sheets})),
        *(vocabulary(vocab) for vocab in sorted({s.vocab for s in all_sheets})),
        *(product(17, n, k, blocked=False) for n, k in small),
        *(product(65, n, k, blocked=True) for n, k in small if not k % 128),
        # Of one token, a decode batch and a prompt: tiles of 16, 64 and 128 places.
        *(packed_experts(tokens, s) for s in all_sheets if s.packed_experts for tokens in (1, 100, 3000)),
    ]
    return [
        check if check.name.startswith("sheet") else Check(f"sheet-{check.name}", check.run) for check in made
    ]
