"""A KV cache in FP8: half the bytes, nearly the same logits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from camshaft.core.config import Hardware, ServeConfig
from camshaft.core.errors import ConfigError
from camshaft.core.execute.cache import allocate_cache, copy_blocks
from camshaft.core.execute.limits import Limits, Loaded
from camshaft.core.execute.load import cache_dtype_of, require_fp8
from camshaft.core.execute.torch_executor import TorchExecutor
from camshaft.core.model.select import model_shape, open_model
from camshaft.core.request import SamplingParams
from camshaft.core.schedule.plan import NewRow, StepPlan

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
FP8, BF16 = torch.float8_e4m3fn, torch.bfloat16


def limits(dtype: torch.dtype | None) -> Limits:
    return Limits(
        num_blocks=6,
        block_size=16,
        max_num_seqs=2,
        max_model_len=64,
        max_num_batched_tokens=64,
        cache_dtype=dtype,
    )


def logprob_of_first(folder: Path, dtype: torch.dtype | None) -> float:
    """That of the token drawn after a prompt of 40, whose last 30 tokens read the cache of the first ten."""
    model = open_model(folder, model_shape(folder), CPU, torch.bfloat16)
    executor = TorchExecutor.of(Loaded(model, limits(dtype)))
    executor.open()
    prompt = np.arange(40, dtype=np.int32)
    params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=1)
    one, blocks = np.ones(1, dtype=bool), np.arange(3, dtype=np.int32)
    row, ten, thirty = (np.array([number], dtype=np.int32) for number in (0, 10, 30))
    first = StepPlan(
        0, row, row, ten, ~one, 0, added=(NewRow(0, "a", prompt, 40, params),),
        table_rows=np.zeros(3, np.int32), table_indices=blocks, table_blocks=blocks + 2,
    )  # fmt: skip
    executor.collect(executor.launch(first))
    second = StepPlan(1, row, ten, thirty, one, 0)
    result = executor.collect(executor.launch(second))
    executor.close()
    return float(result.logprobs[0].logprobs[0])


@pytest.mark.parametrize("kind", ["llama", "gpt_oss"])
def test_an_fp8_cache_changes_little(make_tiny_model: Callable[..., Path], kind: str) -> None:
    """In the project's own definition and in transformers'."""
    experts = {"num_local_experts": 4, "num_experts_per_tok": 4, "head_dim": 16} if kind == "gpt_oss" else {}
    folder = make_tiny_model(kind, **experts)
    exact, narrow = (logprob_of_first(folder, dtype) for dtype in (None, FP8))
    assert exact != narrow
    assert narrow == pytest.approx(exact, abs=0.5)


def test_it_takes_half_the_bytes_and_copies_blocks(tiny_llama: Path) -> None:
    model = open_model(tiny_llama, model_shape(tiny_llama), CPU, torch.bfloat16)
    wide, narrow = (allocate_cache(model, limits(dtype)) for dtype in (None, FP8))
    assert wide.k[0].nbytes == 2 * narrow.k[0].nbytes
    narrow.k[0].copy_(torch.arange(6.0).view(6, 1, 1, 1).expand_as(narrow.k[0]))
    copy_blocks(narrow, torch.tensor([1, 4]), torch.tensor([4, 5]))
    assert narrow.k[0][:, 0, 0, 0].tolist() == [0.0, 1.0, 2.0, 3.0, 1.0, 4.0]


def test_only_what_a_kernel_reads_is_served() -> None:
    assert cache_dtype_of("auto", CUDA, BF16) is None
    assert cache_dtype_of("fp8", CPU, BF16) is None  # a CPU's cache has the model's type
    assert cache_dtype_of("fp8_e4m3", CUDA, BF16) is FP8
    assert cache_dtype_of("bfloat16", CUDA, BF16) is None
    with pytest.raises(ConfigError, match="float16"):
        cache_dtype_of("float16", CUDA, BF16)


@pytest.mark.parametrize("knob", ["quantization", "kv_cache_dtype"])
def test_a_gpu_without_fp8_arithmetic_is_told_so(knob: str) -> None:
    config = ServeConfig.model_validate({"model": "m", knob: "fp8"})
    ampere, ada = (
        Hardware(kind="cuda", name=name, memory_bytes=1, compute_capability=capability)
        for name, capability in (("A100", (8, 0)), ("L4", (8, 9)))
    )
    with pytest.raises(ConfigError, match=rf"{knob}: fp8 needs .* 8\.9 .*A100 has 8\.0"):
        require_fp8(config, ampere)
    require_fp8(config, ada)
    require_fp8(config, Hardware(kind="cpu", name="cpu", memory_bytes=1))
    require_fp8(ServeConfig(model="m"), ampere)
