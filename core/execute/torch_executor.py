"""Runs step plans with torch on one device: rows and cache live there, a step is one forward pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..errors import EngineError
from ..model.base import Model
from ..model.batch import PagedCache
from ..sample.sampler import Sampler
from ..schedule.plan import StepPlan, StepResult, TokenLogprobs
from .base import Capacity
from .prompt_scores import PromptScores
from .rows import RowState

if TYPE_CHECKING:
    from ..config import ServeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much an executor holds."""

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_model_len: int
    seed: int = 0
    cache_dtype: torch.dtype | None = None  # of K and V; None is the model's
    memory: dict[str, Any] = field(default_factory=dict)  # where the bytes went, for reports


@dataclass(slots=True)
class _Running:
    """A step between launch and collect."""

    plan: StepPlan
    started_s: float
    tokens: torch.Tensor
    logprobs: dict[int, TokenLogprobs]
    prompt_logprobs: dict[int, list[TokenLogprobs]]
    failed: dict[int, str]


class TorchExecutor:
    """Implements `Executor`. Not safe for several threads."""

    def __init__(self, config: ServeConfig) -> None:
        """From a resolved configuration; nothing is loaded before `open`."""

        def load() -> tuple[Model, Limits]:
            from .load import load_model

            return load_model(config)

        self._load: Callable[[], tuple[Model, Limits]] = load
        self._model: Model | None = None

    @classmethod
    def of(cls, model: Model, limits: Limits) -> TorchExecutor:
        """Around a model that is already loaded."""
        self = cls.__new__(cls)
        self._load, self._model = lambda: (model, limits), None
        return self

    def open(self) -> Capacity:
        """As `Executor.open`; runs one small step, so that no request pays for compilation."""
        model, limits = self._load()
        shape = model.shape
        self._model = model
        self._cache = allocate_cache(model, limits)
        self._rows = RowState(limits.max_num_seqs, limits.max_model_len, limits.block_size, model.device)
        self._sampler = Sampler(shape.vocab_size, shape.eos_token_ids, limits.seed)
        self._scores = PromptScores()
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

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> _Running:
        """Starts a step. On a CPU the work is done when this returns."""
        if self._model is None:
            raise EngineError("the executor is not open")
        started_s = time.perf_counter()
        self._change_rows(plan)
        batch = self._rows.batch(plan, self._scores.indices(plan))
        logits = self._model.forward(batch, self._cache)
        sampled = plan.rows[plan.samples]
        prompt_logprobs = self._scores.collect(plan, logits[len(sampled) :])
        tokens, logprobs = self._sampler.sample(logits[: len(sampled)], sampled)
        self._rows.append(plan, tokens)
        failed = dict(self._sampler.failed)
        return _Running(plan, started_s, tokens, logprobs, prompt_logprobs, failed)

    def collect(self, handle: _Running) -> StepResult:
        """Waits for a launched step."""
        tokens = handle.tokens.to("cpu").numpy().astype(np.int32)
        return StepResult(
            step=handle.plan.step,
            rows=handle.plan.rows[handle.plan.samples],
            tokens=tokens,
            duration_ms=(time.perf_counter() - handle.started_s) * 1e3,
            logprobs=handle.logprobs,
            prompt_logprobs=handle.prompt_logprobs,
            failed=handle.failed,
        )

    def close(self) -> None:
        """Frees model, cache and rows; safe to call twice."""
        self._model = None
        self._cache = PagedCache([], [], 1)
        self._rows = RowState(0, 0, 1, torch.device("cpu"))

    def _change_rows(self, plan: StepPlan) -> None:
        for row in plan.removed.tolist():
            self._sampler.remove(row)
            self._scores.remove(row)
        for new in plan.added:
            self._sampler.add(new.row, new.params, new.tokens[: new.prompt_len], new.tokens[new.prompt_len :])
            self._scores.add(new)
        self._rows.apply(plan)
        if len(plan.copies):
            copy_blocks(self._cache, plan.copies)

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


def allocate_cache(model: Model, limits: Limits) -> PagedCache:
    """An empty cache; its pages of memory are taken as they are first written."""
    shape, dtype = model.shape, limits.cache_dtype or model.dtype
    size = (limits.num_blocks, shape.num_kv_heads, limits.block_size, shape.head_dim)

    def layers() -> list[torch.Tensor]:
        return [torch.empty(size, dtype=dtype, device=model.device) for _ in range(shape.num_layers)]

    return PagedCache(layers(), layers(), limits.block_size)


def copy_blocks(cache: PagedCache, pairs: np.ndarray | Sequence[tuple[int, int]]) -> None:
    """Copies whole blocks, [k, 2] of (source, target), in every layer; all sources are read first."""
    device = cache.k[0].device
    where = torch.from_numpy(np.asarray(pairs, dtype=np.int64)).to(device)
    for layer in (*cache.k, *cache.v):
        held = layer.view(torch.uint8) if layer.itemsize == 1 else layer  # torch moves no FP8 by index
        held.index_copy_(0, where[:, 1], held.index_select(0, where[:, 0]))
