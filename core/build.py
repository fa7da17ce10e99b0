"""From a loaded configuration to an engine that can be opened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .arithmetic.shape import ModelShape, read_shape
from .config import (
    LoadedConfig,
    Resolved,
    ServeConfig,
    find_hardware,
    find_shape,
    policy_file,
    require_machine,
    resolve,
)
from .engine import Engine
from .errors import ConfigError, ModelError


def resolve_for_serving(
    loaded: LoadedConfig, progress: Callable[[str, int, int], None] | None = None
) -> Resolved:
    """Every effective value for serving on this machine. Fetches a named demo model if it is not here yet,
    telling `progress(stage, done, total)`. Raises ConfigError or ModelError.
    """
    from .model.loading.folder import silent
    from .model.loading.hub import locate

    if not loaded.config.model:
        raise ConfigError("no model: name one in the configuration (`model:`) or on the command line")
    hardware = find_hardware(loaded.config.device)
    require_machine(resolve(loaded, hardware, find_shape(loaded.config.model)))  # before anything is fetched
    folder = locate(loaded.config.model, progress=progress or silent)
    resolved = resolve(loaded, hardware, _shape(folder))
    require_machine(resolved)
    return resolved


def _shape(folder: Path) -> ModelShape:
    try:
        return read_shape(folder)
    except ModelError:  # a family whose configuration has other keys; transformers may know it
        from .model.select import model_shape

        return model_shape(folder)


def build_engine(config: ServeConfig) -> Engine:
    """An engine for a resolved configuration, not opened yet. Raises ConfigError."""
    from .execute.torch_executor import TorchExecutor

    return Engine(config, TorchExecutor.from_config(config), policy_file(config))
