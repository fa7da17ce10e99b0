"""`engine diagnose`: name the knob that holds a configuration back, and prove it."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from .loads import GOOD, LOAD_HELP, PACES, SLO_HELP, gpu_option, load_options, refuse_both, workload_of
from .names import configurations, files, models, set_option
from .output import echo, output_option, user_errors, write_text
from .progress import stages

if TYPE_CHECKING:
    from ..core.workload import Workload
    from ..diagnostics.diagnose import Report
    from ..diagnostics.evidence import Evidence

EPILOG = f"""{SLO_HELP} A load keeps them where {GOOD}.

Figures that --observed understands (a statistic and the unit in the name, or the unit behind the number:
ttft_p99_s=4.2, itl_p50_ms=30, ttft_p99=4.2s; also vLLM's own names, and words such as low or rising): running, waiting,
kv_usage, preemptions, prefix_hit_rate, ttft_ms, tpot_ms, itl_ms, e2e_ms, queue_ms, step_ms, request_per_s,
completed_per_s, output_tokens_per_s, request_output_tokens_per_s, prompt_tokens_per_s, concurrency, input_tokens,
output_tokens, gpu_util, host_cpu, acceptance_rate, kv_tokens. A FILE is a mapping with metrics, workload, hardware.

{LOAD_HELP}

\b
Examples:
  engine diagnose Qwen/Qwen3-8B --gpu H100 --rate 40 --slo ttft=500ms,itl=50ms
  engine diagnose vllm.yaml --gpu H100 --version 0.18.0 --log server.log
  engine diagnose "vllm serve Qwen/Qwen3-8B --max-num-seqs 8" --gpu A100 \\
    --observed waiting=40 --observed running=8
  engine diagnose "python -m sglang.launch_server --model Qwen/Qwen3-8B" \\
    --gpu H100 --log sglang.log
  engine diagnose vllm.yaml --metrics before.txt --metrics after.txt \\
    --html report.html

Exit status: 0 diagnosed, whatever the verdict; 2 something given is wrong or cannot be read; 1 anything else.
"""


@click.command(epilog=EPILOG)
@click.argument("config", required=False, shell_complete=configurations)
@gpu_option
@load_options("what the evidence says, else chat")
@click.option("--trace", metavar="FILE", shell_complete=files, help="A recorded or public trace of arrivals.")
@click.option(
    "--log",
    "logs",
    multiple=True,
    metavar="FILE",
    shell_complete=files,
    help="A log of vLLM, SGLang or this engine.",
)
@click.option(
    "--metrics",
    multiple=True,
    metavar="FILE|URL",
    shell_complete=files,
    help="A Prometheus page; twice: before and after.",
)
@click.option(
    "--interval", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", help="Between two pages."
)
@click.option(
    "--observed",
    multiple=True,
    metavar="KEY=VALUE|FILE",
    shell_complete=files,
    help="Figures at hand; see below.",
)
@click.option(
    "--model",
    metavar="NAME|FOLDER",
    shell_complete=models,
    help="The model, where the configuration does not say it.",
)
@click.option(
    "--engine", type=click.Choice(["camshaft", "vllm"]), help="Whose configuration it is.  [default: found]"
)
@click.option("--version", metavar="X.Y.Z", help="Release of that engine.")
@click.option("--slo", metavar="TARGETS", help="Targets, e.g. ttft=500ms,itl=50ms; see below.")
@set_option
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@output_option("--html", "Also write a page with plots.")
def diagnose(config: str | None, **options: Any) -> None:
    """Name the knob that holds a configuration back, and prove it by replays.

    CONFIG is a preset, this engine's YAML, a vLLM YAML or manifest, a command line of vLLM or SGLang in quotes, or a
    model: its name, or a folder with a config.json.
    """
    with user_errors():
        report = _report(config, options)
    from ..diagnostics.report import page, structured, text

    if options["form"] == "json":
        click.echo(structured.render(report).rstrip())
    else:
        echo(text.render(report).rstrip())
    if options["html"] is not None:
        write_text(options["html"], page.render(report))


def _report(config: str | None, options: dict[str, Any]) -> Report:
    from ..diagnostics.diagnose import diagnose as run
    from ..diagnostics.diagnose import read_subject
    from ..diagnostics.results import parse_targets

    refuse_both(options, PACES, ("trace", "workload"))
    if options["interval"] and len(options["metrics"]) < 2:
        raise click.UsageError("--interval is the time between two pages: --metrics twice is needed")
    evidence = _evidence(options)
    if config is None and not (evidence.settings or evidence.figures or evidence.events):
        raise click.UsageError("give a CONFIG, or evidence such as --log FILE")
    subject = read_subject(
        config,
        evidence,
        engine=options["engine"],
        version=options["version"],
        gpu=options["gpu"],
        model=options["model"],
        overrides=options["overrides"],
    )
    workload = _load(options, evidence)
    targets = parse_targets(options["slo"])
    with stages() as progress:
        return run(
            subject, evidence, workload=workload, targets=targets, tell=lambda text: progress(text, 0, 0)
        )


def _load(options: dict[str, Any], evidence: Evidence) -> Workload | None:
    """The load that was asked for by name; chat's lengths where only its pace was, and nothing tells others."""
    source, paced = options["workload"], options["rate"] or options["concurrency"]
    if source is None and paced and not (evidence.tells_lengths or evidence.trace):
        click.echo("load: the lengths of the preset chat (none were given)", err=True)
        source = "chat"
    return None if source is None else workload_of(source, None, options["concurrency"], options["rate"])


def _page(source: str) -> str:
    """A metrics page as it is asked for: a server's address means its /metrics, and http:// goes without saying."""
    if not os.path.exists(source) and re.fullmatch(r"[\w.-]+:\d+(/.*)?|\[[0-9a-fA-F:]+\]:\d+(/.*)?", source):
        source = f"http://{source}"
    try:
        parts = urlsplit(source)
    except ValueError as error:
        raise click.BadParameter(f"{source}: {error}", param_hint="--metrics") from error
    if parts.scheme in ("http", "https") and parts.path in ("", "/"):
        return parts._replace(path="/metrics").geturl()
    return source


def _evidence(options: dict[str, Any]) -> Evidence:
    from ..diagnostics.evidence import Evidence, LoadHints, read_log, read_metrics, read_observed

    evidence = Evidence()
    for file in options["logs"]:
        evidence = evidence.merge(read_log(file))
    if options["metrics"]:
        pages = tuple(_page(source) for source in options["metrics"])
        evidence = evidence.merge(read_metrics(pages, options["interval"]))
    if options["observed"]:
        evidence = evidence.merge(read_observed(options["observed"]))
    if options["trace"]:
        if not os.path.isfile(options["trace"]):
            raise click.BadParameter(f"{options['trace']}: no such file", param_hint="--trace")
        paced = workload_of(options["trace"], None, options["concurrency"], options["rate"])
        evidence = evidence.merge(Evidence(trace=paced))
    if options["rate"] or options["concurrency"]:
        pace = LoadHints(request_rate_per_s=options["rate"], concurrency=options["concurrency"])
        evidence = Evidence(load=[pace]).merge(evidence)
    return evidence
