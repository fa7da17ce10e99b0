"""Findings about this engine's own configurations: what `engine serve` would refuse, by the code that refuses it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ....core.arithmetic.shape import ModelShape, shape_from_config
from ....core.config import (
    UNSUPPORTED,
    LoadedConfig,
    ServeConfig,
    find_shape,
    load_config,
    require_machine,
    resolve,
)
from ....core.config.hardware import Hardware
from ....core.errors import CapacityError, ConfigError, ModelError
from ....core.places import Place
from ...cost.devices import hardware_of
from ..facts.sheets import ARITHMETIC
from ..parsing.placeholders import known_part
from ..releases.table import option_of
from .combinations import memory_not_looked_at
from .context import Context
from .findings import Finding

# What simulate, diagnose and this checker take all the same, since others serve it.
_ONLY_PREDICTED = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


def served_findings(context: Context) -> Iterator[Finding]:
    """Knobs that are known and not served yet; values that contradict each other; on a named GPU, want of memory."""
    try:
        loaded = _loaded(context)
    except ConfigError as error:
        if "preset" in context.values:
            yield _refused(context, "CF-02", str(error), ("--preset",))
        return  # a value that is wrong by itself has a finding of its own
    for knob in UNSUPPORTED:
        value = getattr(loaded.config, knob.name)
        if knob.asks(value):
            severity = "warning" if knob.name in _ONLY_PREDICTED else "error"
            message = f"{knob.name}={value}: `engine serve` refuses it for now: {knob.why}."
            yield _refused(context, "CF-01", message, (option_of(knob.name),), severity)
    yield from _resolved_findings(context, loaded)


def _resolved_findings(context: Context, loaded: LoadedConfig) -> Iterator[Finding]:
    hardware = _hardware(context, loaded.config)
    shape = _shape(context.model, loaded.config.model)
    if hardware is not None and shape is None and context.device is not None:
        why = f"the model {loaded.config.model} has no sheet here"
        yield memory_not_looked_at(context, context.device, why, "Name its config.json with --model.")
    try:
        resolved = resolve(loaded, hardware, shape)
        if hardware is not None:
            require_machine(resolved)
    except ConfigError as error:
        for line in str(error).splitlines():
            yield _refused(context, "CF-02", line)
    except CapacityError as error:
        yield _refused(context, "CF-03", str(error), ("--gpu-memory-utilization",))


def _loaded(context: Context) -> LoadedConfig:
    """The configuration with the places where the checked input has its values."""
    loaded = load_config(known_part(context.values), purpose="inspect")
    entries = {
        name: entry if entry.origin == "preset" else replace(entry, place=context.place_of([option_of(name)]))
        for name, entry in loaded.entries.items()
    }
    return replace(loaded, entries=entries)


def _hardware(context: Context, config: ServeConfig) -> Hardware | None:
    return None if context.device is None or config.device == "cpu" else hardware_of(context.device)


def _shape(model: Mapping[str, Any], name: str) -> ModelShape | None:
    """The shape by the facts handed in, else by the model's name."""
    config = model.get(ARITHMETIC, model)
    try:
        return shape_from_config(config) if "hidden_size" in config else find_shape(name)
    except ModelError:
        return None


def _refused(
    context: Context, code: str, message: str, flags: tuple[str, ...] = (), severity: Any = "error"
) -> Finding:
    place, text = _place_in(context, message) if not flags else (context.place_of(flags), message)
    return Finding(
        code=code,
        severity=severity,
        change="conflict",
        message=text.removeprefix("(given): "),
        place=place,
        flags=tuple(flag for flag in flags if context.use(flag) is not None),
        stops=True,
    )


def _place_in(context: Context, message: str) -> tuple[Place, str]:
    """The place that a message begins with, and the rest of it."""
    for use in context.parsed.uses:
        if message.startswith(f"{use.option.place}: "):
            return use.option.place, message.removeprefix(f"{use.option.place}: ")
    return context.configuration.start_place, message
