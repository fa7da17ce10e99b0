"""Model sheets: the shapes of common open models, so that a prediction or a refusal needs no download.

A sheet is YAML under `presets/models`: the keys of the model's `config.json` that arithmetic needs,
with their source. Names are matched as people write them; a format in the name (`-AWQ`,
`-FP8-dynamic`) sets the quantisation.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from ..errors import EvidenceError, ModelError
from ..places import load_yaml
from .shape import ModelShape, read_shape, shape_from_config

FOLDER = Path(__file__).resolve().parents[2] / "presets" / "models"


class ModelSheet(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """One sheet, as written.

    `default_sampling` is "sorted" where the model's generation_config.json asks for top-k with top-p,
    which makes a sampler sort the logits of every row.
    """

    name: str
    source: str
    aliases: list[str]
    config: dict[str, Any]
    default_sampling: Literal["plain", "sorted"] = "plain"  # for requests that name none


def model_names() -> list[str]:
    """Names of the sheets that are shipped, in alphabetical order."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def shape_named(name: str) -> ModelShape:
    """The shape of a model: a folder or `config.json`, a sheet's name, or a Hub name.

    Raises ModelError when nothing answers to the name.
    """
    path = Path(name)
    if os.path.exists(path) and (path.suffix == ".json" or (path / "config.json").exists()):
        return read_shape(path)
    shape = sheet_shape(name)
    if shape is None:
        raise ModelError(
            f"model {name!r} has no sheet and is no folder with a config.json; sheets: {', '.join(model_names())}"
        )
    return shape


def sheet_of(name: str) -> Path | None:
    """The file of the sheet that answers to a name, or None."""
    stem = _index().get(_split(name)[0])
    return None if stem is None else FOLDER / f"{stem}.yaml"


def sheet_shape(name: str) -> ModelShape | None:
    """The shape of the model whose sheet answers to a name, with the quantisation that the name states; or None."""
    path = sheet_of(name)
    if path is None:
        return None
    method = _split(name)[1]
    shape = shape_from_config(read_sheet(path).config, name=name)
    if method and method != shape.quantization:
        raw = {**shape.raw, "quantization_config": {"quant_method": method}}
        shape = replace(shape, quantization=method, raw=raw)
    return shape


def default_sampling(name: str) -> str:
    """How tokens of requests without sampling parameters are drawn; "plain" for a model without sheet."""
    path = sheet_of(name)
    return read_sheet(path).default_sampling if path else "plain"


@cache
def read_sheet(path: Path) -> ModelSheet:
    """One sheet, checked against its schema. Raises EvidenceError."""
    try:
        return msgspec.convert(load_yaml(path.read_text(encoding="utf-8")), ModelSheet)
    except (OSError, ValueError) as error:
        raise EvidenceError(f"{path.name}: {error}") from error


@cache
def _index() -> dict[str, str]:
    index: dict[str, str] = {}
    for path in sorted(FOLDER.glob("*.yaml")):
        for alias in (path.stem, *read_sheet(path).aliases):
            index[_split(alias)[0]] = path.stem
    return index


# Words of a name that say nothing about the shape, and those that name a storage format.
_PLAIN = {
    "instruct", "chat", "it", "hf", "base", "thinking", "preview", "dynamic", "bf16", "fp16", "gguf", "meta",
    "block", "quantized", "maverick", "v1", "v2", "4bit", "8bit", "bnb", "turbo", "2501", "2503", "2506",
}  # fmt: skip
_FORMATS = {
    "fp8": "fp8", "awq": "awq", "gptq": "gptq", "int4": "int4", "int8": "int8", "w4a16": "int4", "w8a8": "int8",
    "w8a16": "int8_weights", "nvfp4": "nvfp4", "fp4": "nvfp4", "4bit": "bnb4", "q4": "q4_k_m", "q8": "q8_0",
    "mxfp4": "mxfp4",
}  # fmt: skip


def _split(name: str) -> tuple[str, str | None]:
    """A name's comparable form and the quantisation its words state."""
    words = [w for w in re.split(r"[-_\s/:]+", name.rsplit("/", 1)[-1].lower()) if w]
    method = next((_FORMATS[w] for w in words if w in _FORMATS), None)
    kept = [w for w in words if w not in _PLAIN and w not in _FORMATS]
    return "".join(kept).removesuffix(".yaml"), method
