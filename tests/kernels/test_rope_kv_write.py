from __future__ import annotations

import pytest
import torch

from camshaft.kernels.rms_norm import rms_norm
from camshaft.kernels.rope_kv_write import HeadNorm, cpu, reference, rope_kv_write
from camshaft.kernels.silu_mul import silu_mul

HEADS, KV_HEADS, DIM, BLOCK = 6, 2, 32, 8


def table(positions: int) -> torch.Tensor:
    angles = torch.outer(torch.arange(positions).float(), 10000 ** (-torch.arange(0, DIM, 2) / DIM))
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


@pytest.mark.parametrize("tokens", [1, 5, 30])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("implementation", [cpu, reference])
def test_rotates_as_complex_numbers_do_and_writes_where_slots_say(tokens, normed, implementation) -> None:
    torch.manual_seed(tokens)
    qkv = torch.randn(tokens, (HEADS + 2 * KV_HEADS) * DIM)
    original = qkv.clone().view(tokens, -1, DIM)
    positions = torch.randint(0, 100, (tokens,))
    slots = torch.randperm(10 * BLOCK)[:tokens]
    slots[0] = -1
    k = torch.full((10, KV_HEADS, BLOCK, DIM), 5.0)
    v = k.clone()
    norm = HeadNorm(torch.rand(DIM) + 0.5, torch.rand(DIM) + 0.5, 1e-6) if normed else None
    implementation.rope_kv_write(qkv, positions, slots, table(100), k, v, norm)

    turned = original[:, : HEADS + KV_HEADS].double()
    if norm is not None:
        turned = turned / (turned.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
        turned[:, :HEADS] *= norm.q_weight
        turned[:, HEADS:] *= norm.k_weight
    angle = positions[:, None, None] * 10000 ** (-torch.arange(0, DIM, 2).double() / DIM)
    turned = torch.complex(*turned.chunk(2, dim=-1)) * torch.polar(torch.ones_like(angle), angle)
    turned = torch.cat([turned.real, turned.imag], dim=-1).float()
    torch.testing.assert_close(qkv.view(tokens, -1, DIM)[:, :HEADS], turned[:, :HEADS], rtol=1e-4, atol=2e-5)
    written = torch.zeros(10, BLOCK, dtype=torch.bool)
    for t in range(1, tokens):
        block, offset = divmod(int(slots[t]), BLOCK)
        written[block, offset] = True
        torch.testing.assert_close(k[block, :, offset], turned[t, HEADS:], rtol=1e-4, atol=2e-5)
        assert torch.equal(v[block, :, offset], original[t, -KV_HEADS:])
    untouched = ~written[:, None, :, None].expand_as(k)
    assert torch.all(k[untouched] == 5.0)
    assert torch.all(v[untouched] == 5.0)


def test_a_token_has_the_same_bits_in_every_batch() -> None:
    torch.manual_seed(3)
    qkv = torch.randn(40, (HEADS + 2 * KV_HEADS) * DIM)
    norm = HeadNorm(torch.rand(DIM), torch.rand(DIM), 1e-6)
    positions, slots = torch.arange(40), torch.arange(40)
    caches = [torch.zeros(5, KV_HEADS, BLOCK, DIM) for _ in range(4)]
    together = qkv.clone()
    rope_kv_write(together, positions, slots, table(40), caches[0], caches[1], norm)
    for t in range(40):
        one = qkv[t : t + 1].clone()
        rope_kv_write(one, positions[t : t + 1], slots[t : t + 1], table(40), caches[2], caches[3], norm)
        assert torch.equal(one[:, : HEADS * DIM], together[t : t + 1, : HEADS * DIM])
    assert torch.equal(caches[0], caches[2])
    assert torch.equal(caches[1], caches[3])


def test_sizes_that_do_not_fit_are_refused() -> None:
    cache = torch.zeros(1, KV_HEADS, BLOCK, DIM)
    with pytest.raises(ValueError, match="heads of 32"):
        rope_kv_write(
            torch.zeros(1, 100), torch.zeros(1).long(), torch.zeros(1).long(), table(4), cache, cache
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm(dtype: torch.dtype) -> None:
    x, weight = torch.randn(7, 48, dtype=dtype), torch.rand(48, dtype=dtype)
    expected = torch.nn.functional.rms_norm(x.double(), (48,), weight.double(), 1e-5)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(rms_norm(x, weight, 1e-5).double(), expected, rtol=tolerance, atol=tolerance)
    with pytest.raises(ValueError, match="rms_norm"):
        rms_norm(x, weight[:5], 1e-5)


def test_silu_mul() -> None:
    x = torch.randn(7, 48)
    expected = torch.nn.functional.silu(x[:, :24]) * x[:, 24:]
    torch.testing.assert_close(silu_mul(x), expected)
    with pytest.raises(ValueError, match="silu_mul"):
        silu_mul(x, torch.empty(7, 23))
