"""Any other decoder: transformers' own definition, with the project's paged attention plugged in.

transformers calls a named attention function with each layer's queries, keys and values. Ours writes keys
and values into the paged cache and attends over block tables, so the model runs a mixed batch as one
sequence of tokens with their own positions. What the model asks of its attention is seen by running it
once without weights; what it computes is compared with transformers' own attention when it loads, so a
model that this cannot express is refused and never served wrongly.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...kernels.paged_attention import Sequences, paged_attention
from ..errors import ModelError
from ..shape import ModelShape
from .batch import ForwardBatch, PagedCache
from .finite import all_finite, may_be_damaged, require_finite, total
from .loading import open_weights

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

NAME = "camshaft_paged"
_LACKED = ("s_aux", "position_bias", "indexer_topk")  # options that change what is computed


@dataclass(slots=True)
class _Layer:
    """What one attention layer asked for."""

    kv_heads: int
    head_dim: int
    window: int | None


@dataclass(slots=True)
class _Step:
    """What the attention of one model needs to know of the step that runs; None between steps."""

    batch: ForwardBatch | None = None
    cache: PagedCache | None = None
    sequences: Sequences | None = None
    kept: torch.Tensor | None = None  # tokens that are no padding
    layers: dict[int, _Layer] = field(default_factory=dict)


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
        self._step = _prepare(self._model)
        self._keeps = "logits_to_keep" in inspect.signature(self._model.forward).parameters
        self._check()

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, cache: PagedCache) -> torch.Tensor:
        """As `Model.forward`."""
        step = self._step
        step.batch, step.cache, step.sequences = batch, cache, _sequences(batch)
        step.kept = torch.nonzero(batch.slots >= 0)[:, 0]
        options = {"logits_to_keep": batch.logit_indices} if self._keeps else {}
        try:
            logits = self._model(
                input_ids=batch.tokens[None], position_ids=batch.positions[None], use_cache=False, **options
            ).logits[0]
        finally:
            step.batch = step.cache = step.sequences = step.kept = None
        return (logits if self._keeps else logits[batch.logit_indices]).float()

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


def fallback_shape(folder: Path) -> ModelShape:
    """Shape of a model folder, seen by running its definition once without weights. Raises ModelError.

    Figures that only arithmetic about memory needs (the feed-forward size) come from the configuration.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    config = _config(folder)
    raw = config.to_dict()  # before the trial run, which sets a type of its own
    with FakeTensorMode(shape_env=ShapeEnv()), torch.inference_mode():  # sizes only: no weight takes memory
        model = _from_config(config)
        step = _prepare(model)
        try:
            model(input_ids=torch.zeros(1, 4, dtype=torch.int64), use_cache=False)
        except ModelError:
            raise
        except Exception as error:  # a definition whose course depends on values
            reason = str(error).splitlines()[0]
            raise ModelError(
                f"{folder.name}: {config.model_type} cannot be run without weights: {reason}"
            ) from error
    kinds = {(layer.kv_heads, layer.head_dim) for layer in step.layers.values()}
    if len(kinds) != 1 or sorted(step.layers) != list(range(len(step.layers))):
        raise ModelError(
            f"{folder.name}: {config.model_type} is not supported: its attention layers "
            f"{sorted(step.layers)} with (heads, size) {sorted(kinds)} do not share one cache"
        )
    _check_windows(folder, config, step)
    return _shape(folder.name, raw, model, *kinds.pop(), len(step.layers))


def _shape(
    name: str, raw: dict[str, Any], model: PreTrainedModel, kv_heads: int, head_dim: int, layers: int
) -> ModelShape:
    names = getattr(model.config, "attribute_map", {})  # hidden_size -> n_embd, ...

    def number(key: str, default: int | None = None) -> int:
        found = raw.get(key, raw.get(names.get(key, key)))
        if isinstance(found, int):
            return found
        if default is None:
            raise ModelError(f"{name}: its configuration holds no {key}")
        return default

    ends = raw.get("eos_token_id")
    hidden = number("hidden_size")
    return ModelShape(
        name=name,
        architecture=type(model).__name__,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=number("num_attention_heads"),
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=number("intermediate_size", number("ffn_dim", number("n_inner", 4 * hidden))),
        vocab_size=int(model.get_output_embeddings().weight.shape[0]),  # pyright: ignore
        max_position_embeddings=number("max_position_embeddings", 2048),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        dtype=str(raw.get("dtype") or "float32").removeprefix("torch."),
        eos_token_ids=tuple(ends) if isinstance(ends, list) else () if ends is None else (int(ends),),
        raw=raw,
    )


def _config(folder: Path) -> PretrainedConfig:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # a configuration fails to parse in many ways
        raise ModelError(f"{folder}: transformers cannot read its configuration: {error}") from error


def _from_config(config: PretrainedConfig) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    _register()
    try:
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16
        )  # some operators trace in no other
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise ModelError(f"{config.model_type}: transformers has no decoder for it: {reason}") from error
    _require_interface(model)
    return model


def _load(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    _register()
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
    _require_interface(model)
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


def _require_interface(model: PreTrainedModel) -> None:
    if not model._supports_attention_backend:
        raise ModelError(
            f"{type(model).__name__} is not supported: transformers' definition computes its attention itself, "
            f"so the paged cache cannot be plugged in"
        )


def _prepare(model: PreTrainedModel) -> _Step:
    """Gives every attention layer the step it belongs to, and makes the model call our function."""
    step = _Step()
    for module in model.modules():
        if isinstance(getattr(module, "layer_idx", None), int):
            object.__setattr__(module, "camshaft_step", step)
    model.set_attn_implementation(NAME)
    return step


def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, lambda *_, **__: None)  # block tables say what may be seen


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function: query [1, heads, T, size], key and value [1, kv_heads, T, size].

    Returns [1, T, heads, size]. Without a running step it only notes what the layer asks for.
    """
    step: _Step | None = getattr(module, "camshaft_step", None)
    asked = [name for name in _LACKED if options.get(name) is not None]
    if step is None or asked or attention_mask is not None or not getattr(module, "is_causal", True):
        what = ", ".join(asked) or "attention that is not causal self-attention"
        raise ModelError(
            f"{type(module).__name__} is not supported: it needs {what}, which paged attention lacks"
        )
    if key.shape[-1] != value.shape[-1] or key.shape[-1] != query.shape[-1]:
        raise ModelError(f"{type(module).__name__} is not supported: its keys and values differ in size")
    layer = int(module.layer_idx)  # pyright: ignore[reportArgumentType]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if step.batch is None or step.cache is None or step.sequences is None or step.kept is None:
        step.layers[layer] = _Layer(key.shape[1], key.shape[3], sliding_window)
        return torch.empty_like(query).transpose(1, 2), None
    slots = step.batch.slots[step.kept]
    block, offset = slots // step.cache.block_size, slots % step.cache.block_size
    for cached, new in ((step.cache.k[layer], key), (step.cache.v[layer], value)):
        cached[block, :, offset] = new[0].transpose(0, 1)[step.kept].to(cached.dtype)
    tokens, size = query.shape[2], query.shape[1] * query.shape[3]
    rows = query[0].transpose(0, 1).reshape(tokens, size).to(step.cache.k[layer].dtype)
    out = paged_attention(
        rows,
        step.cache.k[layer],
        step.cache.v[layer],
        step.sequences,
        scale,
        sliding_window,
        soft_cap=softcap,
    )
    return out.view(1, tokens, query.shape[1], query.shape[3]), None


def _check_windows(folder: Path, config: PretrainedConfig, step: _Step) -> None:
    """A window that the configuration has but no layer passes on would be lost without a word."""
    text = config.get_text_config()
    wanted = getattr(text, "sliding_window", None) and getattr(text, "use_sliding_window", True)
    kinds = set(getattr(text, "layer_types", None) or ())
    if kinds - {"full_attention", "sliding_attention"}:
        raise ModelError(
            f"{folder.name}: {config.model_type} is not supported: it has layers of kinds {sorted(kinds)}"
        )
    if (
        wanted
        and (not kinds or "sliding_attention" in kinds)
        and not any(x.window for x in step.layers.values())
    ):
        raise ModelError(
            f"{folder.name}: {config.model_type} is not supported: its sliding window does not reach its attention"
        )


def _refused(shape: ModelShape, reason: str) -> ModelError:
    return ModelError(f"{shape.name}: {shape.architecture} cannot run over the paged cache: {reason}")


def _sequences(batch: ForwardBatch) -> Sequences:
    return Sequences(
        batch.query_starts,
        batch.context_lens,
        batch.block_tables,
        batch.num_decodes,
        batch.max_query_len,
        batch.max_context_len,
    )


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
