"""`engine bench`: measure a server by its URL, or the engine in-process."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from .loads import GOOD, LOAD_HELP, PACES, SLO_HELP, refuse_both, workload_of
from .names import policy_list, presets, set_option, workloads
from .output import console, format_option, output_option, print_columns, user_errors, write_json

if TYPE_CHECKING:
    from ..core.engine import Engine
    from ..core.workload import Workload


EPILOG = f"""{SLO_HELP} A load keeps them where {GOOD}.

{LOAD_HELP}

\b
Examples:
  engine bench --url http://127.0.0.1:8000 --workload chat --rate 4
  engine bench --offline cpu-demo --set max_num_seqs=8 --requests 16

Exit status: 0 measured, whatever failed; 2 something given is wrong or nothing answers; 1 anything else.
"""


class _BenchGroup(click.Group):
    """A group that is also a command: `engine bench --url ...` runs, `engine bench policies` goes on."""

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(
            ctx.command_path, "[--url URL | --offline CONFIG] [OPTIONS] | COMMAND [ARGS]..."
        )


def _load_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        format_option,
        output_option("--output", "Also write the JSON to this file."),
        click.option("--slo", metavar="TARGETS", help="Targets for goodput, e.g. ttft=500ms,itl=50ms."),
        click.option("--requests", type=click.IntRange(min=1), help="Only the first so many requests."),
        click.option("--seed", type=click.IntRange(min=0), help="Seed of the prompts' contents; default: 0, for a URL another one each time."),
        click.option("--warmup", type=click.IntRange(min=0), default=2, show_default=True, help="Uncounted requests first."),
        set_option,
    ):  # fmt: skip
        command = option(command)
    return command


@click.group(cls=_BenchGroup, invoke_without_command=True, epilog=EPILOG)
@click.option("--url", help="Address of an OpenAI-compatible server, e.g. http://127.0.0.1:8000.")
@click.option(
    "--offline",
    metavar="CONFIG",
    shell_complete=presets,
    help="Run this configuration's engine in-process instead.",
)
@click.option(
    "--workload",
    "source",
    default="peers",
    show_default=True,
    metavar="FILE|PRESET",
    shell_complete=workloads,
    help="The load, see below.",
)
@click.option(
    "--concurrency", type=click.IntRange(min=1), help="Play the load in a closed loop of so many clients."
)
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), help="Play the load at so many requests a second."
)
@click.option("--model", help="Model to ask for; default: the first one the server lists.")
@click.option(
    "--api-key",
    envvar=["CAMSHAFT_API_KEY", "OPENAI_API_KEY"],
    help="Sent as a bearer token (or $CAMSHAFT_API_KEY, else $OPENAI_API_KEY).",
)
@click.option(
    "--prompts",
    type=click.Choice(["tokens", "text"]),
    default="tokens",
    show_default=True,
    help="How prompts are sent to a URL.",
)
@click.option(
    "--vocab-size",
    type=click.IntRange(min=2),
    default=32_000,
    show_default=True,
    help="Token ids sent to a URL stay below it.",
)
@click.option(
    "--ignore-eos/--no-ignore-eos",
    default=True,
    help="Ask a URL for exactly the planned tokens (vLLM's field).",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    help="Seconds a request may take.",
)
@_load_options
@click.pass_context
def bench(ctx: click.Context, **options: Any) -> None:
    """Measure a server, or the engine in-process, under a load."""
    if ctx.invoked_subcommand is not None:
        return
    if bool(options["url"]) == bool(options["offline"]):
        raise click.UsageError("one of --url URL and --offline CONFIG is needed")
    if options["url"] and options["overrides"]:
        raise click.UsageError("--set changes a configuration; a server by its URL has its own")
    of_a_url = (option for option in ctx.command.params if option.name in _OF_A_URL)
    for option in of_a_url:
        if options["offline"] and ctx.get_parameter_source(option.name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{option.opts[0]} is for a server by its --url")
    refuse_both(options, PACES)
    with user_errors():
        _bench(options)


_OF_A_URL = ("model", "api_key", "prompts", "vocab_size", "ignore_eos", "timeout_s")


def _bench(options: dict[str, Any]) -> None:
    from ..diagnostics.results import parse_targets

    targets = parse_targets(options["slo"])
    workload = workload_of(options["source"], options["requests"], options["concurrency"], options["rate"])
    if options["url"]:
        result, about, samples = _measure_url(workload, targets, options)
    else:
        result, about, samples = _measure_offline(workload, targets, options)
    document = {**about, "workload": workload.name, **result.to_dict()}
    if samples:
        document["error_samples"] = samples
    if options["form"] == "json":
        click.echo(json.dumps(document, indent=2))
    else:
        from ..diagnostics.bench.render import print_result

        title = f"{workload.name} on {about.get('url') or about.get('config')} ({about['model']})"
        print_result(console(), result, title, samples, about.get("server"))
    write_json(options["output"], document)


def _measure_url(
    workload: Workload, targets: Any, options: dict[str, Any]
) -> tuple[Any, dict[str, Any], dict[str, str]]:
    from dataclasses import asdict

    from ..diagnostics.bench.url import Target, drive_url
    from .progress import running

    target = Target(
        url=options["url"],
        model=options["model"],
        api_key=options["api_key"],
        prompts=options["prompts"],
        vocab_size=options["vocab_size"],
        ignore_eos=options["ignore_eos"],
        timeout_s=options["timeout_s"],
    )
    with running() as bar:
        progress = bar.begin(workload.name, workload.count)
        run = drive_url(target, workload, progress=progress, seed=options["seed"], warmup=options["warmup"])
    server = None if run.server is None else asdict(run.server)
    about = {"url": target.base, "model": run.model, "seed": run.seed, "server": server}
    return run.result(targets), about, run.samples


def _measure_offline(
    workload: Workload, targets: Any, options: dict[str, Any]
) -> tuple[Any, dict[str, Any], dict[str, str]]:
    from ..diagnostics.bench.offline import drive, warm_up
    from .progress import opening, running, stages

    engine = _engine(options["offline"], options["overrides"])
    with closing(engine):
        on_cpu = engine.config.device == "cpu"
        with stages() as progress, opening(lambda text: progress(text, 0, 0), on_cpu=on_cpu):
            engine.open()
            _refuse_too_long(workload, engine)
            warm_up(engine, workload, options["warmup"])
        with running() as bar:
            finished = bar.begin(workload.name, workload.count)
            run = drive(engine, workload, progress=finished, seed=options["seed"] or 0)
    about = {
        "config": options["offline"],
        "model": engine.config.model,
        "policy": engine.scheduler.guard.name,
    }
    return run.result(targets), about, run.samples


def _engine(source: str, overrides: tuple[str, ...], policy: str | None = None) -> Engine:
    """An engine for a configuration, not opened yet; under another policy, if one is named."""
    from ..core.build import build_engine, resolve_for_serving
    from ..core.config import load_config, with_policy

    loaded = load_config(source, overrides)
    return build_engine(resolve_for_serving(with_policy(loaded, policy) if policy else loaded).config)


def _refuse_too_long(workload: Workload, engine: Engine) -> None:
    from ..core.errors import ConfigError

    longest = max(request.input_tokens + request.output_tokens for request in workload.requests())
    limit = engine.scheduler.params.max_length
    if longest > limit:
        raise ConfigError(
            f"workload {workload.name}: its longest request has {longest:,} tokens and this engine holds {limit:,}; "
            "set max_input_tokens in the workload, or raise max_model_len"
        )


@bench.command(short_help="Run the four classic policies on one load, side by side.")
@click.option(
    "--config",
    "source",
    default="cpu-demo",
    show_default=True,
    metavar="CONFIG",
    shell_complete=presets,
    help="The engine, but for its policy.",
)
@click.option(
    "--workload",
    "load",
    metavar="FILE|PRESET",
    shell_complete=workloads,
    help="The load; default: mixed, or a small one with --quick.",
)
@click.option(
    "--policies",
    "names",
    default="naive,static,continuous,continuous-chunked",
    show_default=True,
    shell_complete=policy_list,
    help="By name or file, with commas.",
)
@click.option("--quick", is_flag=True, help="A small load: the order is the same, the ratios are smaller.")
@_load_options
def policies(source: str, load: str | None, names: str, quick: bool, **options: Any) -> None:
    """Run the four classic policies on one load and print them side by side.

    The naive one, which takes one request at a time, plays the first eight requests.
    """
    from .comparison import compare_policies

    with user_errors():
        compare_policies(
            lambda policy: _engine(source, options["overrides"], policy),
            source,
            load or ("mixed-small" if quick else "mixed"),
            names,
            options,
        )


@bench.command(short_help="Time the scheduler and its bookkeeping, per step.")
@click.option("--running", default="256,1024", show_default=True, help="Numbers of running requests.")
@click.option(
    "--policies",
    "names",
    default="continuous-chunked,latency,fair",
    show_default=True,
    shell_complete=policy_list,
    help="By name or file, with commas.",
)
@click.option(
    "--steps", type=click.IntRange(min=30), default=600, show_default=True, help="Steps that are timed."
)
@format_option
def overhead(running: str, names: str, steps: int, form: str) -> None:
    """Time the scheduler and its bookkeeping per step of steady decode, with an executor that does nothing."""
    from dataclasses import asdict

    from ..diagnostics.bench.overhead import measure
    from ..diagnostics.simulate.sweep import require_policy

    try:
        counts = [int(part) for part in running.split(",")]
    except ValueError as error:
        raise click.UsageError(f"--running {running}: whole numbers with commas are needed") from error
    if min(counts) < 1:
        raise click.UsageError(f"--running {running}: numbers from 1 are needed")
    chosen = [name.strip() for name in names.split(",")]
    with user_errors():
        for name in chosen:
            require_policy(name)
        measured = [measure(count, name, steps) for count in counts for name in chosen]
    if form == "json":
        click.echo(json.dumps([asdict(row) for row in measured], indent=2))
        return
    header = ("policy", "running", "whole step us", "p99", "schedule", "update", "stated limit")
    rows = [
        (
            row.policy,
            f"{row.running:,}",
            *(f"{us:.0f}" for us in (row.engine_us, row.engine_p99_us, row.schedule_us, row.update_us)),
            "-" if row.budget_us is None else f"{row.budget_us:g}",
        )
        for row in measured
    ]
    print_columns(header, rows, figures=True)


@bench.command(short_help="Play a recording again and compare every step plan.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
def replay(file: str) -> None:
    """Play a recording of `engine serve --record FILE` again and compare every step plan.

    Nothing is computed: the scheduler gets the same calls at the same times. Exit status 1 where a plan
    comes out otherwise.
    """
    from ..core.recording.replay import replay as replay_recording

    with user_errors():
        played = replay_recording(file)
    said = f"{played.steps:,} steps of {played.requests:,} requests"
    if played.first_difference is not None:
        raise click.ClickException(f"{said}: step {played.first_difference} is planned otherwise now")
    end = "; the recording was cut short there" if played.cut_short else ""
    click.echo(f"{said}: {'every plan is the same' if played.steps else 'no plan to compare'}{end}")
