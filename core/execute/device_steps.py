"""Steps on a device that works on while the host plans: nothing here waits but `DeviceStep.results`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from ..model.base import Model
from ..model.batch import PagedCache
from ..sample.failures import FAILURES
from ..sample.on_device import DeviceSampler, Scored
from ..schedule.plan import StepPlan
from .accelerator import Accelerator, Event
from .graphs import DecodeGraphs
from .prompt_scores import PromptChunk, PromptScores
from .results import Results
from .rows import RowState


@dataclass(slots=True)
class DeviceStep:
    """A launched step: copies on their way to the host, and the event after them."""

    plan: StepPlan
    event: Event
    drawn: torch.Tensor  # int32 [samples] on the host: tokens, or why there is none
    scored: list[Scored]
    chunks: list[PromptChunk]
    eager: str | None  # why no graph was replayed

    def results(self) -> Results:
        """Waits for the copies."""
        self.event.synchronize()
        drawn = self.drawn.numpy()
        rows = self.plan.rows[self.plan.samples]
        failed: dict[int, str] = {}
        if drawn.min(initial=0) < 0:
            failed = {int(rows[i]): FAILURES[int(drawn[i])] for i in np.flatnonzero(drawn < 0)}
        return Results(
            tokens=np.maximum(drawn, 0),
            logprobs={row: entry for scored in self.scored for row, entry in scored.entries().items()},
            prompt_logprobs={chunk.new.row: chunk.entries() for chunk in self.chunks},
            failed=failed,
            figures={"graph_steps": 1} if self.eager is None else {f"eager_steps.{self.eager}": 1},
        )


class DeviceSteps:
    """Launches steps. The executor has told rows, sampler and scores of a plan's changes before."""

    def __init__(
        self,
        model: Model,
        cache: PagedCache,
        rows: RowState,
        sampler: DeviceSampler,
        scores: PromptScores,
        accelerator: Accelerator,
        max_num_batched_tokens: int,
    ) -> None:
        self._model, self._cache, self._rows = model, cache, rows
        self._sampler, self._scores, self._accelerator = sampler, scores, accelerator
        self._max_tokens = max_num_batched_tokens
        self.graphs: DecodeGraphs | None = None
        self.no_graphs = "off"  # why there are none

    def launch(self, plan: StepPlan, *, eager: bool = False) -> DeviceStep:
        """Starts a step, by a captured graph where one fits unless it is to be `eager`."""
        sampled = plan.samples
        rows, contexts = plan.rows[sampled], (plan.starts + plan.num_tokens)[sampled]
        extra = self._scores.indices(plan)
        why_eager = "asked" if eager else self._why_eager(plan, len(extra))
        chunks: list[PromptChunk] = []
        if why_eager is None and self.graphs is not None:
            size = self.graphs.size_for(len(rows) + plan.padding) or 0
            logits, drawn = self.graphs.run(plan, size)
        else:
            # Padding beyond what memory was measured for would cost memory for nothing.
            room = max(0, self._max_tokens - plan.total_tokens)
            batch = self._rows.batch(replace(plan, padding=min(plan.padding, room)), extra)
            logits = self._model.forward(batch, self._cache)
            chunks = self._scores.score(plan, logits[len(rows) :])
            logits = logits[: len(rows)]
            drawn = self._draw(logits, rows, contexts)
        special = self._sampler.special(rows)
        scored = self._sampler.finish(logits, drawn, rows, contexts, special) if len(special) else []
        if why_eager is not None or len(special):
            self._rows.append(plan, drawn.clamp_min(0))
        to_host = self._accelerator.to_host
        step = DeviceStep(
            plan,
            self._accelerator.event(),
            to_host(drawn.int()),
            [part.to_host(to_host) for part in scored],
            [chunk.to_host(to_host) for chunk in chunks],
            why_eager,
        )
        step.event.record()
        return step

    def _draw(self, logits: torch.Tensor, rows: np.ndarray, contexts: np.ndarray) -> torch.Tensor:
        if not len(rows):
            return torch.empty(0, dtype=torch.int64, device=logits.device)
        return self._sampler.draw(logits, *self._rows.send(rows, contexts))

    def _why_eager(self, plan: StepPlan, extra: int) -> str | None:
        """Why a step runs without a graph; None where one is replayed."""
        if self.graphs is None:
            return self.no_graphs
        if plan.num_decodes < len(plan.rows) or extra:
            return "prefill"
        return "size" if self.graphs.size_for(len(plan.rows) + plan.padding) is None else None
