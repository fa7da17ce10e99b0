"""Experts in MXFP4 against the format's definition and against transformers' gpt-oss, on the processor."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

from camshaft.kernels.experts.mxfp4 import Mxfp4Weight, make_mxfp4_experts
from camshaft.kernels.experts.mxfp4.packing import FORMS, pack


def drawn(experts: int, rows: int, columns: int, seed: int) -> Mxfp4Weight:
    draw = torch.Generator().manual_seed(seed)
    blocks = torch.randint(0, 256, (experts, rows, columns // 32, 16), dtype=torch.uint8, generator=draw)
    scales = torch.randint(122, 127, (experts, rows, columns // 32), dtype=torch.uint8, generator=draw)
    return Mxfp4Weight(blocks, scales, torch.randn(experts, rows, generator=draw))


def value(bits: int, scale: int) -> float:
    """As OCP Microscaling Formats 1.0 defines E2M1 (section 5.3.3) and E8M0 (5.4.1)."""
    if scale == 255:
        return math.nan
    sign, exponent, mantissa = bits >> 3, bits >> 1 & 3, bits & 1
    size = mantissa / 2 if exponent == 0 else (1 + mantissa / 2) * 2.0 ** (exponent - 1)
    return (-size if sign else size) * 2.0 ** (scale - 127)


def test_every_number_and_scale_is_what_the_format_says() -> None:
    scales = torch.arange(256, dtype=torch.uint8).view(1, 256, 1)
    blocks = (torch.arange(16) * 16 + 15 - torch.arange(16)).to(torch.uint8).expand(1, 256, 1, 16)
    expected = [
        [value(bits, scale) for byte in range(16) for bits in (15 - byte, byte)] for scale in range(256)
    ]
    got = Mxfp4Weight(blocks, scales).dense(torch.float32)
    torch.testing.assert_close(
        got, torch.tensor([expected], dtype=torch.float32), rtol=0, atol=0, equal_nan=True
    )


@pytest.mark.parametrize("rows", [0, 1, 9])
def test_experts_are_those_of_transformers(rows: int) -> None:
    gate_up, down = drawn(4, 2 * 64, 32, seed=1), drawn(4, 32, 64, seed=2)
    config = GptOssConfig(hidden_size=32, intermediate_size=64, num_local_experts=4)
    config._experts_implementation = "eager"
    theirs = GptOssExperts(config)
    for name, weight in (("gate_up_proj", gate_up), ("down_proj", down)):
        getattr(theirs, name).data = weight.dense(torch.float32).transpose(1, 2)
        getattr(theirs, f"{name}_bias").data = weight.bias
    draw = torch.Generator().manual_seed(rows)
    x, residual = 4 * torch.randn(rows, 32, generator=draw), torch.randn(rows, 32, generator=draw)
    ids = torch.rand(rows, 4, generator=draw).topk(2, dim=-1).indices
    weights = torch.rand(rows, 2, generator=draw)
    expected = residual + theirs(x, ids, weights).detach()
    got = make_mxfp4_experts(gate_up, down, torch.float32)(x, ids, weights, residual)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_gates_and_ups_are_cut_where_asked() -> None:
    """Of a row of ones each gate is over 100 and cut to the limit, each up below -100 and cut to less it."""
    scales, both = torch.full((1, 64, 1), 127, dtype=torch.uint8), torch.tensor([100.0, -300.0]).repeat(1, 32)
    gate_up = Mxfp4Weight(torch.full((1, 64, 1, 16), 0x66, dtype=torch.uint8), scales, both)  # all of it 4
    down = Mxfp4Weight(torch.full((1, 32, 1, 16), 0x22, dtype=torch.uint8), scales[:, :32])  # all of it 1
    one, out = torch.ones(1, 1), torch.zeros(1, 32)
    experts = make_mxfp4_experts(gate_up, down, torch.float32, limit=5.0, alpha=0.5)
    experts(one.expand(1, 32).contiguous(), one.long() - 1, one, out)
    inner = (1 - 5) * 5 / (1 + math.exp(-0.5 * 5))
    torch.testing.assert_close(out, torch.full((1, 32), 32 * inner))


@pytest.mark.parametrize("dtype", FORMS)
def test_what_cannot_be_packed_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match="24 rows are no multiple of 16"):
        pack(drawn(2, 24, 32, seed=0), dtype, paired=False)
    weight, largest = drawn(2, 32, 32, seed=0), FORMS[dtype].largest_scale
    weight.scales[1, 5], weight.scales[0, 3] = largest, 255
    pack(weight, dtype, paired=True)
    weight.scales[1, 5] = largest + 1
    with pytest.raises(
        ValueError, match=rf"{dtype} allows scales up to 2\^{largest - 127}, not 2\^{largest - 126}"
    ):
        pack(weight, dtype, paired=True)


def test_weights_that_do_not_fit_are_refused() -> None:
    good = drawn(2, 64, 32, seed=0)
    with pytest.raises(ValueError, match="blocks are"):
        Mxfp4Weight(good.blocks[..., :8], good.scales)
    with pytest.raises(ValueError, match="bias is"):
        Mxfp4Weight(good.blocks, good.scales, torch.zeros(2, 63))
    with pytest.raises(ValueError, match="not uint8"):
        Mxfp4Weight(good.blocks.int(), good.scales)
    for other in ((good.scales.to("meta"), None), (good.scales, torch.zeros(2, 64, device="meta"))):
        with pytest.raises(ValueError, match=r"blocks are on cpu, .* on meta"):
            Mxfp4Weight(good.blocks, *other)
    for down in (drawn(3, 32, 32, seed=0), drawn(2, 32, 64, seed=0), drawn(2, 64, 32, seed=0)):
        with pytest.raises(ValueError, match="do not fit"):
            make_mxfp4_experts(good, down, torch.float32)
    assert make_mxfp4_experts(good, drawn(2, 32, 32, seed=0), torch.float32).weight_bytes == 4 * 6144
    assert good.num_bytes == 2 * 64 * (17 + 4)
