"""The sampler for a device that the host does not wait for: what a row has drawn is read where it was written.

A plain row (temperature, top-k, top-p, min-p, seed) costs one kernel over the whole batch, fit for a captured
graph. Rows with edits or log-probabilities are then drawn again, or scored, a few at a time. A token is a pure
function of its row's seed, of how many tokens the row has drawn and of its logits, so company, graphs and
evictions leave a seeded text alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ...kernels.sample import Draws, sample
from ..request import Logprob, SamplingParams
from . import bad_words, edits, logit_bias, penalties
from .bad_words import BadWords
from .failures import FORBIDDEN, NOT_FINITE
from .logit_bias import Bias
from .logprobs import Scores, score
from .min_tokens import ending_ids
from .ops import Send
from .seed import as_uint64

CHUNK = 32  # special rows handled at once: the logits of so many are copied
_LEAST_TOP_P = 1e-9  # keeps the likeliest token, as 0 does by definition


@dataclass(frozen=True, slots=True)
class Scored:
    """Log-probabilities of rows that asked for them, `counts[i]` alternatives for `rows[i]`."""

    rows: list[int]
    counts: list[int]
    scores: Scores

    def to_host(self, copy: Callable[[torch.Tensor], torch.Tensor]) -> Scored:
        """As `Scores.to_host`."""
        return Scored(self.rows, self.counts, self.scores.to_host(copy))

    def entries(self) -> dict[int, Logprob]:
        """By row."""
        return dict(zip(self.rows, self.scores.entries(self.counts), strict=True))


class DeviceSampler:
    """Draws tokens for permanent rows of `known`, int64 [rows, any]: each row's tokens by position."""

    def __init__(
        self, vocab_size: int, eos_token_ids: Sequence[int], seed: int, known: torch.Tensor, send: Send
    ) -> None:
        """`seed` starts the generator of the requests that bring none; `send` copies to the device of `known`."""
        self.vocab_size = vocab_size
        self._eos_token_ids = tuple(eos_token_ids)
        self._generator = np.random.default_rng(seed)
        self._known = known
        self._send = send
        rows = len(known)
        self._floats = np.zeros((3, rows), dtype=np.float32)  # temperature, top_p, min_p
        self._ints = np.zeros((2, rows), dtype=np.int32)  # top_k, length of the prompt
        self._seeds = np.zeros((1, rows), dtype=np.int64)
        self._on_device = [
            torch.from_numpy(column).to(known.device, copy=True)
            for column in (self._floats, self._ints, self._seeds)
        ]
        self._changed: list[int] = []
        self._special: dict[int, SamplingParams] = {}
        self._bias: dict[int, Bias] = {}
        self._allowed: dict[int, np.ndarray] = {}
        self._bad_words: dict[int, BadWords] = {}

    def add(
        self, row: int, params: SamplingParams, prompt_tokens: np.ndarray, output_tokens: np.ndarray
    ) -> None:
        """A row begins; its tokens are known to the device before it is drawn for."""
        self.remove(row)
        top_k = params.top_k if 0 < params.top_k < self.vocab_size else 0
        temperature = 0.0 if params.greedy else params.temperature
        self._floats[:, row] = temperature, max(params.top_p, _LEAST_TOP_P), params.min_p
        self._ints[:, row] = top_k, len(prompt_tokens)
        seed = self._generator.integers(2**63) if params.seed is None else as_uint64(params.seed)
        self._seeds[0, row] = np.uint64(seed).astype(np.int64)
        self._changed.append(row)
        if params.logit_bias:
            self._bias[row] = Bias.of(params.logit_bias, self.vocab_size)
        if params.allowed_token_ids:
            self._allowed[row] = edits.token_ids(params.allowed_token_ids, self.vocab_size)
        if params.bad_words:
            none = np.empty(0, dtype=np.int64)
            self._bad_words[row] = BadWords.of(params.bad_words, none, self.vocab_size)
        if _edited(params) or params.min_tokens or params.logprobs is not None:
            self._special[row] = params

    def remove(self, row: int) -> None:
        """A row is free; an unknown row is ignored."""
        for held in (self._special, self._bias, self._allowed, self._bad_words):
            held.pop(row, None)

    def flush(self) -> None:
        """Tells the device of the rows that began."""
        if not self._changed:
            return
        rows = np.unique(self._changed)
        self._changed = []
        where = self._send(rows)
        for held, column in zip(self._on_device, (self._floats, self._ints, self._seeds), strict=True):
            held.index_copy_(1, where, self._send(column[:, rows]))

    @torch.inference_mode()
    def draw(self, logits: torch.Tensor, rows: torch.Tensor, contexts: torch.Tensor) -> torch.Tensor:
        """int64 [m]: a token a row of float32 logits [m, vocab], or FORBIDDEN or NOT_FINITE.

        rows, contexts: int32 [m] on the device, permanent rows and how many tokens each has. Edits are not
        made. Nothing waits for the device, and a captured graph may hold it.
        """
        floats, ints, seeds = (column.index_select(1, rows) for column in self._on_device)
        drawn = (contexts - ints[1]).long()
        tokens = sample(logits, Draws(floats[0], ints[0], floats[1], floats[2], seeds[0], drawn))
        tokens.clamp_(0, self.vocab_size - 1)
        chosen = logits.gather(1, tokens[:, None])[:, 0]
        wrong = torch.where(chosen == -float("inf"), FORBIDDEN, NOT_FINITE)
        return torch.where(torch.isfinite(chosen), tokens, wrong)

    def special(self, rows: np.ndarray) -> np.ndarray:
        """int64: the places in `rows` that `finish` has something to do for."""
        if not self._special:
            return np.empty(0, dtype=np.int64)
        return np.array([i for i, row in enumerate(rows.tolist()) if row in self._special], dtype=np.int64)

    @torch.inference_mode()
    def finish(
        self,
        logits: torch.Tensor,
        drawn: torch.Tensor,
        rows: np.ndarray,
        contexts: np.ndarray,
        special: np.ndarray,
    ) -> list[Scored]:
        """Draws the edited ones of the `special` places again, into `drawn` [m]; logits [m, vocab] stay.

        rows, contexts [m]. Returns what the rows that asked are told; nothing waits for the device.
        """
        scored: list[Scored] = []
        for begin in range(0, len(special), CHUNK):
            places = special[begin : begin + CHUNK]
            chosen, lengths = rows[places], contexts[places]
            where = self._send(places)
            raw = logits.index_select(0, where)
            if any(self._is_edited(row, int(length)) for row, length in zip(chosen, lengths, strict=True)):
                edited = self._edit(raw.clone(), chosen, lengths)
                redrawn = self.draw(edited, self._send(chosen), self._send(lengths))
                drawn.index_copy_(0, where, redrawn)
            asked = [i for i, row in enumerate(chosen.tolist()) if self._special[row].logprobs is not None]
            if asked:
                among = self._send(np.array(asked, dtype=np.int64))
                own = drawn.index_select(0, where.index_select(0, among)).clamp_min(0)
                told = chosen[asked].tolist()
                counts = [self._special[row].logprobs or 0 for row in told]
                scored.append(Scored(told, counts, score(raw.index_select(0, among), own, max(counts))))
        return scored

    def _is_edited(self, row: int, length: int) -> bool:
        params = self._special[row]
        drawn = length - int(self._ints[1, row])
        return _edited(params) or params.min_tokens > drawn

    def _edit(self, logits: torch.Tensor, rows: np.ndarray, contexts: np.ndarray) -> torch.Tensor:
        """In vLLM's order, as in `Sampler`. float32 [k, vocab], changed and returned."""
        prompt_lens = self._ints[1, rows]
        numbered = list(enumerate(rows.tolist()))
        known = self._known[:, : int(contexts.max())].index_select(0, self._send(rows))
        allowed = [(i, self._allowed[row]) for i, row in numbered if row in self._allowed]
        edits.keep_only(logits, allowed, self._send)
        worded = [(i, self._bad_words[row]) for i, row in numbered if row in self._bad_words]
        bad_words.forbid_known(logits, known, contexts, prompt_lens, worded, self._send)
        params = [self._special[row] for row in rows.tolist()]
        early = [i for i, p in enumerate(params) if p.min_tokens > contexts[i] - prompt_lens[i]]
        endings = [(i, ending_ids(params[i], self._eos_token_ids, self.vocab_size)) for i in early]
        edits.forbid(logits, endings, self._send)
        biased = [(i, self._bias[row]) for i, row in numbered if row in self._bias]
        logit_bias.apply(logits, biased, self._send)
        if any(penalties.wanted(p) for p in params):
            strengths = [(p.repetition_penalty, p.frequency_penalty, p.presence_penalty) for p in params]
            table = np.ascontiguousarray(np.array(strengths, dtype=np.float32).T)
            penalties.apply_known(
                logits, known, self._send(prompt_lens), self._send(contexts), self._send(table)
            )
        return logits


def _edited(params: SamplingParams) -> bool:
    """Whether the logits are changed at every token."""
    changed = params.logit_bias or params.allowed_token_ids or params.bad_words
    return bool(changed) or penalties.wanted(params)
