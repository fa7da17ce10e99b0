"""From a model folder to a shape and a running model: the project's own definition, or transformers'."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ...kernels.paged_attention import LARGEST_HEAD
from ..arithmetic.shape import ModelShape, shape_from_config
from ..errors import ModelError
from ..json_files import read_json
from ..tokenizer import eos_token_ids
from .base import Model
from .families import DENSE, MIXTURES
from .finite import all_finite, may_be_damaged, require_finite, total
from .fp8 import MXFP4, obstacle_in
from .loading import GGUF_IN_FOLDER, open_weights
from .registry import build, obstacle

if TYPE_CHECKING:
    from .loading import FileWeights

_LAYER_WEIGHT = re.compile(r"model\.layers\.(\d+)\..*\.(weight|bias)$")


def model_shape(folder: Path) -> ModelShape:
    """Shape of the model in a folder, its end tokens gathered from every file that names some.

    Raises ModelError: config.json missing or unusable, weights quantised in a way that is not read here, or
    an architecture that nothing here can run.
    """
    raw = read_json(folder / "config.json")
    quantised = raw.get("quantization_config")
    method = obstacle_in(quantised) if isinstance(quantised, dict) else quantised
    if method:
        raise ModelError(
            f"{folder.name}: its weights are quantised ({method}), which this engine does not load; "
            "use the model in its original precision, or a GGUF file of it"
        )
    ends = eos_token_ids(folder)
    reason = _own_obstacle(raw, folder)
    if reason is None:
        return replace(shape_from_config(raw, folder.name), eos_token_ids=ends)
    if quantised:
        raise ModelError(
            f"{folder.name}: {reason} is not among the project's own model definitions, and quantised weights load "
            "into these alone; use the model in its original precision"
        )
    from .trial import fallback_shape

    return replace(fallback_shape(folder), eos_token_ids=ends)


def open_model(
    folder: Path,
    shape: ModelShape,
    device: torch.device,
    dtype: torch.dtype,
    *,
    quantize_fp8: bool = False,
) -> Model:
    """The model of `model_shape(folder)` with its weights on the device, those of its layers in FP8 with
    `quantize_fp8`. Raises ModelError."""
    if device.type == "cuda" and shape.head_dim > LARGEST_HEAD:
        raise ModelError(
            f"{folder.name}: heads of {shape.head_dim} are larger than the {LARGEST_HEAD} that the GPU kernels take; "
            "use device: cpu"
        )
    if quantize_fp8 and shape.quantization == MXFP4:
        raise ModelError(
            f"{folder.name}: quantization fp8: its weights are already quantised (mxfp4); leave it out"
        )
    if obstacle(shape) is None:
        weights = _Watched(open_weights(folder), device)
        try:
            model = build(shape, weights, device, dtype, quantize_fp8=quantize_fp8)
            weights.require_finite()
            weights.require_read(shape)
            return model
        except ModelError as error:
            if str(folder) in str(error):
                raise
            raise ModelError(f"{weights.last_file or folder}: {error}") from error
    if quantize_fp8:
        raise ModelError(
            f"{folder.name}: quantization fp8 works with the project's own model definitions only"
        )
    from .fallback import FallbackModel

    return FallbackModel(folder, device, dtype, shape)


class _Watched:
    """A weight source that gives tensors on the device, remembers the file of the last one, for error messages,
    sums each, to find NaN and infinity, and knows which ones nobody asked for.
    """

    def __init__(self, source: FileWeights, device: torch.device) -> None:
        self._source, self._device = source, device
        self._sums: dict[str, torch.Tensor] = {}
        self._read: set[str] = set()
        self.last_file: Path | None = None

    def names(self) -> Iterable[str]:
        return self._source.names()

    def get(self, name: str) -> torch.Tensor:
        self.last_file = self._source.file_of(name)
        self._read.add(name)
        tensor = self._source.get(name).to(self._device)
        if may_be_damaged(tensor):
            self._sums[name] = total(tensor)
        return tensor

    def require_finite(self) -> None:
        """Raises ModelError naming the first tensor given so far that holds NaN or infinity."""
        if all_finite(self._sums.values()):
            return
        for name, value in self._sums.items():
            if not bool(value.isfinite()):
                require_finite(self._source, name)

    def require_read(self, shape: ModelShape) -> None:
        """Raises ModelError naming the first weight of the model's layers that was not asked for: what the
        checkpoint means is then more than its architecture's name says.
        """
        unread = [name for name in self._source.names() if name not in self._read and _is_layer(name, shape)]
        if unread:
            raise ModelError(
                f"{len(unread)} weights of its layers have no place in {shape.architecture}, first {unread[0]!r}: "
                "its config.json does not describe this checkpoint"
            )


def _is_layer(name: str, shape: ModelShape) -> bool:
    found = _LAYER_WEIGHT.match(name)
    return found is not None and int(found[1]) < shape.num_layers


def _own_obstacle(raw: dict, folder: Path) -> str | None:
    """As `registry.obstacle`, of a configuration. A family of ours with a broken configuration is an error."""
    architectures = raw.get("architectures")
    named = isinstance(architectures, list) and architectures and architectures[0] in DENSE | MIXTURES
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
    return reason
