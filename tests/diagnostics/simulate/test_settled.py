"""What an engine makes of the knobs, by release: whether graphs of decodes hold attention."""

from __future__ import annotations

from typing import Any

import pytest

from camshaft.core.config import load_config
from camshaft.core.workload import load_workload
from camshaft.diagnostics.cost.hardware import load_hardware
from camshaft.diagnostics.simulate import EngineKind, prepare
from camshaft.diagnostics.simulate.settled import attention_in_graphs


@pytest.mark.parametrize(
    ("version", "compiled", "inside"),
    [
        ("0.7.3", None, True),
        ("0.8.0", None, False),
        ("0.10.2", None, False),
        ("0.11.0", None, True),
        ("0.10.2", {"full_cuda_graph": True}, True),
        ("0.10.2", {"cudagraph_mode": "FULL"}, True),
        ("0.18.0", {"cudagraph_mode": "PIECEWISE"}, False),
        ("0.18.0", {"cudagraph_mode": None}, True),
    ],
)
def test_attention_lies_in_graphs_by_release_and_mode(
    version: str, compiled: dict[str, Any] | None, inside: bool
) -> None:
    foreign = {} if compiled is None else {"compilation_config": compiled}
    assert attention_in_graphs(foreign, EngineKind("vllm", version)) == inside
    assert attention_in_graphs({}, EngineKind())


def test_one_request_to_many_small_experts_waits_for_launches_before_0_11() -> None:
    """77.5 tokens/s of gpt-oss-120b on two A100 under 0.10.1 (vLLM, issue 22331), to which nothing was fitted."""
    chosen = load_config({"model": "openai/gpt-oss-120b", "tensor_parallel_size": 2}, purpose="inspect")
    arrival = {"kind": "closed", "concurrency": 1, "requests": 4}
    load = load_workload({"arrival": arrival, "input_tokens": 100, "output_tokens": 500})
    before, after = (
        prepare(chosen, load_hardware("a100"), engine=EngineKind("vllm", version)).replay(load).result
        for version in ("0.10.1", "0.11.0")
    )
    assert before.throughput_output_tokens_per_s == pytest.approx(77.5, rel=0.1)
    assert after.throughput_output_tokens_per_s > 2 * before.throughput_output_tokens_per_s
