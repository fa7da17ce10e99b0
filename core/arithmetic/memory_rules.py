"""How this engine and vLLM's releases count a device's memory."""

from __future__ import annotations

from dataclasses import replace

from ..releases import vllm_release
from .memory import GIB, MemoryRule

CAMSHAFT_CUDA = MemoryRule(
    name="camshaft (cuda)",
    sampler_copies=4.0,
    context_bytes=int(0.2 * GIB),
    communication_bytes=int(0.6 * GIB),
    graphs_counted=True,
    graph_bytes=200_000,
    window_aware=False,
    useful_only=True,
)
CAMSHAFT_CPU = replace(
    CAMSHAFT_CUDA,
    name="camshaft (cpu)",
    sampler_copies=6.0,
    context_bytes=int(0.75 * GIB),
    communication_bytes=0,
    graph_bytes=0,
    cache_limit_bytes=4 * GIB,  # a host's memory is not the engine's alone
)


def vllm_rule(version: str) -> MemoryRule:
    """vLLM's rule at a release (0.18.0 gpu_worker.py:387-440, 0.33.0 gpu_worker.py:641-820).

    0.20.0 began to subtract an estimate of the captured graphs and raised the default utilisation to
    0.92. The figures come from start-up logs on an H100 (79.18 GiB reported, 1,024 sequences): the peaks of 70B
    (4.84 GiB), 8B (4.76) and gpt-oss-20b (7.38) fit 9.45 float32 copies of the logits plus the hidden
    state and residual at 8,192 tokens; what remains is 0.13 GiB on one GPU and 0.54 on two. A sampler that does not
    sort holds the 16-bit logits, the float32 ones, the masked ones and probabilities.
    Raises ConfigError for a version that is not numbers and dots.
    """
    modern = vllm_release(version) >= (0, 20)
    return MemoryRule(
        name=f"vllm {version}",
        sampler_copies=9.45 if sorts_logits(version) else 4.0,
        context_bytes=int(0.13 * GIB),
        communication_bytes=int(0.41 * GIB),
        graphs_counted=modern,
        graph_bytes=600_000,  # 1.03 GiB for gpt-oss-120b: 36 layers, 51 sizes
        window_aware=vllm_release(version) >= (0, 10),
        default_utilization=0.92 if modern else 0.9,
        packed_row_multiple=256,  # 13.47 and 64.38 GiB of gpt-oss-20b and -120b
    )


def sorts_logits(version: str) -> bool:
    """Whether vLLM's sampler sorts every row's logits for top-k and top-p, as PyTorch's way of it does.

    0.17.0 brought a Triton kernel for 8 rows and more, 0.21.0 made FlashInfer's sampler the default
    (v1/sample/ops/topk_topp_sampler.py). 0.9.0 to 0.11.0 used FlashInfer's where it was installed, as in vLLM's
    images; it is counted as absent here, which is what a plain installation had.
    Raises ConfigError for a version that is not numbers and dots.
    """
    return vllm_release(version) < (0, 17)
