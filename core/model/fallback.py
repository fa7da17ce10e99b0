"""Any other decoder: transformers' own definition, with the project's paged attention plugged in.

What the model computes is compared with transformers' own attention when it loads, so a model that this cannot
express is refused and never served wrongly.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..arithmetic.shape import ModelShape
from ..errors import ModelError
from .batch import ForwardBatch, PagedCache
from .finite import all_finite, may_be_damaged, require_finite, total
from .loading import open_weights
from .plugged_attention import NAME, plug_into, register
from .trial import fallback_shape

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class FallbackModel:
    """Implements `Model` over a transformers model."""

    def __init__(
        self, folder: Path, device: torch.device, dtype: torch.dtype, shape: ModelShape | None = None
    ) -> None:
        """Loads the weights and checks the result against transformers; `shape` is taken from the folder
        unless given. Raises ModelError."""
        self.shape = shape or fallback_shape(folder)
        self.device, self.dtype = device, dtype
        self._model = _load(folder, dtype).to(device)  # pyright: ignore[reportArgumentType]
        _require_finite(self._model, folder)
        self._step = plug_into(self._model)
        self._keeps = "logits_to_keep" in inspect.signature(self._model.forward).parameters
        self._check()

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, cache: PagedCache) -> torch.Tensor:
        """As `Model.forward`."""
        options = {"logits_to_keep": batch.logit_indices} if self._keeps else {}
        self._step.begin(batch, cache)
        try:
            logits = self._model(
                input_ids=batch.tokens[None], position_ids=batch.positions[None], use_cache=False, **options
            ).logits[0]
        finally:
            self._step.end()
        logits = (logits if self._keeps else logits[batch.logit_indices]).float()
        return logits if batch.logits_out is None else batch.logits_out.copy_(logits)

    def _check(self) -> None:
        """Two sequences, the second decoding, against transformers' attention on each by itself."""
        window = self.shape.raw.get("sliding_window") or 16  # a window is tried where it begins to matter
        length = min(window + 8, self.shape.max_position_embeddings, 160)
        tokens = (
            torch.arange(2 * length, device=self.device).reshape(2, length) * 7919 % self.shape.vocab_size
        )
        try:
            got = self._probe(tokens)
            self._model.set_attn_implementation("eager")
            with torch.inference_mode():
                expected = self._model(input_ids=tokens, use_cache=False).logits[:, -1].float()
            self._model.set_attn_implementation(NAME)
        except ModelError:
            raise
        except Exception as error:  # whatever the model's own code trips over
            raise _refused(self.shape, f"it fails on a trial step: {error}") from error
        spread = (expected.max() - expected.min()).item()
        allowed = spread * (1e-3 if self.dtype == torch.float32 else 5e-2)
        difference = (got - expected).abs().max().item()
        if not difference <= allowed:
            raise _refused(
                self.shape, f"its logits would be off by {difference:.3g} of a spread of {spread:.3g}"
            )

    def _probe(self, tokens: torch.Tensor) -> torch.Tensor:
        """float32 [2, vocab]: logits after the last of each of two rows of tokens, through the paged cache."""
        length, size = tokens.shape[1], 16
        shape, per_row = self.shape, -(-length // size)

        def empty() -> list[torch.Tensor]:
            dims = (2 * per_row, shape.num_kv_heads, size, shape.head_dim)
            return [torch.zeros(dims, dtype=self.dtype, device=self.device) for _ in range(shape.num_layers)]

        cache = PagedCache(empty(), empty(), size)
        tables = torch.arange(2 * per_row, dtype=torch.int32).view(per_row, 2).t().contiguous()
        short = [length, length - 1]
        first = _batch([tokens[0], tokens[1, :-1]], [0, 0], short, tables, size, self.device)
        logits = self.forward(first, cache)[:1].clone()
        second = _batch([tokens[1, -1:]], [length - 1], [length], tables[1:], size, self.device)
        return torch.cat([logits, self.forward(second, cache)])


def _load(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    register()
    logging.disable_progress_bar()
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, use_safetensors=True, output_loading_info=True
        )
        model, report = loaded
    except Exception as error:
        raise ModelError(f"{folder}: transformers cannot load it: {error}") from error
    missing = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
    if missing:
        raise ModelError(
            f"{folder}: {len(missing)} tensors missing or of another shape, first {missing[0]!r}"
        )
    return model.eval()


def _require_finite(model: PreTrainedModel, folder: Path) -> None:
    """Raises ModelError naming file and tensor where a weight is no number."""
    sums = {name: total(weight) for name, weight in model.named_parameters() if may_be_damaged(weight)}
    if all_finite(sums.values()):
        return
    source = open_weights(folder)
    for name in source.names():  # transformers may have joined or renamed them
        require_finite(source, name)
    for name, weight in model.named_parameters():
        if name in sums and not bool(weight.isfinite().all()):
            raise ModelError(
                f"{folder}: parameter {name!r} leaves the range of {weight.dtype}; set another dtype"
            )


def _refused(shape: ModelShape, reason: str) -> ModelError:
    return ModelError(f"{shape.name}: {shape.architecture} cannot run over the paged cache: {reason}")


def _batch(
    parts: list[torch.Tensor],
    starts: list[int],
    contexts: list[int],
    tables: torch.Tensor,
    block_size: int,
    device: torch.device,
) -> ForwardBatch:
    """A step over whole parts of sequences, the logits of each one's last token wanted."""
    lengths = [len(part) for part in parts]
    ends = torch.tensor(lengths).cumsum(0)
    positions = [torch.arange(start, start + n) for start, n in zip(starts, lengths, strict=True)]
    slots = [
        tables[i, at // block_size].to(torch.int64) * block_size + at % block_size
        for i, at in enumerate(positions)
    ]
    return ForwardBatch(
        tokens=torch.cat(parts).to(device),
        positions=torch.cat(positions).to(device),
        slots=torch.cat(slots).to(device),
        query_starts=torch.cat([torch.zeros(1, dtype=torch.int64), ends]).to(device, torch.int32),
        context_lens=torch.tensor(contexts, dtype=torch.int32, device=device),
        block_tables=tables.to(device),
        logit_indices=(ends - 1).to(device),
        num_decodes=sum(n == 1 for n in lengths),
        max_query_len=max(lengths),
        max_context_len=max(contexts),
    )
