"""The sampler: parameters and state by permanent row; a step costs only what its rows ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..request import Logprob, SamplingParams
from . import edits, logit_bias, penalties
from .bad_words import BadWords
from .draw import draw
from .failures import FAILURES, FORBIDDEN, NOT_FINITE
from .logit_bias import Bias
from .logprobs import token_logprobs
from .min_tokens import ending_ids
from .nucleus import Filters, draw_filtered
from .ops import all_finite, argmax
from .penalties import SeenTokens
from .seed import as_uint64, uniforms
from .temperature import weights

# What a row needs, as bits of one column: a batch whose bits are all 0 is one argmax.
RANDOM, FILTERED, SEEDED, PENALTIES, BIAS, BAD_WORDS, MIN_TOKENS, LOGPROBS, ALLOWED = (
    1 << i for i in range(9)
)
_EDITS = PENALTIES | BIAS | BAD_WORDS | MIN_TOKENS | ALLOWED
_HISTORY = PENALTIES | BAD_WORDS | MIN_TOKENS | SEEDED


@dataclass(slots=True)
class _Columns:
    """Parameters by row, for rows that draw at random."""

    needs: np.ndarray
    temperature: np.ndarray
    top_k: np.ndarray
    top_p: np.ndarray
    min_p: np.ndarray
    seed: np.ndarray
    drawn: np.ndarray  # tokens drawn so far
    min_tokens: np.ndarray
    logprobs: np.ndarray

    @classmethod
    def of(cls, rows: int) -> _Columns:
        kinds = ("i8", "f4", "i8", "f8", "f4", "u8", "i8", "i8", "i8")
        return cls(*(np.zeros(rows, dtype=kind) for kind in kinds))

    def grown(self, rows: int) -> _Columns:
        new = _Columns.of(rows)
        for name in self.__slots__:
            getattr(new, name)[: len(self.needs)] = getattr(self, name)
        return new


class Sampler:
    """Draws tokens for rows on the host. `failed` names, after each `sample`, the rows whose logits gave no token, and why."""

    def __init__(self, vocab_size: int, eos_token_ids: Sequence[int] = (), seed: int = 0) -> None:
        """`seed` starts the generator of the requests that bring none."""
        self.vocab_size = vocab_size
        self.eos_token_ids = tuple(eos_token_ids)
        self.failed: dict[int, str] = {}
        self._generator = np.random.default_rng(seed)
        self._columns = _Columns.of(16)
        self._seen: dict[int, SeenTokens] = {}
        self._bias: dict[int, Bias] = {}
        self._allowed: dict[int, np.ndarray] = {}
        self._bad_words: dict[int, BadWords] = {}
        self._endings: dict[int, np.ndarray] = {}

    def add(
        self, row: int, params: SamplingParams, prompt_tokens: np.ndarray, output_tokens: np.ndarray
    ) -> None:
        """A row begins; after an eviction `output_tokens` are those it had drawn before."""
        self.remove(row)
        output = np.asarray(output_tokens, dtype=np.int64)
        if row >= len(self._columns.needs):
            self._columns = self._columns.grown(max(row + 1, 2 * len(self._columns.needs)))
        columns = self._columns
        columns.drawn[row] = len(output)
        needs = 0
        if not params.greedy:
            needs |= self._set_random(row, params)
        if penalties.wanted(params):
            needs |= PENALTIES
            self._seen[row] = SeenTokens.of(params, np.asarray(prompt_tokens), output)
        if params.logit_bias:
            needs |= BIAS
            self._bias[row] = Bias.of(params.logit_bias, self.vocab_size)
        if params.allowed_token_ids:
            needs |= ALLOWED
            self._allowed[row] = edits.token_ids(params.allowed_token_ids, self.vocab_size)
        if params.bad_words:
            needs |= BAD_WORDS
            self._bad_words[row] = BadWords.of(params.bad_words, output, self.vocab_size)
        if params.min_tokens > len(output):
            needs |= MIN_TOKENS
            columns.min_tokens[row] = params.min_tokens
            self._endings[row] = ending_ids(params, self.eos_token_ids, self.vocab_size)
        if params.logprobs is not None:
            needs |= LOGPROBS
            columns.logprobs[row] = params.logprobs
        columns.needs[row] = needs

    def remove(self, row: int) -> None:
        """A row is free; an unknown row is ignored."""
        if row < len(self._columns.needs):
            self._columns.needs[row] = 0
        for held in (self._seen, self._bias, self._allowed, self._bad_words, self._endings):
            held.pop(row, None)

    @torch.inference_mode()
    def sample(
        self, logits: torch.Tensor, rows: Sequence[int] | np.ndarray
    ) -> tuple[torch.Tensor, dict[int, Logprob]]:
        """Tokens int64 [m] from float32 logits [m, vocab], which are changed in place, one per row; and the
        log-probabilities, by row, of the rows that asked. A row in `failed` gets token 0."""
        rows = np.asarray(rows, dtype=np.int64)
        self.failed = {}
        needs = self._columns.needs[rows]
        union = int(np.bitwise_or.reduce(needs)) if len(rows) else 0
        asked = np.flatnonzero(needs & LOGPROBS) if union & LOGPROBS else None
        raw = logits[torch.from_numpy(asked)] if asked is not None else None
        if union & _EDITS:
            self._edit(logits, rows, needs)
        tokens = argmax(logits)
        self._check(logits, tokens, rows)
        if union & RANDOM:
            self._draw(logits, tokens, rows, needs)
        if union & _HISTORY:
            self._record(tokens, rows, needs)
        if asked is None or raw is None:
            return tokens, {}
        counts = self._columns.logprobs[rows[asked]].tolist()
        found = token_logprobs(raw, tokens[torch.from_numpy(asked)], counts)
        return tokens, dict(zip(rows[asked].tolist(), found, strict=True))

    def _set_random(self, row: int, params: SamplingParams) -> int:
        columns = self._columns
        columns.temperature[row] = params.temperature
        columns.top_k[row] = params.top_k if 0 < params.top_k < self.vocab_size else 0
        columns.top_p[row] = params.top_p
        columns.min_p[row] = params.min_p
        needs = RANDOM
        if columns.top_k[row] or params.top_p < 1.0 or params.min_p > 0.0:
            needs |= FILTERED
        if params.seed is not None:
            needs |= SEEDED
            columns.seed[row] = as_uint64(params.seed)
        return needs

    def _edit(self, logits: torch.Tensor, rows: np.ndarray, needs: np.ndarray) -> None:
        """The changes that reach greedy rows too, in vLLM's order."""

        def at(bit: int) -> list[tuple[int, int]]:
            return [(int(i), int(rows[i])) for i in np.flatnonzero(needs & bit)]

        edits.keep_only(logits, [(i, self._allowed[row]) for i, row in at(ALLOWED)])
        edits.forbid(logits, [(i, self._bad_words[row].forbidden()) for i, row in at(BAD_WORDS)])
        edits.forbid(logits, [(i, self._endings[row]) for i, row in at(MIN_TOKENS)])
        logit_bias.apply(logits, [(i, self._bias[row]) for i, row in at(BIAS)])
        penalties.apply(logits, [(i, self._seen[row]) for i, row in at(PENALTIES)])

    def _check(self, logits: torch.Tensor, tokens: torch.Tensor, rows: np.ndarray) -> None:
        """Rows whose largest logit is no finite number cannot be sampled; they are made harmless here."""
        if not len(rows):
            return
        if all_finite(logits, tokens):
            return
        best = logits.gather(1, tokens[:, None])[:, 0]
        for i in torch.nonzero(~torch.isfinite(best))[:, 0].tolist():
            forbidden = float(best[i]) == -float("inf")
            self.failed[int(rows[i])] = FAILURES[FORBIDDEN if forbidden else NOT_FINITE]
            logits[i] = 0.0
            tokens[i] = 0

    def _draw(self, logits: torch.Tensor, tokens: torch.Tensor, rows: np.ndarray, needs: np.ndarray) -> None:
        uniform = self._uniforms(rows, needs)
        for filtered in (False, True):
            chosen = np.flatnonzero((needs & (RANDOM | FILTERED)) == (RANDOM | (FILTERED if filtered else 0)))
            if not len(chosen):
                continue
            index = torch.from_numpy(chosen)
            part = logits if len(chosen) == len(rows) else logits[index]
            numbers = torch.from_numpy(uniform[chosen])
            if filtered:
                drawn = draw_filtered(part, self._filters(rows[chosen]), numbers)
            else:
                peak = part.gather(1, tokens[index][:, None])[:, 0]
                hot = torch.from_numpy(self._columns.temperature[rows[chosen]])
                drawn = draw(weights(part, peak, hot), numbers)
            tokens[index] = drawn

    def _uniforms(self, rows: np.ndarray, needs: np.ndarray) -> np.ndarray:
        """float64 [m]; seeded rows do not advance the shared generator, nor do greedy ones."""
        columns, out = self._columns, np.zeros(len(rows))
        seeded = np.flatnonzero(needs & SEEDED)
        shared = np.flatnonzero((needs & (RANDOM | SEEDED)) == RANDOM)
        if len(seeded):
            out[seeded] = uniforms(columns.seed[rows[seeded]], columns.drawn[rows[seeded]])
        if len(shared):
            out[shared] = self._generator.random(len(shared))
        return out

    def _filters(self, rows: np.ndarray) -> Filters:
        columns = self._columns
        kept = (columns.temperature, columns.top_k, columns.top_p, columns.min_p)
        return Filters(*(torch.from_numpy(column[rows]) for column in kept))

    def _record(self, tokens: torch.Tensor, rows: np.ndarray, needs: np.ndarray) -> None:
        columns = self._columns
        columns.drawn[rows] += 1
        drawn = tokens.tolist() if (needs & (PENALTIES | BAD_WORDS)).any() else []
        for i in np.flatnonzero(needs & PENALTIES):
            self._seen[int(rows[i])].record(drawn[i])
        for i in np.flatnonzero(needs & BAD_WORDS):
            self._bad_words[int(rows[i])].record(drawn[i])
        waiting = rows[(needs & MIN_TOKENS) != 0]
        for row in waiting[columns.drawn[waiting] >= columns.min_tokens[waiting]].tolist():
            columns.needs[row] &= ~MIN_TOKENS
            del self._endings[row]
