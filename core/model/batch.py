"""The tensors of one forward pass over a mixed batch, passed explicitly through every layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...kernels.paged_attention import Sequences


@dataclass(slots=True)
class ForwardBatch:
    """n sequences, T tokens in all; sequence i owns tokens query_starts[i]:query_starts[i+1].

    Decodes (one token each) come first, `num_decodes` of them. Tokens past query_starts[n] are
    padding: they pass through the linear layers only, and their slot is -1.
    """

    tokens: torch.Tensor  # int64 [T]
    positions: torch.Tensor  # int64 [T]
    slots: torch.Tensor  # int64 [T] where each token's K and V go: block * block_size + offset
    query_starts: torch.Tensor  # int32 [n + 1]
    context_lens: torch.Tensor  # int32 [n] tokens in the cache once this step has written its own
    block_tables: torch.Tensor  # int32 [n, max_blocks]
    logit_indices: torch.Tensor  # int64 [m] tokens whose logits are wanted, each at most once: m <= T
    num_decodes: int
    max_query_len: int
    max_context_len: int
    # float32 [m, vocab] that the logits are written to, if they must stay
    logits_out: torch.Tensor | None = None
    decodes_only: bool = False  # no prefill, no padding, no logits_out, and all logits are wanted, in order

    @property
    def sequences(self) -> Sequences:
        """What attention reads of the batch."""
        return Sequences(
            self.query_starts,
            self.context_lens,
            self.block_tables,
            self.num_decodes,
            self.max_query_len,
            self.max_context_len,
        )


@dataclass(slots=True, weakref_slot=True)
class PagedCache:
    """K and V of every layer; a (block, head) is contiguous.

    k[layer], v[layer]: [num_blocks, num_kv_heads, block_size, head_dim]
    """

    k: list[torch.Tensor]
    v: list[torch.Tensor]
    block_size: int
