"""From a resolved configuration to the parts of a server; nothing heavy is imported before it is needed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from ..config import Resolved, ServeConfig
from .api.prompts import Tokenizer
from .engine.process import Engine, EngineFactory

if TYPE_CHECKING:
    from collections.abc import Callable

log = structlog.get_logger()
_SECRET = frozenset({"api_key"})


@dataclass(frozen=True, slots=True)
class Parts:
    """What a server is put together from."""

    config: ServeConfig  # resolved
    engine_factory: EngineFactory  # pickled; called in the engine process
    load_tokenizer: Callable[[], Tokenizer]
    model_folder: Path | None = None  # holds generation_config.json
    device: str = "CPU"  # as the log names it
    given: Mapping[str, Any] = field(default_factory=dict)  # values that somebody wrote, for the log


def parts_of(resolved: Resolved, folder: Path) -> Parts:
    """The parts for a resolved configuration whose model lies in `folder`."""
    config = with_key_from_environment(resolved.config)
    given = {
        name: "(set)" if name in _SECRET else _shown(effective.value)
        for name, effective in resolved.values.items()
        if effective.origin in ("given", "preset") and effective.value is not None
    }
    return Parts(
        config=config,
        engine_factory=partial(open_engine, config.model_dump_json()),
        load_tokenizer=partial(load_tokenizer, config.tokenizer or config.model),
        model_folder=folder,
        device="GPU" if config.device == "cuda" else "CPU",
        given=given,
    )


def _shown(value: Any) -> Any:
    """Lists and mappings as JSON, so that a line of the log stays readable."""
    return json.dumps(value) if isinstance(value, (tuple, list, dict)) else value


def with_key_from_environment(config: ServeConfig) -> ServeConfig:
    """Takes the API key from $CAMSHAFT_API_KEY where the configuration has none, so that no file holds it."""
    key = os.environ.get("CAMSHAFT_API_KEY")
    return config.model_copy(update={"api_key": (key,)}) if key and not config.api_key else config


def open_engine(config_json: str) -> Engine:
    """In the engine process: an engine for a resolved configuration, not opened yet."""
    from ..build import build_engine

    config = ServeConfig.model_validate_json(config_json)
    if config.device == "cpu":
        _tell_of_compiling()
    return build_engine(config)


def _tell_of_compiling() -> None:
    """Logs when kernels begin to be compiled, for as long as this process lives: once the server answers, a
    request waits for it."""
    from ...kernels.native.compiling import watch_compiler

    watch_compiler(lambda text: log.info(f"{text}; this may take half a minute"))


def load_tokenizer(name: str) -> Tokenizer:
    """The tokenizer of a model's folder, hub id or demo name. Raises ModelError."""
    from ..model.loading.hub import locate
    from ..tokenizer import Tokenizer as FolderTokenizer

    return FolderTokenizer(locate(name))
