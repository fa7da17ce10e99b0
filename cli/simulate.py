"""`engine simulate`: the scheduler on a virtual clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .loads import (
    GOOD,
    LOAD_HELP,
    PACES,
    SLO_HELP,
    flags_given,
    gpu_option,
    load_options,
    refuse_both,
    workload_of,
)
from .names import assignments, configurations, policy_list, set_option
from .output import console, echo, user_errors

if TYPE_CHECKING:
    from ..diagnostics.simulate import Prepared

CHECKED_LOAD = "mixed-small"
CHECKED_POLICIES = "static,continuous,continuous-chunked"
REPEATS = 5
TASKS = (("policies", "sweep"), ("policies", "until_saturation"), ("sweep", "until_saturation"))
EXCLUDED = (
    PACES,
    *TASKS,
    *(("until_saturation", name) for name in (*PACES, "requests")),
    *(("check_against", task) for task in ("sweep", "until_saturation")),
)

EPILOG = f"""{SLO_HELP} With --until-saturation a rate holds where
{GOOD}, the server's filling left out, and it is below what a full server gets through.

{LOAD_HELP}

\b
Examples:
  engine simulate Qwen/Qwen3-8B --gpu H100 --rate 20
  engine simulate h100-8b --until-saturation --slo ttft=500ms,itl=50ms
  engine simulate "vllm serve Qwen/Qwen3-8B" --gpu A100 --set max_num_seqs=64
  engine simulate h100-8b --sweep max_num_batched_tokens=512,2048,8192

Exit status: 0 simulated; 2 something given is wrong or cannot be read; 1 anything else, such as what does not fit.
"""


@click.command(epilog=EPILOG)
@click.argument("config", required=False, shell_complete=configurations)
@gpu_option
@load_options("chat")
@click.option("--requests", type=click.IntRange(min=1), help="Only the first so many; of sessions, sessions.")
@click.option(
    "--engine", "engine_name", type=click.Choice(["camshaft", "vllm"]), help="Whose it is.  [default: found]"
)
@click.option(
    "--version", "engine_version", metavar="X.Y.Z", help="Release of that engine; default: the newest."
)
@click.option(
    "--policies",
    metavar="A,B,..",
    shell_complete=policy_list,
    help="Several policies side by side: naive,static,continuous,continuous-chunked.",
)
@click.option(
    "--sweep", metavar="KNOB=A,B,..", shell_complete=assignments, help="One knob over several values."
)
@click.option(
    "--until-saturation", is_flag=True, help="Find the highest rate that lasts and keeps the targets."
)
@click.option("--slo", metavar="TARGETS", help="Targets for goodput, e.g. ttft=500ms,itl=50ms; see below.")
@click.option(
    "--check-against",
    metavar="FILE|here",
    help="Predict a table of measured serving points, or what this engine does here with the load (default: "
    "mixed-small) under each policy, and print the errors. Exit status 0 whatever they are.",
)
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    help=f"Runs of each policy with --check-against here; policies take turns.  [default: {REPEATS}]",
)
@click.option(
    "--lesson",
    type=click.Choice(["gap", "fragmentation"]),
    help="An exercise with its own model, device and load.",
)
@set_option
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def simulate(config: str | None, **options: Any) -> None:
    """Play a load through the scheduler on a virtual clock.

    CONFIG is a preset, this engine's YAML, a vLLM YAML or manifest, a command line in quotes, or a model: its name, or
    a folder with a config.json.
    """
    with user_errors():
        if options["lesson"]:
            _refuse_unused("--lesson", config, options)
            _lesson(options["lesson"], options["form"])
        elif options["check_against"] not in (None, "here"):
            _refuse_unused("--check-against FILE", config, options)
            _check(options["check_against"], options["form"])
        elif options["repeats"] and options["check_against"] is None:
            raise click.UsageError("--repeats goes with --check-against here")
        elif config is None:
            raise click.UsageError("CONFIG is needed: a configuration file or a preset")
        else:
            _simulate(config, options)


def _refuse_unused(whole: str, config: str | None, options: dict[str, Any]) -> None:
    """What brings its own configuration and load takes nobody else's."""
    own = {"lesson", "form"} | ({"check_against"} if whole != "--lesson" else set())
    given = ["CONFIG"] if config else []
    given += flags_given(options, *(name for name in options if name not in own))
    if given:
        raise click.UsageError(
            f"{whole} brings its own configurations and loads: leave out {', '.join(given)}"
        )


def _simulate(config: str, options: dict[str, Any]) -> None:
    refuse_both(options, *EXCLUDED)
    prepared = _prepare(config, options)
    checked = options["check_against"] == "here"
    workload = workload_of(
        options["workload"] or (CHECKED_LOAD if checked else "chat"),
        options["requests"],
        options["concurrency"],
        options["rate"],
        lasting=not checked,
    )
    if checked:
        _check_here(prepared, workload, config, options)
        return
    if options["workload"] is None:
        click.echo("load: the preset chat (none was given)", err=True)
    if options["policies"] or options["sweep"]:
        _series(prepared, workload, options)
        return
    if options["until_saturation"]:
        _highest(prepared, workload, options)
        return
    done = prepared.replay(workload)
    if options["form"] == "json":
        click.echo(json.dumps(_document(prepared, workload.name, done), indent=2))
        return
    from ..diagnostics.simulate.render import print_replay

    print_replay(console(), prepared, done, workload)


def _document(prepared: Prepared, name: str, done: Any) -> dict[str, Any]:
    return {
        "model": prepared.shape.name,
        "hardware": prepared.hardware.name,
        "engine": prepared.engine.describe(),
        "workload": name,
        **done.whole.to_dict(),
        **_kept(done.result),
        **_after_start(done.later),
        "step_time_shares": done.log.shares(),
        "blocked_s": done.log.blocked,
        "memory": {"arithmetic": prepared.budget.arithmetic(), **dict(prepared.budget.rows())},
        "assumptions": list(prepared.assumptions),
    }


def _after_start(later: Any) -> dict[str, Any]:
    """What is sent once all clients that start at once have begun."""
    if later is None:
        return {}
    told = later.to_dict()
    latencies = {name: told[name] for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")}
    return {"after_start": {**latencies, **_kept(later)}}


def _kept(result: Any) -> dict[str, Any]:
    """The share of requests that keep the targets, whether that is enough, and the rule."""
    if not result.targets.any:
        return {}
    return {
        "good_share": result.good_share,
        "targets_kept": result.keeps_targets,
        "rule": result.targets.rule(),
    }


def _prepare(config: str, options: dict[str, Any]) -> Prepared:
    from dataclasses import replace

    from ..core.arithmetic.model_sheets import shape_named
    from ..core.config import find_shape
    from ..diagnostics.compat.releases.versions import resolve
    from ..diagnostics.inputs import read_config, refusals
    from ..diagnostics.results import parse_targets
    from ..diagnostics.simulate import EngineKind, prepare
    from ..diagnostics.simulate.devices import device_for, named_by_its_file

    loaded, found, notes = read_config(config, options["overrides"], options["engine_name"])
    name = options["engine_name"] or found.name
    if name == "camshaft" and options["engine_version"]:
        raise click.UsageError(
            f"--version is a release of vLLM, and {config} is read as this engine's; --engine vllm predicts vLLM"
        )
    for note in notes:
        click.echo(f"{config}: {note}", err=True)
    if name != "camshaft" and options["policies"]:
        click.echo(
            f"--policies: {name} has none of these; this engine's scheduler with {name}'s defaults", err=True
        )
    version = options["engine_version"] or (found.version if name == found.name else None)
    if name == "vllm" and version is not None and (note := resolve(name, version)[1]):
        click.echo(note, err=True)
    if options["engine_name"] is None and name != "camshaft":
        click.echo(
            f"{config}: read as {name}'s, and predicted so; --engine camshaft predicts this engine", err=True
        )
    if origin := named_by_its_file(loaded, options["gpu"]):
        click.echo(f"{config}: {origin}", err=True)
    shape = find_shape(loaded.config.model) or shape_named(loaded.config.model)
    engine = EngineKind(name, version)
    prepared = prepare(
        loaded,
        device_for(loaded, options["gpu"]),
        shape,
        engine=engine,
        targets=parse_targets(options["slo"]),
    )
    refused = refusals(config, options["overrides"], engine, options["gpu"])
    if not refused:
        return prepared
    said = f"it does not start: {' '.join(refused)} What follows is predicted as if it did."
    if options["form"] == "text":
        echo(said + "\n")
    return replace(prepared, assumptions=(said, *prepared.assumptions))


def _series(prepared: Prepared, workload: Any, options: dict[str, Any]) -> None:
    from ..diagnostics.simulate import sweep

    if options["policies"]:
        names = _policies(options["policies"])
        rows, first = sweep.policies(prepared, workload, names), "policy"
    else:
        knob, values = sweep.parse_sweep(options["sweep"])
        rows, first = sweep.knob(prepared, workload, knob, values), knob
    if options["form"] == "json":
        told = {
            row.label: {**row.result.to_dict(), **_kept(row.result)} if row.result else {"error": row.reason}
            for row in rows
        }
        click.echo(json.dumps({"workload": workload.name, "by": first, "runs": told}, indent=2))
    else:
        _print_series(prepared, workload, rows, first)
    if all(row.result is None for row in rows):
        raise SystemExit(2 if all(row.contradicts for row in rows) else 1)


def _policies(told: str) -> list[str]:
    names = [name.strip() for name in told.split(",") if name.strip()]
    if not names:
        raise click.UsageError("--policies needs a name; `engine policies list` lists them")
    return names


def _print_series(prepared: Prepared, workload: Any, rows: Any, first: str) -> None:
    from ..diagnostics.loads import load_text
    from ..diagnostics.simulate.render import print_rows, print_title

    out = console()
    print_title(out, prepared, load_text(workload))
    print_rows(out, rows, first)
    if first == "policy":
        _say_lesson(workload.name, rows)


def _say_lesson(name: str, rows: Any) -> None:
    from ..diagnostics.bench.policies import Comparison, PolicyResult, describe

    runs = tuple(
        PolicyResult(row.label, row.result.requests, row.result, len(row.replay.log.columns))
        for row in rows
        if row.result is not None
    )
    for sentence in describe(Comparison(name, runs)):
        echo(sentence)


def _highest(prepared: Prepared, workload: Any, options: dict[str, Any]) -> None:
    from ..diagnostics.simulate.sweep import until_saturation

    found = until_saturation(prepared, workload, watch=_say_tried)
    if options["form"] == "json":
        played = next((row.value for row in found.tried if row.result is found.result is not None), None)
        told = {
            "rate_per_s": found.rate_per_s,
            "capacity_per_s": found.capacity_per_s,
            "step_error_percent": found.error_percent,
            "range_per_s": found.range_per_s,
            "result": found.result.to_dict() if found.result else None,
            "result_at_rate_per_s": played,
            "tried": [row.value for row in found.tried],
            "good_share": [row.result.good_share if row.result else None for row in found.tried],
            "rule": prepared.targets.rule() if prepared.targets.any else None,
            "reason": found.reason,
        }
        click.echo(json.dumps(told, indent=2))
        return
    from ..diagnostics.loads import lengths_text
    from ..diagnostics.simulate.render import print_highest, print_title

    out = console()
    print_title(out, prepared, f"{workload.name}: {lengths_text(workload)}, at each rate tried")
    print_highest(out, found)


def _say_tried(row: Any, holds: bool) -> None:
    click.echo(f"tried {row.label}: {'holds' if holds else 'does not hold'}", err=True)


def _check(file: str, form: str) -> None:
    from dataclasses import asdict

    from ..diagnostics.simulate.published import compare, errors, read_points

    rows = [compare(point) for point in read_points(Path(file))]
    found = errors(rows)
    if form == "json":
        told = [
            {
                **asdict(row.point),
                "ttft_error": row.ttft_error if row.result else None,
                "tpot_error": row.tpot_error if row.result else None,
                "reason": row.reason,
            }
            for row in rows
        ]
        click.echo(json.dumps({"errors": asdict(found), "points": told}, indent=2))
        return
    from ..diagnostics.simulate.render import print_compared

    print_compared(console(), rows, found)


def _check_here(prepared: Prepared, workload: Any, config: str, options: dict[str, Any]) -> None:
    from ..core.build import resolve_for_serving
    from ..core.config import load_config
    from ..diagnostics.simulate.live import check_here

    resolve_for_serving(load_config(config, options["overrides"]))  # what cannot run here is refused at once
    names = _policies(options["policies"] or CHECKED_POLICIES)

    def run(policy: str) -> Any:
        return _serve_here(prepared, workload, policy, config, options["overrides"])

    rows = check_here(
        prepared,
        workload,
        names,
        run,
        options["repeats"] or REPEATS,
        lambda text: click.echo(text, err=True),
    )
    if options["form"] == "json":
        click.echo(json.dumps([row.to_dict() for row in rows], indent=2))
        return
    from ..diagnostics.simulate.render_live import print_live

    print_live(console(), rows)


def _serve_here(
    prepared: Prepared, workload: Any, policy: str, config: str, overrides: tuple[str, ...]
) -> tuple[Any, float | None]:
    """What a real engine does with the load under a policy, and how fast the machine was just before."""
    from contextlib import closing

    from ..core.build import resolve_for_serving
    from ..core.config import load_config, with_policy
    from ..core.engine import Engine
    from ..core.execute.torch_executor import TorchExecutor
    from ..diagnostics.bench.offline import drive, warm_up
    from ..diagnostics.cost.step import StepCost
    from ..diagnostics.simulate.live import machine_speed
    from .progress import opening, stages

    resolved = resolve_for_serving(with_policy(load_config(config, overrides), policy))
    executor = TorchExecutor.from_config(resolved.config)
    with closing(Engine(resolved.config, executor, resolved.policy)) as engine:
        on_cpu = resolved.config.device == "cpu"
        with stages() as progress, opening(lambda text: progress(text, 0, 0), on_cpu=on_cpu):
            engine.open()
        cost = prepared.cost
        speed = machine_speed(executor, engine.capacity, cost) if isinstance(cost, StepCost) else None
        warm_up(engine, workload, 2)
        return drive(engine, workload).result(prepared.targets), speed


def _lesson(name: str, form: str) -> None:
    from ..diagnostics.simulate.lessons import lesson

    found = lesson(name)
    if form == "json":
        click.echo(json.dumps(found.to_dict(), indent=2))
        return
    from ..diagnostics.simulate.render import print_lesson

    print_lesson(console(), found)
