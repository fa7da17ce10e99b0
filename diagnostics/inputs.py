"""What a simulation is asked for, in every form that a diagnosis reads: files, command lines, manifests, models."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from ..core.config import LoadedConfig, load_config
from ..core.errors import CamshaftError, ConfigError
from .compat.inputs.read import read_path
from .compat.run import guess_engine
from .diagnose import judged_as_own, named_config, read_subject
from .diagnose.flags import refused_options
from .evidence import Evidence
from .simulate.engines import EngineKind, EngineName


def read_config(
    source: str, overrides: Iterable[str], engine: str | None = None
) -> tuple[LoadedConfig, EngineKind, tuple[str, ...]]:
    """The configuration, whose it is (and of which release, where that is written), and what is to be said of it.

    engine: whose it is said to be.

    Raises ConfigError with the place of a wrong key, and for what is neither a file, a preset, a command nor a model.
    """
    told = tuple(overrides)
    path = Path(source)
    if os.path.isfile(path):
        return _file(path, told)
    if len(source.split()) > 1:
        return _foreign(source, told)
    alone = judged_as_own(source) if engine is None else None
    return named_config(source, told), EngineKind(), (alone,) if alone else ()


def refusals(source: str, overrides: Iterable[str], engine: EngineKind, gpu: str | None) -> tuple[str, ...]:
    """Why the engine's release does not start with these options, as a diagnosis finds; empty where it does."""
    subject = read_subject(
        source, Evidence(), engine=engine.name, version=engine.version, gpu=gpu, overrides=overrides
    )
    return refused_options(subject)


def _file(path: Path, overrides: tuple[str, ...]) -> tuple[LoadedConfig, EngineKind, tuple[str, ...]]:
    try:
        configuration = read_path(path, None)[0]
    except CamshaftError:
        configuration = None
    if configuration is None:
        return load_config(str(path), overrides, purpose="inspect"), EngineKind(), ()
    if configuration.words or configuration.typed:
        return _foreign(str(path), overrides)
    engine: EngineName = "camshaft" if guess_engine(configuration) == "camshaft" else "vllm"
    return load_config(str(path), overrides, purpose="inspect"), EngineKind(engine), ()


def _foreign(source: str, overrides: tuple[str, ...]) -> tuple[LoadedConfig, EngineKind, tuple[str, ...]]:
    """A command line or a manifest."""
    subject = read_subject(source, Evidence(), overrides=overrides)
    if not subject.given.get("model"):
        raise ConfigError(f"{source}: names no model; --set model=NAME does")
    notes = subject.notes
    if subject.sglang:
        notes = (*notes, "an SGLang command: replayed by vLLM's scheduler and defaults, which come closest")
    return load_config(dict(subject.given), overrides, purpose="inspect"), subject.engine, notes
