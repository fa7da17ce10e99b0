"""The limits a scheduler works within."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerParams:
    """The limits a scheduler works within. Lengths in tokens."""

    num_blocks: int
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    eos_token_ids: tuple[int, ...] = ()
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool | None = None  # None: as the policy says
    long_prefill_token_threshold: int = 0  # 0 is no cap on a prompt's share of a step
    max_wait_s: float = 120.0  # whoever waited longer goes first
    reserve_full_prompt: bool = True  # a prompt starts only when all of it has blocks
    watermark: float = 0.01  # share of the blocks kept free when a request starts beside others
    window: int = 128  # waiting requests a dynamic policy is asked about in one step

    @property
    def max_length(self) -> int:
        """Tokens that one sequence may reach: the context, or the whole cache if that is smaller."""
        return min(self.max_model_len, self.num_blocks * self.block_size)
