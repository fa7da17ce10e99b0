"""`engine calibrate`: measure this machine and write its hardware sheet."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .names import presets, set_option
from .output import echo, output_option, require_writable, user_errors, writing

if TYPE_CHECKING:
    from ..core.config import Resolved


@click.command()
@click.argument("config", default="cpu-demo", shell_complete=presets)
@output_option("--output", "Where the sheet goes; default: where predictions look for it.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    default=45.0,
    show_default=True,
    help="How long steps are timed; three rounds of each kind at least.",
)
@set_option
def calibrate(config: str, output: Path | None, seconds: float, overrides: tuple[str, ...]) -> None:
    """Time steps of CONFIG's model on this machine and write its hardware sheet.

    Takes a minute to three on a CPU. Keep the machine idle meanwhile; what was timed while other processes
    took its cores is left out as far as enough else was timed.
    """
    from ..core.build import resolve_for_serving
    from ..core.config import load_config
    from ..core.errors import ConfigError
    from ..diagnostics.cost.fit import write_sheet
    from ..diagnostics.simulate.devices import calibrated_sheet

    path = output or calibrated_sheet()
    if output is None:
        with writing(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        require_writable(path, "--output")
    with user_errors():
        resolved = resolve_for_serving(load_config(config, overrides))
        if resolved.config.device != "cpu":
            raise ConfigError("a CPU is calibrated here; tests/gpu measures a GPU and writes its sheet")
        sheet = _calibrate(resolved, seconds)
    with writing(path):
        write_sheet(path, sheet, "engine calibrate")
    device = "" if output is None else f" --gpu {path}"
    click.echo(f"{path}: written; `engine simulate {config}{device}` uses it")


def _calibrate(resolved: Resolved, seconds: float) -> dict[str, Any]:
    from ..core.errors import ConfigError
    from ..core.execute.torch_executor import TorchExecutor
    from ..diagnostics.cost import calibrate as cost
    from ..diagnostics.cost.machine import curves, fit_steps
    from ..diagnostics.cost.measure import measure
    from ..diagnostics.cost.trial import AT_ONCE, host_us, trial
    from .progress import opening, stages

    config, shape, hardware = resolved.config, resolved.shape, resolved.hardware
    if shape is None or hardware is None:
        raise ConfigError(f"the shape of {config.model} is not known")
    executor, dtype = TorchExecutor.from_config(config), str(config.dtype)
    _say(f"loading {config.model}")
    with closing(executor):
        with stages() as progress, opening(lambda text: progress(text, 0, 0), on_cpu=True):
            capacity = executor.open()
        plain, policy = config.model_copy(update={"record": None}), resolved.policy
        _say("serving a small load")
        steps = trial(executor, capacity, plain, policy)
        timings = measure(executor, capacity, seconds=seconds, progress=_say)
        _say("serving the small load again")
        again = trial(executor, capacity, plain, policy)
    _say("copies and products of the bare machine")
    machine, fitted = cost.measure_machine(), fit_steps(timings.medians())
    per_sequence = _sequence_us()
    gap_us = (host_us(steps) + host_us(again)) / 2
    host = (max(0.0, gap_us - AT_ONCE * per_sequence), per_sequence)
    name = f"this machine ({hardware.describe()})"
    found = curves(fitted, machine, shape, dtype)
    sheet = cost.machine_sheet(name, hardware.memory_bytes, machine, found, host, dtype)
    sheet = cost.with_trial(sheet, shape, dtype, [*steps, *again])
    _say_quality(timings, fitted.mean_error, sheet["error_band"])
    return sheet


def _say(text: str) -> None:
    echo(text, err=True)


def _say_quality(timings: Any, fit_error: float, band: dict[str, Any]) -> None:
    """What the measurement is worth."""
    disturbed, spread = timings.disturbed_share(), timings.spread()
    _say(
        f"{timings.rounds} rounds; the same step varied by {spread:.1%} between them; {disturbed:.0%} of the steps "
        f"were timed while other processes took cores"
    )
    _say(
        f"the sheet meets the timed steps within {fit_error:.1%} on average, and those of a small load served "
        f"before and after within {band['tpot_percent']:g} % (decodes) and {band['ttft_percent']:g} % (prompts)"
    )
    if disturbed > 0.5 or spread > 0.1 or fit_error > 0.04:
        _say("the machine was not quiet: predictions from this sheet may be off by as much; calibrate again")


def _sequence_us() -> float:
    """Microseconds that scheduler and bookkeeping take for each further sequence in a step."""
    from ..diagnostics.bench.overhead import measure

    few, many = (measure(count, steps=90).engine_us for count in (1, 64))
    return max(0.0, (many - few) / 63)
