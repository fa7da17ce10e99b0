"""`engine bench policies`: one load under several policies, told as it goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from .loads import workload_of
from .output import echo, print_columns, write_json

if TYPE_CHECKING:
    from ..core.engine import Engine
    from ..diagnostics.bench.floor import Floor
    from ..diagnostics.bench.policies import Comparison, PolicyResult
    from .progress import Bar, Lines


def compare_policies(
    make: Callable[[str], Engine], source: str, load: str, names: str, options: dict[str, Any]
) -> None:
    """Plays a load under each of the policies `names`, whose engines `make` makes of the configuration `source`.

    options: those of the command.
    """
    from ..core.config import find_hardware, load_config
    from ..diagnostics.bench.policies import compare
    from ..diagnostics.results import parse_targets
    from ..diagnostics.simulate.sweep import require_policy
    from .progress import opening, running

    chosen = [name.strip() for name in names.split(",") if name.strip()]
    for name in chosen:
        require_policy(name)
    workload = workload_of(load, options["requests"])
    hardware = find_hardware(load_config(source, options["overrides"]).config.device)
    on_cpu = hardware is not None and hardware.kind == "cpu"
    with running() as bar, opening(bar.say, on_cpu=on_cpu):
        watch = _Watch(bar, workload.name, source, options)
        compare(
            make,
            workload,
            policies=chosen,
            targets=parse_targets(options["slo"]),
            warmup=options["warmup"],
            seed=options["seed"] or 0,
            watch=watch,
        )
    if options["form"] == "json":
        click.echo(json.dumps(watch.document(), indent=2))
    else:
        from ..diagnostics.bench.render import COLUMNS, findings, side_by_side

        comparison = watch.comparison()
        print_columns(COLUMNS, side_by_side(comparison), figures=True)
        for line in findings(comparison):
            echo(line)
    write_json(options["output"], watch.document())


class _Watch:
    """Follows a comparison: says and writes what there is after each policy, and times the memory beside it."""

    def __init__(self, bar: Bar | Lines, workload: str, source: str, options: dict[str, Any]) -> None:
        self._bar, self._workload, self._source, self._output = bar, workload, source, options["output"]
        self._runs: list[PolicyResult] = []
        self._floor = _floor(source, options["overrides"])

    def begin(self, policy: str, requests: int) -> Bar | Lines:
        if self._floor:
            self._floor.sample()
        return self._bar.begin(policy, requests)

    def finished(self, run: PolicyResult) -> None:
        from ..diagnostics.bench.render import policy_line

        self._runs.append(run)
        if self._floor:
            self._floor.sample()
        try:
            write_json(self._output, self.document())
        except click.ClickException as error:  # the measurement goes on: its end prints the result
            self._bar.say(error.format_message())
        self._bar.say(policy_line(run))

    def comparison(self) -> Comparison:
        """Of the policies that have run."""
        from ..diagnostics.bench.policies import Comparison

        floor = self._floor.tokens_per_s if self._floor else None
        return Comparison(self._workload, tuple(self._runs), floor)

    def document(self) -> dict[str, Any]:
        return {"config": self._source, **self.comparison().to_dict()}


def _floor(source: str, overrides: tuple[str, ...]) -> Floor | None:
    """The byte floor of one stream; None on a GPU or for an unknown model."""
    from ..core.arithmetic.quantization import quantization_named
    from ..core.arithmetic.sizes import weight_bytes
    from ..core.config import find_hardware, find_shape, load_config, resolve
    from ..diagnostics.bench.floor import Floor

    loaded = load_config(source, overrides)
    hardware, shape = find_hardware(loaded.config.device), find_shape(loaded.config.model)
    if hardware is None or hardware.kind != "cpu" or shape is None:
        return None
    dtype = str(resolve(loaded, hardware, shape).config.dtype)
    plain = quantization_named("none")  # a CPU holds every format as its own type
    return Floor(weight_bytes(shape, quantization=plain, dtype=dtype).read_by_one_token(shape))
