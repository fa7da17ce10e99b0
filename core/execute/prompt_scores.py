"""Log-probabilities of prompt tokens, chunk by chunk, each position told once even if it is computed again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from ..request import Logprob
from ..sample.logprobs import Scores, score
from ..sample.ops import Send, stay
from ..schedule.plan import NewRow, StepPlan


@dataclass(frozen=True, slots=True)
class PromptChunk:
    """Scores of a row's prompt tokens from the one after `position` on, in order."""

    new: NewRow
    position: int
    alternatives: int
    scores: Scores

    @property
    def end(self) -> int:
        """Positions told once this chunk is."""
        return self.position + len(self.scores.tokens)

    def to_host(self, copy: Callable[[torch.Tensor], torch.Tensor]) -> PromptChunk:
        """As `Scores.to_host`."""
        return PromptChunk(self.new, self.position, self.alternatives, self.scores.to_host(copy))

    def entries(self) -> list[Logprob]:
        """One a position."""
        return self.scores.entries([self.alternatives] * len(self.scores.tokens))


class PromptScores:
    """Remembers which rows asked and how far each has come; what was told before an eviction stands in NewRow."""

    def __init__(self, send: Send = stay) -> None:
        self._send = send
        self._rows: dict[int, NewRow] = {}
        self._reached: dict[int, int] = {}  # positions told or being computed, by row

    def add(self, new: NewRow) -> None:
        """A row begins."""
        if new.params.prompt_logprobs is not None and new.prompt_scored + 1 < new.prompt_len:
            self._rows[new.row] = new
            self._reached[new.row] = new.prompt_scored

    def remove(self, row: int) -> None:
        """A row is free; unknown rows are ignored."""
        self._rows.pop(row, None)
        self._reached.pop(row, None)

    def indices(self, plan: StepPlan) -> np.ndarray:
        """int64 token indices of the step whose logits are needed besides those that are sampled from."""
        if not self._rows:
            return np.empty(0, dtype=np.int64)
        parts = [np.arange(first, last) for _, first, last, _ in self._spans(plan)]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def score(self, plan: StepPlan, logits: torch.Tensor) -> list[PromptChunk]:
        """What asking rows will be told of this step; `logits` are those of `indices`. Nothing waits for the device."""
        chunks: list[PromptChunk] = []
        done = 0
        for new, first, last, position in self._spans(plan):
            count = last - first
            following = new.tokens[position + 1 : position + 1 + count].astype(np.int64)
            alternatives = new.params.prompt_logprobs or 0
            tokens = self._send(following)
            chunks.append(
                PromptChunk(
                    new, position, alternatives, score(logits[done : done + count], tokens, alternatives)
                )
            )
            done += count
        return chunks

    def launched(self, chunks: list[PromptChunk]) -> None:
        """The step of these chunks was launched: the next one goes on behind them."""
        for chunk in chunks:
            if chunk.end + 1 >= chunk.new.prompt_len:
                self.remove(chunk.new.row)
            else:
                self._reached[chunk.new.row] = chunk.end

    def _spans(self, plan: StepPlan) -> Iterator[tuple[NewRow, int, int, int]]:
        """Each asking row's untold part of the step: row, token indices first:last, position of the first."""
        if not self._rows:
            return
        ends = np.cumsum(plan.num_tokens)
        for i, row in enumerate(plan.rows.tolist()):
            new = self._rows.get(row)
            if new is None:
                continue
            start, count = int(plan.starts[i]), int(plan.num_tokens[i])
            begin = max(start, self._reached[row])
            end = min(start + count, new.prompt_len - 1)  # the last prompt token predicts no prompt token
            if end > begin:
                first = int(ends[i]) - count + begin - start
                yield new, first, first + end - begin, begin
