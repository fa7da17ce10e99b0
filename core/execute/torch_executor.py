"""Runs step plans with torch on one device: rows and cache live there, a step is one forward pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..errors import CapacityError, EngineError, OutOfMemory
from ..model.base import Model
from ..model.batch import PagedCache
from ..request import Logprob
from ..sample.on_device import DeviceSampler
from ..sample.sampler import Sampler
from ..schedule.plan import StepPlan, StepResult
from .accelerator import Accelerator, CatchOutOfMemory, accelerator_of
from .base import Capacity
from .cache import allocate_cache, copy_blocks
from .device_open import open_on_device
from .device_steps import DeviceStep, DeviceSteps
from .limits import Limits, Loaded
from .prompt_scores import PromptChunk, PromptScores
from .results import Results
from .rows import RowState

if TYPE_CHECKING:
    from ..config import ServeConfig


@dataclass(slots=True)
class HostStep:
    """A step on the host, done when it was launched."""

    plan: StepPlan
    tokens: torch.Tensor
    logprobs: dict[int, Logprob]
    chunks: list[PromptChunk]
    failed: dict[int, str]

    def results(self) -> Results:
        """What came of it."""
        prompts = {chunk.new.row: chunk.entries() for chunk in self.chunks}
        tokens = self.tokens.numpy().astype(np.int32)
        return Results(tokens, self.logprobs, prompts, self.failed)


@dataclass(slots=True)
class _Running:
    """A step between launch and collect."""

    started_s: float
    step: HostStep | DeviceStep


class TorchExecutor:
    """Implements `Executor`. Not safe for several threads."""

    def __init__(self, load: Callable[[], Loaded], accelerator: Accelerator | None = None) -> None:
        """`open` calls `load`; `accelerator` replaces that of the model's device."""
        self._load = load
        self._reset()
        self._accelerator = accelerator

    @classmethod
    def from_config(cls, config: ServeConfig) -> TorchExecutor:
        """For a resolved configuration; nothing is loaded before `open`."""

        def load() -> Loaded:
            from .load import load_model

            return load_model(config)

        return cls(load)

    @classmethod
    def of(cls, loaded: Loaded, accelerator: Accelerator | None = None) -> TorchExecutor:
        """Around a model that is already loaded."""
        return cls(lambda: loaded, accelerator)

    def _reset(self) -> None:
        self._model: Model | None = None
        self._accelerator: Accelerator | None = None
        self._steps: DeviceSteps | None = None  # None where the host computes
        # Of which nothing is taken over yet: this launch's plan, behind those that failed before it.
        self._changes: list[StepPlan] = []

    def open(self) -> Capacity:
        """As `Executor.open`; runs one small step, so that no request pays for compilation."""
        with CatchOutOfMemory() as caught:
            return self._open()
        raise CapacityError(
            f"no memory for the model and its cache: {caught.reason}. Lower kv_cache_memory_bytes, max_num_seqs or "
            "max_num_batched_tokens, or lift what limits this process (ulimit -v, a container's memory)."
        )

    def _open(self) -> Capacity:
        loaded = self._load()
        model, limits = loaded.model, loaded.limits
        shape = model.shape
        if self._accelerator is None:
            self._accelerator = accelerator_of(model.device)
        self._rows = RowState(
            limits.max_num_seqs, limits.max_model_len, limits.block_size, model.device, self._accelerator
        )
        if self._accelerator is None:
            self._scores = PromptScores()
            self._sampler = Sampler(shape.vocab_size, shape.eos_token_ids, limits.seed)
            self._cache = allocate_cache(model, limits)
        else:
            send = self._accelerator.send
            self._scores = PromptScores(send)
            known = self._rows.tokens
            sampler = DeviceSampler(shape.vocab_size, shape.eos_token_ids, limits.seed, known, send)
            opened = open_on_device(loaded, self._rows, sampler, self._scores, self._accelerator)
            self._sampler, self._cache = sampler, opened.cache
            self._steps, limits = opened.steps, opened.limits
        self._model = model
        self._warm_up(limits)
        return Capacity(
            num_blocks=limits.num_blocks,
            block_size=limits.block_size,
            max_model_len=limits.max_model_len,
            max_num_seqs=limits.max_num_seqs,
            vocab_size=shape.vocab_size,
            eos_token_ids=shape.eos_token_ids,
            memory=limits.memory,
        )

    def launch(self, plan: StepPlan) -> _Running:
        """Starts a step. On a CPU the work is done when this returns. Raises OutOfMemory; then the step has not
        run, and the next launch still takes over what changed with it.
        """
        started_s = time.perf_counter()
        with CatchOutOfMemory() as caught:
            return _Running(started_s, self._launch(plan))
        raise OutOfMemory(f"a step of {plan.total_tokens} tokens: {caught.reason}")

    @torch.inference_mode()
    def _launch(self, plan: StepPlan) -> HostStep | DeviceStep:
        model = self._model
        if model is None:
            raise EngineError("the executor is not open")
        self._changes.append(plan)
        while self._changes:  # each once: what a step writes may stand where an earlier one copied from
            self._change_rows(self._changes[0])
            del self._changes[0]
        step = self._steps.launch(plan) if self._steps is not None else self._on_host(plan, model)
        self._scores.launched(step.chunks)
        return step

    def _on_host(self, plan: StepPlan, model: Model) -> HostStep:
        batch = self._rows.batch(plan, self._scores.indices(plan))
        logits = model.forward(batch, self._cache)
        sampled = plan.rows[plan.samples]
        chunks = self._scores.score(plan, logits[len(sampled) :])
        assert isinstance(self._sampler, Sampler)
        tokens, logprobs = self._sampler.sample(logits[: len(sampled)], sampled)
        self._rows.append(plan, tokens)
        return HostStep(plan, tokens, logprobs, chunks, dict(self._sampler.failed))

    def collect(self, handle: _Running) -> StepResult:
        """Waits for a launched step. Raises OutOfMemory; then nothing of the step came back."""
        step = handle.step
        with CatchOutOfMemory() as caught:
            results = step.results()
            return StepResult(
                step=step.plan.step,
                rows=step.plan.rows[step.plan.samples],
                tokens=results.tokens,
                duration_ms=(time.perf_counter() - handle.started_s) * 1e3,
                logprobs=results.logprobs,
                prompt_logprobs=results.prompt_logprobs,
                failed=results.failed,
                extra=results.figures,
            )
        raise OutOfMemory(f"a step of {step.plan.total_tokens} tokens: {caught.reason}")

    def relieve(self) -> None:
        """Gives memory that no tensor uses back to the device."""
        if self._accelerator is not None:
            self._accelerator.release_cached()

    def close(self) -> None:
        """Frees model, cache, rows and graphs; safe to call twice."""
        self._reset()
        self._cache = PagedCache([], [], 1)
        self._rows = RowState(0, 0, 1, torch.device("cpu"))

    def _change_rows(self, plan: StepPlan) -> None:
        """Takes over what changed since the plan before. Where it fails, doing so again does no harm."""
        for row in plan.removed.tolist():
            self._sampler.remove(row)
            self._scores.remove(row)
        for new in plan.added:
            self._sampler.add(new.row, new.params, new.tokens[: new.prompt_len], new.tokens[new.prompt_len :])
            self._scores.add(new)
        self._rows.apply(plan)
        if isinstance(self._sampler, DeviceSampler):
            self._sampler.flush()
        if len(plan.copies):
            sources, targets = self._rows.send(plan.copies[:, 0], plan.copies[:, 1])
            copy_blocks(self._cache, sources, targets)

    def _warm_up(self, limits: Limits) -> None:
        """Two sequences, a decode and a prefill, written into blocks that nobody holds yet."""
        if limits.num_blocks < 2 or limits.max_num_seqs < 2 or limits.max_model_len < 2:
            return
        plan = StepPlan(
            step=-1,
            rows=np.array([0, 1], dtype=np.int32),
            starts=np.zeros(2, dtype=np.int32),
            num_tokens=np.array([1, min(2, limits.block_size)], dtype=np.int32),
            samples=np.ones(2, dtype=bool),
            num_decodes=1,
            table_rows=np.array([0, 1], dtype=np.int32),
            table_indices=np.zeros(2, dtype=np.int32),
            table_blocks=np.array([0, 1], dtype=np.int32),
        )
        self.collect(self.launch(plan))
