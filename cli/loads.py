"""The load and the device that a command's options name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from .names import gpus, workloads

if TYPE_CHECKING:
    from ..core.workload import Workload


PACES = ("concurrency", "rate")
GOOD = "95 % of its requests keep them (ttft_p99=1s asks for 99 %; _p50, _p90 and _p95 likewise)"
SLO_HELP = """A request keeps the targets of --slo where its ttft, tpot (mean time per output token), e2e and itl (the
99th percentile of its own gaps between tokens) are within them."""
LOAD_HELP = """\b
A load is a preset (`engine config list workloads`), a trace, or YAML:
  arrival: {kind: poisson, rate: 8, requests: 400}
  input_tokens: {lognormal: {mean: 1150, std: 980}, max: 8000}
  output_tokens: {uniform: [64, 512]}
A trace is CSV with TIMESTAMP, ContextTokens and GeneratedTokens, JSON lines
with timestamp (ms), input_length and output_length, or a recording of
`engine serve --record`. `engine config schema --of workload` has every key."""


def _refuse_empty(_: click.Context, __: click.Parameter, name: str | None) -> str | None:
    if name is not None and not name.strip():
        raise click.BadParameter("a name is needed; `engine config list gpus` lists them")
    return name


gpu_option = click.option(
    "--gpu",
    metavar="NAME",
    shell_complete=gpus,
    callback=_refuse_empty,
    help="Device or hardware sheet, e.g. H100, A100-80GB, RTX 3090, cpu.yaml.",
)


def load_options(default: str) -> Callable[[Any], Any]:
    """The options that say which load is played: --workload, --rate and --concurrency. `default` is told in the help."""

    def decorate(command: Any) -> Any:
        for option in reversed(
            (
                click.option(
                    "--workload",
                    metavar="FILE|PRESET",
                    shell_complete=workloads,
                    help=f"The load, see below; default: {default}.",
                ),
                click.option(
                    "--rate",
                    type=click.FloatRange(min=0, min_open=True),
                    help="Play it at so many requests a second.",
                ),
                click.option(
                    "--concurrency",
                    type=click.IntRange(min=1),
                    help="Play it in a closed loop of so many clients.",
                ),
            )
        ):
            command = option(command)
        return command

    return decorate


def refuse_both(options: Mapping[str, Any], *pairs: tuple[str, str]) -> None:
    """Raises click.UsageError where both options of a pair are given: one of them would go unused."""
    for one, other in pairs:
        if options[one] and options[other]:
            raise click.UsageError(f"{_flag(one)} and {_flag(other)} exclude each other")


def flags_given(options: Mapping[str, Any], *names: str) -> list[str]:
    """Those of the options that are given, as they are typed."""
    return [_flag(name) for name in names if options[name]]


def _flag(name: str) -> str:
    return "--" + {"overrides": "set", "engine_name": "engine", "engine_version": "version"}.get(
        name, name
    ).replace("_", "-")


def workload_of(
    source: str,
    requests: int | None,
    concurrency: int | None = None,
    rate: float | None = None,
    *,
    lasting: bool = False,
) -> Workload:
    """A workload file or preset, played as the options say. Raises ConfigError or EvidenceError.

    `lasting`: a rate is played long enough to tell whether it holds, unless `requests` says how many are.
    """
    from ..core.workload import load_workload

    workload = load_workload(source)
    if concurrency:
        workload = workload.at_concurrency(concurrency)
    if rate:
        workload = workload.at_rate(rate)
        if lasting and workload.shape.arrival.kind == "poisson":
            from ..diagnostics.simulate.steady import wanted_at

            requests = requests or max(workload.count, wanted_at(rate))
    return workload.first(requests) if requests else workload
