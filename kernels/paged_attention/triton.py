"""Triton on CUDA: a decode kernel and a prefill kernel over one mixed batch, without a host round trip."""

from __future__ import annotations

import torch

from .. import checks, launch
from ..memory import DeviceScratch
from . import Sequences, decode
from .prefill import prefill_kernel

_PARTIAL, _SUMS = DeviceScratch(), DeviceScratch()


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    sequences: Sequences,
    scale: float,
    window: int | None,
    out: torch.Tensor,
    *,
    kv_scales: tuple[float, float] = (1.0, 1.0),
    soft_cap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> None:
    """As the op. K and V may be float8_e4m3fn; they are then multiplied by `kv_scales`.

    Raises KernelInputError, a ValueError.
    """
    _check(q, k_cache, v_cache, sequences, out, sinks)
    num_kv_heads, block_size, head_dim = k_cache.shape[1:]
    group = q.shape[1] // (head_dim * num_kv_heads)
    dim = launch.next_power_of_2(head_dim)
    n = sequences.context_lens.shape[0]
    window_and_cap = {"HAS_WINDOW": window is not None, "HAS_CAP": soft_cap is not None}
    scales = (scale, *kv_scales, soft_cap or 1.0, window or 0)
    if sequences.num_decodes:
        _decode(q, k_cache, v_cache, sequences, out, sinks, scales, window_and_cap)
    if n > sequences.num_decodes:
        longest = sequences.max_query_len * group
        capability, windowed = launch.capability(q.device), window is not None
        wide, narrow = q.element_size() > 2, k_cache.element_size() == 1
        rows, tile, edge, warps, stages = prefill_plan(
            capability, longest, dim, wide=wide, narrow=narrow, windowed=windowed
        )
        tokens = rows // group
        prefill_kernel[(q.shape[0] // tokens + n, num_kv_heads)](
            q, k_cache, v_cache, out, sequences.block_tables, sequences.context_lens, sequences.query_starts,
            sinks, *scales,
            q.stride(0), out.stride(0), sequences.block_tables.stride(0), n, num_kv_heads,
            sequences.num_decodes,
            GROUP=group, HEAD_DIM=head_dim, DIM=dim, BLOCK_SIZE=block_size, ROWS=rows, TILE_N=tile, EDGE_N=edge,
            **window_and_cap, num_warps=warps, num_stages=stages,
            maxnreg=most_registers(capability, dim, narrow, windowed),
        )  # fmt: skip


def _decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    sequences: Sequences,
    out: torch.Tensor,
    sinks: torch.Tensor | None,
    scales: tuple[float, float, float, float, int],
    window_and_cap: dict[str, bool],
) -> None:
    num_kv_heads, block_size, head_dim = k_cache.shape[1:]
    group = q.shape[1] // (head_dim * num_kv_heads)
    heads, count = num_kv_heads * group, sequences.num_decodes
    dim = launch.next_power_of_2(head_dim)
    slots = launch.cdiv(decode.PROGRAMS_PER_SM * launch.num_sms(q.device), num_kv_heads)
    rows = (slots + count) * heads
    partial, sums = _PARTIAL(q.device, rows * head_dim), _SUMS(q.device, rows * 2)
    contexts, tables = sequences.context_lens, sequences.block_tables
    tile = decode.tile_keys(dim, q.element_size() > 2)
    sizes = {"HEAD_DIM": head_dim, "DIM": dim, "TILE_N": tile, "LEAST": decode.MIN_KEYS // tile}
    sizes["SEQUENCES"] = max(32, launch.next_power_of_2(count))
    decode.decode_kernel[(num_kv_heads, slots + count)](
        q, k_cache, v_cache, out, partial, sums, tables, contexts, sinks, *scales, 1.0,
        q.stride(0), out.stride(0), tables.stride(0), num_kv_heads, count, slots,
        GROUP=group, ROWS=max(16, launch.next_power_of_2(group)), BLOCK_SIZE=block_size,
        **sizes, **window_and_cap, num_warps=4, num_stages=decode.STAGES,
    )  # fmt: skip
    each = 1 if count * heads <= decode.MERGE_PROGRAMS else group
    decode.merge_kernel[(count, heads // each)](
        out, partial, sums, contexts, sinks, scales[2], scales[4], out.stride(0), heads, count, slots,
        HEADS=each, SHARES=launch.next_power_of_2(slots + 1), MERGED=decode.MERGED,
        HAS_WINDOW=window_and_cap["HAS_WINDOW"], **sizes, num_warps=4,
    )  # fmt: skip


def _check(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    sequences: Sequences,
    out: torch.Tensor,
    sinks: torch.Tensor | None,
) -> None:
    op, device = "paged_attention", q.device
    checks.check_tensor(op, "q", q, device, checks.HALVES)
    checks.check_tensor(op, "out", out, device, (q.dtype,))
    checks.check_tensor(op, "k_cache", k_cache, device, checks.CACHES, whole=True)
    checks.check_tensor(op, "v_cache", v_cache, device, (k_cache.dtype,), whole=True)
    checks.check_tensor(op, "block_tables", sequences.block_tables, device, checks.INTEGERS)
    checks.check_tensor(op, "context_lens", sequences.context_lens, device, checks.INTEGERS, whole=True)
    checks.check_tensor(op, "query_starts", sequences.query_starts, device, checks.INTEGERS, whole=True)
    if sinks is not None:
        checks.check_tensor(op, "sinks", sinks, device, checks.HALVES, whole=True)
    n = sequences.context_lens.shape[0]
    checks.check_size(op, "query_starts", sequences.query_starts, (n + 1,))
    checks.check_size(op, "block_tables", sequences.block_tables, (n, sequences.block_tables.shape[-1]))
    if not 0 <= sequences.num_decodes <= n:
        raise checks.KernelInputError(op, "num_decodes", f"is {sequences.num_decodes} of {n} sequences")
    if checks.debugging():
        block_size, num_blocks = k_cache.shape[2], k_cache.shape[0]
        checks.check_tables(op, sequences.block_tables, sequences.context_lens, block_size, num_blocks)


def prefill_plan(
    capability: tuple[int, int], longest: int, dim: int, *, wide: bool = False, narrow: bool = False, windowed: bool = False
) -> tuple[int, int, int, int, int]:  # fmt: skip
    """(query rows, keys of a loop turn, keys of one under a mask, warps, stages) of a prefill program: the most
    that spills no registers. A tile is fetched while another is worked on from five stages on, two with seven.

    `longest` is the largest number of query rows of one sequence and KV head. `wide`: numbers of 32 bits, in which
    nobody is in a hurry; they need but fit. `narrow`: a cache of FP8.
    """
    few, is_older = longest <= 64, not launch.has_warpgroups(capability)
    if wide:
        return (64, 32, 32, 8, 3) if dim <= 128 else (32 if is_older else 64, 16, 16, 4 if is_older else 8, 3)
    if dim > 128:
        if is_older:  # on an A100 five stages fit as well, on its smaller kin they do not
            return 64, 32, 32, 8, 5 if capability == (8, 0) else 3
        keys = 16 if most_registers(capability, dim, narrow, windowed) else 32
        return 128, keys, keys, 8, 5
    if is_older:
        return (64, 64, 64, 8, 5) if few else (128, 64, 64, 8, 5) if dim <= 64 else (128, 32, 32, 8, 5)
    if few:
        return 64, 64, 64, 4, 5
    return (128, 128, 64, 8, 5) if capability < (10, 0) else (128, 64, 64, 8, 7)


def most_registers(capability: tuple[int, int], dim: int, narrow: bool, windowed: bool) -> int | None:
    """Registers that the compiler may give a thread of a prefill program; None leaves it to the assembler. On Blackwell
    results pass through registers at every turn: beside what masks a window, and widens FP8 or is of small heads, the
    assembler would rather spill some than let fewer programs on an SM.
    """
    return 255 if windowed and (narrow or dim <= 64) and capability >= (10, 0) else None
