"""The demo model's greedy tokens against transformers', in float32, however the work is scheduled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from camshaft.core.arithmetic.shape import read_shape
from camshaft.core.execute.limits import Limits, Loaded
from camshaft.core.execute.torch_executor import TorchExecutor
from camshaft.core.model.loading import open_weights
from camshaft.core.model.registry import build
from camshaft.core.request import FINISH_LENGTH, Request, SamplingParams
from camshaft.core.schedule.scheduler import Scheduler, SchedulerParams
from camshaft.policies.registry import load_policy

LENGTHS = [10, 11, 15, 16, 17, 24, 31, 40, 64, 65, 90, 128, 150, 200, 256, 333, 400, 600, 1000, 2000]
NEW_TOKENS = 8
TEXT = Path(__file__).parents[3] / "LICENSE"


@pytest.fixture(scope="module")
def prompts(demo_model: Path) -> list[list[int]]:
    ids = Tokenizer.from_file(str(demo_model / "tokenizer.json")).encode(TEXT.read_text()).ids
    return [ids[11 * i : 11 * i + length] for i, length in enumerate(LENGTHS)]


class Reference:
    """What transformers would draw where a text stands: if that is the text, it would have drawn the same one."""

    def __init__(self, folder: Path) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._known: dict[tuple[int, ...], list[int]] = {}  # the tests of this file mostly ask the same

    @torch.inference_mode()
    def draws(self, prompt: list[int], text: list[int]) -> list[int]:
        """The likeliest token after the prompt, after the text's first token, and so on; as many as the text has."""
        ids = (*prompt, *text[:-1])
        if ids not in self._known:
            out = self._model(torch.tensor([ids]), use_cache=False, logits_to_keep=len(text))
            self._known[ids] = out.logits[0].argmax(-1).tolist()
        return self._known[ids]

    def check(self, prompts: list[list[int]], texts: list[list[int]]) -> None:
        assert [len(text) for text in texts] == [NEW_TOKENS] * len(prompts)
        assert texts == [self.draws(prompt, text) for prompt, text in zip(prompts, texts, strict=True)]


@pytest.fixture(scope="module")
def reference(demo_model: Path) -> Reference:
    return Reference(demo_model)


@pytest.fixture(scope="module")
def model(demo_model: Path):
    return build(read_shape(demo_model), open_weights(demo_model), torch.device("cpu"), torch.float32)


def serve(
    model, prompts: list[list[int]], *, num_blocks: int, budget: int, rounds: int = 1
) -> tuple[list[list[int]], Scheduler]:
    """Drawn tokens of the last round, in the order of the prompts, and the scheduler that ran them."""
    limits = Limits(
        num_blocks=num_blocks,
        block_size=16,
        max_num_seqs=20,
        max_model_len=2048,
        max_num_batched_tokens=budget,
    )
    executor = TorchExecutor.of(Loaded(model, limits))
    capacity = executor.open()
    params = SchedulerParams(
        num_blocks=capacity.num_blocks,
        block_size=16,
        max_model_len=2048,
        max_num_seqs=20,
        max_num_batched_tokens=budget,
        enable_prefix_caching=True,
    )
    scheduler = Scheduler(params, load_policy("continuous-chunked").build())
    now = 0.0
    requests: list[Request] = []
    for _ in range(rounds):
        requests = [
            Request(
                id=f"{now}-{i}",
                prompt=torch.tensor(prompt, dtype=torch.int32).numpy(),
                params=SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True),
                arrival_s=now,
            )
            for i, prompt in enumerate(prompts)
        ]
        for request in requests:
            scheduler.add(request, now)
        while scheduler.has_work:
            now += 0.01
            plan = scheduler.schedule(now)
            if plan is not None:
                scheduler.update(executor.collect(executor.launch(plan)), now)
        assert all(request.finish_reason == FINISH_LENGTH for request in requests)
    scheduler.check_integrity()
    executor.close()
    return [request.output for request in requests], scheduler


@pytest.mark.slow
def test_twenty_prompts_equal_transformers_in_small_chunks(model, prompts, reference) -> None:
    got, _ = serve(model, prompts, num_blocks=500, budget=200)
    reference.check(prompts, got)


@pytest.mark.slow
def test_the_same_with_whole_prompts_and_a_warm_prefix_cache(model, prompts, reference) -> None:
    got, scheduler = serve(model, prompts, num_blocks=600, budget=2048, rounds=2)
    reference.check(prompts, got)
    assert scheduler.kv.prefix.hits > 0


@pytest.mark.slow
def test_the_same_with_evictions(model, prompts, reference) -> None:
    """Ten prompts fit 22 blocks, with their answers they need 28."""
    got, scheduler = serve(model, prompts[:10], num_blocks=24, budget=512)
    reference.check(prompts[:10], got)
    assert scheduler.preemptions > 0
