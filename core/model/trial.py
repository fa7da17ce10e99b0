"""The shape of a decoder that only transformers defines, seen by running it once without weights.

What a model asks of its attention is known only when it runs. One whose layers ask for what the paged cache
cannot give is refused here, by name.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..arithmetic.rope_scaling import rope_kind, rope_of
from ..arithmetic.served import served_shape
from ..arithmetic.shape import ModelShape, shape_from_config
from ..errors import ModelError
from .plugged_attention import AskedLayer, plug_into, register

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

# Layers that keep keys and values of every position, and nothing else.
_ATTENTION = frozenset({"attention", "full_attention", "sliding_attention"})
_SPARSE = ("index_topk", "index_topk_blocks")  # an indexer chooses the keys a query looks at


def fallback_shape(folder: Path) -> ModelShape:
    """Shape of a model folder, seen by running its definition once without weights. Raises ModelError.

    Figures that only arithmetic about memory needs (the feed-forward size) come from the configuration.
    """
    config = _config(folder)
    text = config.get_text_config()
    raw = text.to_dict()  # before the trial run, which sets a type of its own
    name = f"{folder.name}: {config.model_type}"
    _refuse_other_layers(name, text)
    _fix_angles(text)
    with _without_weights(), torch.inference_mode():
        model = _from_config(name, config)
        step = plug_into(model)
        try:
            model(input_ids=torch.zeros(1, 4, dtype=torch.int64), use_cache=False)
        except ModelError as error:
            raise ModelError(f"{name}: {error}") from error
        except Exception as error:  # a definition whose course depends on values
            raise ModelError(f"{name} cannot be run without weights: {_reason(error)}") from error
    layer = _common_layer(name, step.layers, raw.get("num_hidden_layers"))
    if _has_window(text) and not any(each.window for each in step.layers.values()):
        raise ModelError(f"{name} is not supported: its sliding window does not reach its attention")
    return _shape(folder.name, raw, model, layer, len(step.layers))


@contextmanager
def _without_weights() -> Iterator[None]:
    """Tensors have sizes only and take no memory; nothing is drawn for them."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv
    from transformers.initialization import no_init_weights

    # What they log of a failing definition is said by the error that is raised here.
    loggers = [logging.getLogger(name) for name in ("torch._subclasses.fake_tensor", "transformers")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        with FakeTensorMode(shape_env=ShapeEnv()), no_init_weights():
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _config(folder: Path) -> PretrainedConfig:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # a configuration fails to parse in many ways
        raise ModelError(f"{folder}: transformers cannot read its configuration: {error}") from error


def _from_config(name: str, config: PretrainedConfig) -> PreTrainedModel:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM

    register()
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelError(f"{name} is not supported: transformers has no decoder for it")
    try:
        # Some operators trace in no other type.
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    except Exception as error:
        raise ModelError(f"{name} cannot be built without weights: {_reason(error)}") from error
    return model.eval()


def _refuse_other_layers(name: str, text: PretrainedConfig) -> None:
    """Raises ModelError for layers that look at other keys, or keep something else, than the cache offers."""
    other = sorted(set(getattr(text, "layer_types", None) or ()) - _ATTENTION)
    if other:
        raise ModelError(
            f"{name} is not supported: it has layers of kinds {', '.join(map(str, other))}; "
            f"the paged cache holds keys and values of {', '.join(sorted(_ATTENTION))} alone"
        )
    sparse = next((key for key in _SPARSE if getattr(text, key, None)), None)
    if sparse:
        raise ModelError(
            f"{name} is not supported: its attention is sparse ({sparse}), which paged attention lacks"
        )


def _fix_angles(text: PretrainedConfig) -> None:
    """Takes out scaling whose course depends on positions, which have no values here: no size depends on it."""
    rope = getattr(text, "rope_parameters", None) or {}
    for part in (rope, *(part for part in rope.values() if isinstance(part, dict))):
        if rope_kind(part) == "dynamic":
            part["rope_type"] = "default"


def _common_layer(name: str, layers: dict[int, AskedLayer], count: object) -> AskedLayer:
    """One of the layers, whose caches are all of one size. Raises ModelError where they are not."""
    if not layers:
        raise ModelError(
            f"{name} is not supported: no layer calls its attention through transformers' interface, "
            "so the paged cache cannot be plugged in"
        )
    sizes = sorted({(layer.kv_heads, layer.head_dim) for layer in layers.values()})
    if len(sizes) > 1:
        each = ", ".join(f"{heads} x {size}" for heads, size in sizes)
        raise ModelError(
            f"{name} is not supported: its layers differ in heads and their size ({each}), one cache has one"
        )
    if sorted(layers) != list(range(len(layers))):
        raise ModelError(
            f"{name} is not supported: of its {count} layers only {', '.join(map(str, sorted(layers)))} attend; "
            "what the others keep is not in the paged cache"
        )
    return layers[0]


def _has_window(text: PretrainedConfig) -> bool:
    kinds = getattr(text, "layer_types", None)
    wanted = getattr(text, "sliding_window", None) and getattr(text, "use_sliding_window", True)
    return bool(wanted) and (not kinds or "sliding_attention" in kinds)


def _shape(
    name: str, raw: dict[str, Any], model: PreTrainedModel, layer: AskedLayer, layers: int
) -> ModelShape:
    names = getattr(model.config.get_text_config(), "attribute_map", {})  # hidden_size -> n_embd, ...

    def number(key: str, default: int | None = None) -> int:
        found = raw.get(key, raw.get(names.get(key, key)))
        if isinstance(found, int):
            return found
        if default is None:
            raise ModelError(f"{name}: its configuration holds no {key}")
        return default

    ends = raw.get("eos_token_id")
    seen: dict[str, Any] = {
        "architecture": type(model).__name__,
        "num_layers": layers,
        "num_kv_heads": layer.kv_heads,
        "head_dim": layer.head_dim,
        "vocab_size": int(model.get_output_embeddings().weight.shape[0]),  # pyright: ignore
        "dtype": str(raw.get("dtype") or "float32").removeprefix("torch."),
        "eos_token_ids": tuple(ends) if isinstance(ends, list) else () if ends is None else (int(ends),),
    }
    try:
        return replace(served_shape(shape_from_config(raw, name)), **seen)
    except ModelError:  # keys of another family
        hidden = number("hidden_size")
    try:
        theta, scaling = rope_of(raw)
    except (TypeError, ValueError) as error:
        raise ModelError(f"{name}: {error}") from error
    return ModelShape(
        name=name,
        hidden_size=hidden,
        num_heads=number("num_attention_heads"),
        intermediate_size=number("intermediate_size", number("ffn_dim", number("n_inner", 4 * hidden))),
        max_position_embeddings=number("max_position_embeddings", 2048),
        rope_theta=theta,
        rope_scaling=scaling,
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        raw=raw,
        **seen,
    )


def _reason(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
