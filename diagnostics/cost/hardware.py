"""Hardware sheets: what a device can do and how much of it real kernels reach, as data with a source.

A sheet is YAML under `presets/hardware`. A device that nobody measured states its specification and
takes the efficiency curves of the nearest measured one (`curves_of`); predictions say so.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from ...core.arithmetic.memory import GIB
from ...core.errors import EvidenceError
from .devices import FOLDER, UnknownDevice, find_device, read_mapping, without_count


class Sheet(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Base: unknown keys are refused."""


class GemmCurve(Sheet, frozen=True):
    """Share of the roofline that a product [m, k] x [k, n] reaches, on a grid; the rest is interpolated.

    time = floor_us + max(bytes / bandwidth, FLOPs / peak) / efficiency
    """

    floor_us: float
    tokens: list[int]
    n: list[int]
    k: list[int]
    efficiency_percent: list[list[list[float]]]  # [tokens][n][k]
    source: str


class DecodeAttention(Sheet, frozen=True):
    """One layer's attention for a batch of single tokens, in microseconds.

    time = floor_us + us_per_kv_head x sequences x KV heads + us_per_head x sequences x heads
         + bytes of cache / (bandwidth x bandwidth_share)
    """

    floor_us: float
    us_per_kv_head: float
    us_per_head: float
    bandwidth_share: float
    mean_error_percent: float
    source: str


class PrefillAttention(Sheet, frozen=True):
    """One layer's attention for chunks of prompts, in microseconds.

    time = floor_us + us_per_mega_element x (tokens x heads x head size / 1e6)
         + FLOPs of causal pairs / (peak x compute_share)
    """

    floor_us: float
    us_per_mega_element: float
    compute_share: float
    mean_error_percent: float
    source: str


class AllReduce(Sheet, frozen=True):
    """Microseconds of an all-reduce of `bytes`, interpolated between the points."""

    bytes: list[int]
    us: list[float]
    source: str


class Elementwise(Sheet, frozen=True):
    """Norms, rotary embedding, activation, quantisation, cache writes: small kernels between products."""

    floor_us: float  # of each kernel, in a captured graph
    bandwidth_share: float
    sort_us_per_mega_logit: float  # drawing with top-k or top-p: a sort of each row's logits
    source: str


class Host(Sheet, frozen=True):
    """What the processor beside the device spends on a step, in microseconds."""

    step_us: float  # scheduling, input preparation, reading results
    unhidden_us: float  # of these, what even asynchronous scheduling cannot hide
    sequence_us: float  # taking in one sequence's token; never hidden
    layer_launch_us: float  # launching one layer's kernels without a graph (compiled)
    eager_layer_launch_us: float  # the same with enforce_eager
    request_latency_us: float  # from the client to the waiting queue
    frontend_request_us: float  # processor time of the HTTP process for a request
    frontend_token_us: float  # the same for a streamed token
    source: str


class ErrorBand(Sheet, frozen=True):
    """Mean absolute error of predictions with this sheet, in percent, where it was compared."""

    tpot_percent: float
    ttft_percent: float
    moe_tpot_percent: float  # the same for mixtures of experts
    moe_ttft_percent: float
    source: str


class Jitter(Sheet, frozen=True):
    """How steps scatter: their time over the median, at evenly spaced quantiles (0.5/n, 1.5/n, ...).

    Replays draw from it, so that the slowest of many steps is as slow as it would be.
    """

    decode: list[float]  # steps of decodes alone
    prefill: list[float]  # steps with chunks of prompts
    source: str


class HardwareSheet(Sheet, frozen=True):
    """One device. Bandwidths and peaks are the vendor's dense figures."""

    name: str
    aliases: list[str]
    source: str
    memory_gib: float  # as the driver reports it
    memory_bandwidth_gb_s: float
    compute_tflops: dict[str, float]  # by type, without sparsity
    l2_mib: float
    compute_capability: str
    host: Host
    error_band: ErrorBand
    elementwise: Elementwise
    gemm: dict[str, GemmCurve]
    decode_attention: dict[str, DecodeAttention]  # by cache type: "bfloat16", "fp8"
    prefill_attention: dict[str, PrefillAttention]
    allreduce: dict[str, AllReduce] = {}  # by number of devices; empty: over PCIe
    allreduce_scale: float = 1.0  # of the time beyond the shortest message's
    # What reading the host's memory reaches: PCIe 4.0 x16 unless the sheet says more.
    host_link_gb_s: float = 25.0
    # Of the 16-bit peak, what products reach whose weights are unpacked in the kernel (AWQ, GPTQ, FP8 without FP8 units).
    # Published throughput of 8B, 14B and 32B at full batches on A100: 0.65 to 0.75 of BF16's.
    unpacked_share: float = 0.7
    products_share: float = 1.0  # of the compute that borrowed curves reach, where less was measured
    jitter: Jitter | None = None
    tables_source: str | None = None  # what `diagnostics.cost.fit` names as the source of the curves
    curves_of: str | None = None  # the device whose curves stand in for missing measurements
    device_type: str = "cuda"

    @property
    def memory_bytes(self) -> int:
        return int(self.memory_gib * GIB)

    def peak_flops(self, dtype: str) -> float:
        """FLOP/s of the matrix units in a type; of 16-bit floats where the type is not listed."""
        tflops = self.compute_tflops.get(dtype) or self.compute_tflops.get("bfloat16", 1.0)
        return tflops * 1e12

    @property
    def has_own_products(self) -> bool:
        """Whether the matrix units reach their peak with this architecture's own instructions alone (Hopper, B200)."""
        return self.compute_capability.split(".")[0] in ("9", "10")

    @property
    def measured(self) -> bool:
        return self.curves_of is None


@cache
def load_hardware(name: str) -> HardwareSheet:
    """The sheet called `name` (a file, a sheet's name, or an alias, written as people write it).

    Raises EvidenceError for a name no sheet answers to, with the nearest names.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        return read_hardware(path)
    if (one := without_count(name)) != name:
        raise EvidenceError(
            f"hardware {name!r}: one device is named here; say {one.strip()}, and how many there are with "
            "tensor_parallel_size, pipeline_parallel_size or data_parallel_size"
        )
    try:
        device = find_device(name)
    except UnknownDevice as error:
        raise EvidenceError(str(error)) from error
    if device.sheet is not None:
        return read_hardware(FOLDER / f"{device.sheet}.yaml")
    raise EvidenceError(
        f"hardware {name!r} is {device.name}, of which there is no sheet; `engine config list gpus` lists those there "
        "are, and `engine calibrate` writes one of the machine it stands on"
    )


def read_hardware(path: Path) -> HardwareSheet:
    """Reads one sheet and fills in the curves it borrows. Raises EvidenceError."""
    raw = read_mapping(path)
    borrowed = raw.get("curves_of")
    if borrowed:
        base = read_mapping(FOLDER / f"{borrowed}.yaml")
        raw = {**{key: base[key] for key in _CURVES if key in base}, **raw}
    try:
        return msgspec.convert(raw, HardwareSheet)
    except msgspec.ValidationError as error:
        raise EvidenceError(f"{path.name}: {error}") from error


_CURVES = ("host", "error_band", "elementwise", "gemm", "decode_attention", "prefill_attention", "allreduce")
