"""Refuses a configuration that cannot work on this machine, before anything is loaded."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..arithmetic.memory import MemoryBudget
from ..arithmetic.model_sheets import sheet_of, sheet_shape
from ..arithmetic.rope_scaling import CHANGING_ROPES, rope_kind
from ..arithmetic.shape import ModelShape, read_shape
from ..errors import CamshaftError, CapacityError, ConfigError, ModelError
from .budget import memory_of
from .hardware import Hardware, find_cpu
from .resolve import Resolved, resolve
from .sources import load_config, preset_names


def find_shape(model: str) -> ModelShape | None:
    """The shape of a model that is on this machine or has a sheet, without loading or fetching it.

    None where neither is so, or its `config.json` is of a kind that only transformers reads.
    """
    try:
        folder = _local_folder(model)
        return read_shape(folder) if folder is not None else sheet_shape(model)
    except ModelError:
        return None


def _local_folder(model: str) -> Path | None:
    """The folder with the model's `config.json`, as a path, a demo model or in the hub's cache."""
    path = Path(model).expanduser()
    if os.path.isfile(path / "config.json"):  # False for a name that no file can have, where Path raises
        return path
    from ..model.loading.demo import demo_models, folder_of

    demo = demo_models().get(model.lower())
    if demo is not None:
        folder = folder_of(demo)
        return folder if (folder / "config.json").is_file() else None
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    snapshots = home / "hub" / f"models--{model.replace('/', '--')}" / "snapshots"
    found = sorted(snapshots.glob("*/config.json")) if os.path.isdir(snapshots) else []
    return found[-1].parent if found else None


def require_machine(resolved: Resolved) -> MemoryBudget | None:
    """The memory budget, or None where the model's shape is not known yet.

    Raises ConfigError where max_model_len is beyond the model's positions, or the device is missing or lacks a
    storage type, and CapacityError where the model, its cache and its activations do not fit, with the arithmetic;
    what the device refuses comes with a preset that works here, if one does.
    """
    config, hardware = resolved.config, resolved.hardware
    _refuse_longer_than_model(resolved)
    if config.device == "cuda" and (hardware is None or hardware.kind != "cuda"):
        here = find_cpu()
        raise ConfigError(
            f"device: cuda ({resolved.values['device'].why or 'written'}): no NVIDIA GPU answers on this machine, "
            f"which is {here.describe()}; {_advice(here, config.model)}"
        )
    if config.device == "cpu":
        _refuse_gpu_only(resolved)
    _refuse_other_weights(resolved)
    if hardware is None or resolved.shape is None:
        return None
    budget = memory_of(resolved, hardware, resolved.shape)
    try:
        budget.require_fit(_place_of(budget, resolved))
    except CapacityError as error:
        raise CapacityError(
            f"{error} This is {hardware.describe()}; {_advice(hardware, config.model)}"
        ) from error
    return budget


def _refuse_longer_than_model(resolved: Resolved) -> None:
    """Raises ConfigError for a max_model_len beyond the positions that the model can be served with."""
    shape, length = resolved.shape, resolved.values["max_model_len"]
    if shape is None or not isinstance(length.value, int) or length.value <= shape.longest_context:
        return
    kind = rope_kind(shape.rope_scaling or {})
    bound = (
        f"at which its rope scaling ({kind}) begins to change the angles of every position"
        if kind in CHANGING_ROPES
        else "that the model was made for (max_position_embeddings of its config.json)"
    )
    raise ConfigError(
        f"{length.why}: max_model_len: {length.value} is more than the {shape.longest_context} positions {bound}; "
        "lower it"
    )


def _refuse_gpu_only(resolved: Resolved) -> None:
    """Raises ConfigError for a cache type that a CPU is not served with."""
    config = resolved.config
    if config.kv_cache_dtype not in ("auto", config.dtype):
        raise ConfigError(
            f"kv_cache_dtype={config.kv_cache_dtype} ({resolved.values['kv_cache_dtype'].why}): on a CPU the cache has "
            f"the model's type, {config.dtype}; remove it"
        )


def _refuse_other_weights(resolved: Resolved) -> None:
    """Raises ConfigError for a storage of the weights that is neither the checkpoint's nor made when it loads."""
    config, shape = resolved.config, resolved.shape
    on_gpu = config.device == "cuda"
    if config.quantization is None or (on_gpu and shape is None):
        return  # the loader judges a model that nobody has seen yet
    narrowed = on_gpu and shape is not None and shape.quantization != "mxfp4"  # whose experts stay packed
    if narrowed and config.quantization == "fp8":
        return
    if shape is not None and config.quantization == shape.quantization:
        return
    made = ", or quantised to fp8 at load" if narrowed else ""
    raise ConfigError(
        f"quantization={config.quantization} ({resolved.values['quantization'].why}): weights are served as "
        f"the checkpoint stores them{made}; remove it, or name a checkpoint that is stored so"
    )


def _place_of(budget: MemoryBudget, resolved: Resolved) -> str:
    """Where the cache's size was written, if it was."""
    return resolved.values[budget.kv_given].why.strip("()") if budget.kv_given else ""


def _advice(hardware: Hardware, model: str) -> str:
    found = presets_for(hardware, model)
    made = [name for name in found if _is_made_for(name, hardware)]
    if made:
        return f"a preset that works here: {', '.join(made)} (engine serve --config {made[0]})"
    if found:
        return f"no preset is made for it; one for another device that fits: {', '.join(found)}"
    return "no preset is made for it"


def presets_for(hardware: Hardware, model: str = "") -> list[str]:
    """Serving presets that this device can start, by the arithmetic where the model's shape is known.

    Those made for the device come first, and of these those of the same `model`.
    """
    found = [name for name in preset_names() if _starts(name, hardware)]
    wanted = sheet_of(model) if model else None
    other = {name for name in found if wanted is None or sheet_of(load_config(name).config.model) != wanted}
    return sorted(found, key=lambda name: (not _is_made_for(name, hardware), name in other))


def _is_made_for(preset: str, hardware: Hardware) -> bool:
    """Whether a preset's name begins with the device's: `h100-8b` and `NVIDIA H100 80GB HBM3`."""
    return preset.partition("-")[0] in re.split(r"[^a-z0-9]+", hardware.name.lower())


def _starts(name: str, hardware: Hardware) -> bool:
    try:
        loaded = load_config(name)
        if loaded.config.device not in ("auto", hardware.kind):
            return False
        shape = find_shape(loaded.config.model)
        resolved = resolve(loaded, hardware, shape)
        if shape is None:
            return hardware.kind == "cpu"
        return memory_of(resolved, hardware, shape).fits
    except CamshaftError:
        return False
