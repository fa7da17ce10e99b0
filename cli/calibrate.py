"""`engine calibrate`: measure this machine and write its hardware sheet."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("config", default="cpu-demo")
@click.option(
    "--output",
    type=click.Path(dir_okay=False),
    help="Where the sheet goes; default: where predictions look for it.",
)
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a value of the configuration."
)
def calibrate(config: str, output: str | None, overrides: tuple[str, ...]) -> None:  # fmt: skip
    """Time steps of CONFIG's model on this machine and write its hardware sheet.

    Takes a minute or two on a CPU. Keep the machine idle meanwhile: what disturbs it is measured too.
    """
    from ..core.errors import CamshaftError

    try:
        path = _calibrate(config, output, overrides)
    except CamshaftError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{path}: written; `engine simulate {config}` uses it")


def _calibrate(config: str, output: str | None, overrides: tuple[str, ...]) -> Path:
    from ..core.build import settle
    from ..core.config import load_config
    from ..core.errors import ConfigError
    from ..core.execute.torch_executor import TorchExecutor
    from ..diagnostics.cost.calibrate import fit_machine, machine_sheet, measure_machine, measure_steps
    from ..diagnostics.cost.fit import write_sheet
    from ..diagnostics.simulate.devices import calibrated_sheet

    resolved = settle(load_config(config, overrides))
    if resolved.config.device != "cpu" or resolved.shape is None or resolved.hardware is None:
        raise ConfigError("a CPU is calibrated here; tests/gpu measures a GPU and writes its sheet")
    executor = TorchExecutor(resolved.config)
    with closing(executor):
        timings = measure_steps(executor, executor.open(), lambda text: click.echo(text, err=True))
    machine, dtype = measure_machine(), str(resolved.config.dtype)
    sheet = machine_sheet(
        f"this machine ({resolved.hardware.describe()})",
        resolved.hardware.memory_bytes,
        machine,
        fit_machine(timings, machine, resolved.shape, dtype),
        _host_us(),
        dtype,
    )
    path = Path(output) if output else calibrated_sheet()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_sheet(path, sheet, "engine calibrate")
    return path


def _host_us() -> tuple[float, float]:
    """Microseconds that scheduler and bookkeeping take for a step, and for each sequence in it."""
    from ..diagnostics.bench.overhead import measure

    few, many = (measure(count, steps=90).engine_us for count in (1, 64))
    return few, max(0.0, (many - few) / 63)


__all__: list[Any] = ["calibrate"]
