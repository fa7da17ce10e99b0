"""Published runs of vLLM that nothing was fitted to: throughput of whole loads sent at once, by GPUStack's performance lab
(github.com/gpustack/gpustack, docs/performance-lab; `vllm bench serve`, random prompts of one length).
"""

from __future__ import annotations

import pytest

from camshaft.core.config import load_config
from camshaft.core.workload import load_workload
from camshaft.diagnostics.cost.hardware import load_hardware
from camshaft.diagnostics.simulate import EngineKind, prepare


@pytest.mark.parametrize(
    ("model", "gpu", "devices", "version", "requests", "inputs", "outputs", "tokens_per_s", "within"),
    [
        ("openai/gpt-oss-120b", "H100", 2, "0.10.2", 500, 3998, 136, 1135, 0.15),
        ("openai/gpt-oss-120b", "H100", 2, "0.10.2", 500, 1998, 98, 1595, 0.15),
        ("openai/gpt-oss-20b", "H100", 1, "0.11.0", 500, 3998, 105, 847, 0.15),
        ("openai/gpt-oss-20b", "A100", 1, "0.11.0", 500, 3998, 107, 416, 0.25),
        ("deepseek-ai/DeepSeek-R1", "H200", 8, "0.11.0", 500, 3995, 200, 754, 0.2),
        ("zai-org/GLM-4.5-Air", "A100", 4, "0.11.0", 100, 32000, 100, 20, 0.3),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507", "A100", 8, "0.11.0", 500, 3996, 183, 357, 0.25),
        ("Qwen/Qwen3-14B", "A100", 1, "0.11.0", 500, 3995, 200, 245, 0.35),
    ],
)
def test_throughput_of_runs_that_nothing_was_fitted_to(
    model: str, gpu: str, devices: int, version: str, requests: int, inputs: int, outputs: int,
    tokens_per_s: float, within: float,
) -> None:  # fmt: skip
    loaded = load_config(
        {"model": model, "tensor_parallel_size": devices, "max_model_len": 32768 + 512}, purpose="inspect"
    )
    found = prepare(loaded, load_hardware(gpu), engine=EngineKind("vllm", version))
    arrival = {"kind": "closed", "concurrency": requests, "requests": requests}
    done = found.replay(load_workload({"arrival": arrival, "input_tokens": inputs, "output_tokens": outputs}))
    assert done.result.throughput_output_tokens_per_s == pytest.approx(tokens_per_s, rel=within)
