"""From a model folder to a shape and a running model: the project's own definition, or transformers'."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from ..errors import ModelError
from ..shape import ModelShape, shape_from_config
from ..tokenizer import eos_token_ids
from .base import Model
from .loading import GGUF_IN_FOLDER, open_weights
from .loading.files import read_json
from .registry import DENSE, build, obstacle


def model_shape(folder: Path) -> ModelShape:
    """Shape of the model in a folder, its end tokens gathered from every file that names some.

    Raises ModelError: config.json missing or unusable, or an architecture that nothing here can run.
    """
    raw = read_json(folder / "config.json")
    ends = eos_token_ids(folder)
    if not _is_ours(raw, folder):
        from .fallback import fallback_shape

        return replace(fallback_shape(folder), eos_token_ids=ends)
    return replace(shape_from_config(raw, folder.name), eos_token_ids=ends)


def open_model(folder: Path, shape: ModelShape, device: torch.device, dtype: torch.dtype) -> Model:
    """The model of `model_shape(folder)` with its weights on the device. Raises ModelError."""
    if obstacle(shape) is None:
        return build(shape, open_weights(folder), device, dtype)
    from .fallback import FallbackModel

    return FallbackModel(folder, device, dtype, shape)


def _is_ours(raw: dict, folder: Path) -> bool:
    """Whether the project's own definitions run it. A family of ours with a broken configuration is an error."""
    architectures = raw.get("architectures")
    named = isinstance(architectures, list) and architectures and architectures[0] in DENSE
    try:
        reason = obstacle(shape_from_config(raw, folder.name))
    except ModelError:
        if named:
            raise
        reason = "a configuration of another family"
    if reason is not None and (folder / GGUF_IN_FOLDER).exists():
        raise ModelError(
            f"{folder.name}: {reason} is not supported from GGUF; use the model's safetensors instead"
        )
    return reason is None
