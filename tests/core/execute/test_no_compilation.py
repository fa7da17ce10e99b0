"""After `open` no step waits for a compiler: every kernel variant that any step launches was launched before."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from device_support import FakeAccelerator, int32
from variants import Variants

from camshaft.core.execute.limits import Limits, Loaded
from camshaft.core.execute.torch_executor import TorchExecutor
from camshaft.core.model import fp8
from camshaft.core.request import SamplingParams
from camshaft.core.schedule.plan import NewRow, StepPlan

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.gpu.check import Place
from tests.gpu.model_checks import models
from tests.gpu.synthetic import llama

ROWS, LENGTH, TOKENS, PAGE = 70, 500, 600, 16
ASKS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.7, top_p=0.9, seed=3),
    SamplingParams(temperature=0.0, logprobs=1, repetition_penalty=1.1, prompt_logprobs=1),
]
CPU = torch.device("cpu")


def steps_of_every_size(executor: TorchExecutor) -> None:
    """Prompts, decodes and both together, of sizes even and odd, small and large."""
    blocks = -(-LENGTH // PAGE)
    every = int32(range(ROWS))
    tables = np.stack(np.meshgrid(every, np.arange(blocks), indexing="ij"), -1).reshape(-1, 2)

    def run(decodes: int, prompts: list[int], position: int = 3, padding: int = 0) -> None:
        rows = int32(range(decodes + len(prompts)))
        plan = StepPlan(
            0, rows, int32([position] * decodes + [0] * len(prompts)), int32([1] * decodes + prompts),
            np.ones(len(rows), bool), decodes, padding=padding,
            added=tuple(
                NewRow(decodes + i, str(i), int32(np.arange(count) % 200), count, ASKS[(decodes + i) % 3])
                for i, count in enumerate(prompts)
            ),
            table_rows=int32(tables[:, 0]), table_indices=int32(tables[:, 1]),
            table_blocks=int32(tables[:, 0] * blocks + tables[:, 1]),
        )  # fmt: skip
        executor.collect(executor.launch(plan))

    for count in (*range(1, 20), 31, 32, 33, 47, 48, 63, 64, 65, ROWS):
        run(count, [], position=int(count * 7))
    for total in (1, 2, 3, 7, 15, 16, 17, 33, 64, 65, 100, 127, 128, 129, 255, 257, 384, 490):
        run(0, [total])
        run(min(total, 9), [total, 5])
    run(0, [9] * ROWS)
    run(3, [40], padding=13)
    run(3, [], padding=1)


SIZES = (1, 2, 4, 8, 16, 64)


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("llama-bf16", SIZES), ("llama-fp8", ()), ("llama-fp8", SIZES), ("llama-fp8-blocks", ()),
        ("qwen3", ()), ("mixtral", ()), ("gpt_oss_mxfp4", ()), ("gpt_oss_mxfp4", SIZES),
    ],
)  # fmt: skip
def test_what_steps_launch_was_launched_when_the_engine_opened(
    kind: str, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fp8, "keeps_fp8", lambda device: "fp8" in kind)
    if kind.startswith("llama"):
        model = llama("tiny", CPU, torch.bfloat16, blocked="blocks" in kind)
    else:
        model = models(kind, Place(CPU, torch.bfloat16))[1]
    variants = Variants()
    variants.install(monkeypatch)
    limits = Limits(
        num_blocks=ROWS * -(-LENGTH // PAGE), block_size=PAGE, max_num_seqs=ROWS, max_model_len=LENGTH,
        max_num_batched_tokens=TOKENS, capture_sizes=sizes,
        cache_dtype=torch.float8_e4m3fn if kind == "llama-fp8" else None,
    )  # fmt: skip
    executor = TorchExecutor.of(Loaded(model, limits), FakeAccelerator())
    executor.open()
    before, launches = set(variants.seen), variants.launches
    steps_of_every_size(executor)
    assert variants.launches > launches + 500
    assert {name for name, _ in before} >= {
        "decode_kernel",
        "merge_kernel",
        "prefill_kernel",
        "sample_kernel",
    }
    late = sorted(variants.seen - before)
    assert not late, "\n".join(f"{name}: {key}" for name, key in late[:5])


def test_a_kernel_that_is_keyed_by_a_changing_number_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    from camshaft.kernels.rms_norm import rms_norm

    variants = Variants()
    variants.install(monkeypatch)
    for width in (8, 16, 17, 18, 33):
        rms_norm(torch.ones(2, width), torch.ones(width), 1e-5)
    assert len(variants.seen) == 4
