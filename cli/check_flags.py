"""`engine check-flags`: will this configuration survive the upgrade?"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from ..core.errors import CamshaftError
from .names import codes, files, gpus, models, releases
from .output import PIPED_WIDTH, echo, user_errors, width, writing

if TYPE_CHECKING:
    from ..diagnostics.compat.checks.findings import Result, Severity
    from ..diagnostics.compat.fix.files import Fixed
    from ..diagnostics.compat.inputs.base import Configuration

FORMATS = ("text", "json", "sarif", "github", "markdown")
LEVELS = ("error", "warning", "info", "never")

EPILOG = """Exit status: 0 nothing at or above --fail-on, 1 something, 2 an input, version or device that cannot be judged.
After --fix it says what is left, or 1 where a fix could not be made. An INPUT that starts no server is skipped with a note where another one starts one.

\b
Examples:
  engine check-flags vllm.yaml --from 0.16.0 --to 0.18.0
  engine check-flags --command "vllm serve m --swap-space 4" --to 0.33.0
  engine check-flags k8s/*.yaml start.sh --to 0.28.0 --format github
  engine check-flags vllm.yaml --gpu H100-80GB --model config.json
  engine check-flags vllm.yaml --to 0.33.0 --fix
  engine check-flags --explain FL-02
"""


@click.command("check-flags", epilog=EPILOG, no_args_is_help=True)
@click.argument("inputs", nargs=-1, metavar="[INPUT]...", shell_complete=files)
@click.option("--command", "commands", multiple=True, metavar="TEXT", help="A command line, as one argument.")
@click.option(
    "--from",
    "start",
    metavar="VERSION",
    shell_complete=releases,
    help="The release the configuration works with now.",
)
@click.option(
    "--to",
    "targets",
    multiple=True,
    metavar="VERSION",
    shell_complete=releases,
    help="A target release; may be repeated.  [default: the newest]",
)
@click.option(
    "--engine", type=click.Choice(("vllm", "camshaft")), help="Whose configuration it is.  [default: found]"
)
@click.option(
    "--gpu",
    metavar="NAME",
    shell_complete=gpus,
    help="The accelerator, e.g. H100-80GB, Tesla T4, RTX A6000.",
)
@click.option(
    "--model",
    metavar="FACTS",
    shell_complete=models,
    help="A config.json, a model sheet, or key=value,key=value.  [default: by the model's name, if it has a sheet]",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    help="How results are printed.",
)
@click.option(
    "--fail-on",
    type=click.Choice(LEVELS),
    default="error",
    show_default=True,
    help="The severity that exits with 1.",
)
@click.option(
    "--ignore",
    multiple=True,
    metavar="CODE[:NAME]",
    shell_complete=codes,
    help="Leave out what a code warns of, or about one name, as in EN-04:VLLM_CORP_X; may be repeated.",
)
@click.option("--fix", is_flag=True, help="Show a diff, then apply the safe fixes for the (last) target.")
@click.option(
    "--unsafe-fixes", is_flag=True, help="With --fix: apply the fixes that may change behaviour as well."
)
@click.option("--diff", "diff_only", is_flag=True, help="Show what --fix would change, and change nothing.")
@click.option("--explain", metavar="CODE", shell_complete=codes, help="Print the page of a code.")
@click.option(
    "--write-pages", type=click.Path(file_okay=False, path_type=Path), help="Write the pages of all codes."
)
def check_flags(inputs: tuple[str, ...], commands: tuple[str, ...], **options: Any) -> None:
    """Check configurations against an engine's releases.

    INPUT is a vLLM --config YAML, this engine's YAML, a shell script, a Kubernetes manifest, Helm values, a compose
    file, a Dockerfile, a systemd unit, a Python script or notebook that calls vLLM's LLM or EngineArgs, or - for
    standard input.
    """
    if options["explain"] is not None or options["write_pages"] is not None:
        _pages(options["explain"], options["write_pages"])
        return
    if not inputs and not commands:
        raise click.UsageError("give an INPUT or --command TEXT")
    found, failed = _read(inputs, commands, options["engine"])
    targets, changes, unmade = options["targets"], options["fix"] or options["diff_only"], False
    with user_errors():
        judge = _judge(options)
        results = judge(found, targets)
        if changes:
            write = options["fix"] and not options["diff_only"]
            unsafe = options["unsafe_fixes"]
            remaining, unmade, unwritten = _fix(found, lambda c: judge([c], targets[-1:])[0], unsafe, write)
            results, failed = remaining if write else results, failed or unwritten
    if not changes and (found or options["form"] != "text"):
        from ..diagnostics.compat.render import render

        text = render(options["form"], results, min(PIPED_WIDTH, width()))
        if text:
            # https://no-color.org: any value but the empty one asks for plain text.
            click.echo(text, color=False if os.environ.get("NO_COLOR") else None)
    sys.exit(2 if failed else max(_status(results, options["fail_on"]), unmade))


def _pages(code: str | None, folder: Path | None) -> None:
    from ..diagnostics.compat.checks import codes

    with user_errors():
        if code is not None:
            echo(codes.page(code))
    if folder is not None:
        with writing(folder):
            count = len(codes.write_pages(folder))
        click.echo(f"wrote {count} pages to {folder}")


def _read(
    inputs: Sequence[str], commands: Sequence[str], engine: str | None
) -> tuple[list[Configuration], bool]:
    """The configurations of every input, and whether one could not be read; those without a server are only noted."""
    from ..diagnostics.compat.inputs import read as readers
    from ..diagnostics.compat.inputs.base import NoServer

    found: list[Configuration] = []
    idle: list[NoServer] = []
    failed = False
    names = [readers.COMMAND_LINE + (f" {n + 1}" if len(commands) > 1 else "") for n in range(len(commands))]
    for text, command in [*((text, None) for text in inputs), *zip(commands, names, strict=True)]:
        try:
            if command is not None:
                found += readers.read_command(text, command)
            elif text == "-":
                piped = sys.stdin.buffer.read().decode("utf-8-sig")
                found += readers.read_text(piped, readers.STANDARD_INPUT, None, engine)
            else:
                found += readers.read_path(Path(text), engine)
        except NoServer as error:
            idle.append(error)
        except (CamshaftError, UnicodeDecodeError) as error:
            click.echo(f"Error: {error}", err=True)
            failed = True
    for error in idle:
        click.echo(f"skipped: {error}" if found else f"Error: {error}", err=True)
    return found, failed or not found


def _judge(options: dict[str, Any]) -> Callable[[Sequence[Configuration], Sequence[str]], list[Result]]:
    """The check of configurations for targets, with the facts that were given."""
    from ..diagnostics.compat import run
    from ..diagnostics.compat.checks import codes as pages
    from ..diagnostics.compat.checks.findings import without
    from ..diagnostics.compat.facts.model_input import read_model
    from ..diagnostics.cost.devices import find_device

    engine, start, ignored = options["engine"], options["start"], frozenset(options["ignore"])
    for code in ignored:
        pages.page(code.partition(":")[0])  # raises for one that there is not
    facts: dict[str, Any] | None = None if options["model"] is None else read_model(options["model"])
    device = None if options["gpu"] is None else find_device(options["gpu"])

    def judge(found: Sequence[Configuration], targets: Sequence[str]) -> list[Result]:
        results = run.check_all(
            found, engine=engine, start=start, targets=targets, model=facts, device=device
        )
        return [without(result, ignored) for result in results]

    return judge


def _status(results: Sequence[Result], fail_on: Severity | Literal["never"]) -> int:
    from ..diagnostics.compat.checks.findings import at_or_above

    if fail_on == "never":
        return 0
    return int(any(at_or_above(result.findings, fail_on) for result in results))


def _fix(
    found: list[Configuration], judge: Callable[[Configuration], Result], unsafe: bool, write: bool
) -> tuple[list[Result], bool, bool]:
    """Show each source's diff and, if asked, write it.

    Returns the verdicts after, whether a fix could not be made, and whether a file could not be written.
    """
    from ..diagnostics.compat.fix.files import fix_all, flags_left

    remaining: list[Result] = []
    unmade = unwritten = False
    for fixed in fix_all(found, judge, unsafe):
        for message in dict.fromkeys(fixed.refused):
            click.echo(f"not fixed: {message}", err=True)
        unmade = unmade or bool(fixed.refused)
        diff = fixed.plan.diff()
        if diff or not fixed.refused:
            click.echo(diff or f"{fixed.label}: nothing to fix")
        written = write and _write(fixed)
        unwritten = unwritten or (write and not written)
        click.echo(_after(fixed, written), err=True)
        if fixed.plan.fixed:
            for moved in _moves(fixed):
                click.echo(moved, err=True)
        if fixed.plan.left:
            click.echo(f"{fixed.label}: left to --unsafe-fixes: {flags_left(fixed.plan.left)}", err=True)
        remaining += fixed.results
    return remaining, unmade, unwritten


def _moves(fixed: Fixed) -> Iterable[str]:
    """Says, once, that options of another release than the one in use go out together with it."""
    return dict.fromkeys(
        f"{fixed.label}: fixed options are those of {result.target}: move from {result.start} in the same change "
        "(an image's tag is left as it is)"
        for result in fixed.results
        if result.start not in (None, result.target)
    )


def _write(fixed: Fixed) -> bool:
    """Writes the new texts of one source, those that came from no file to standard output; says what fails."""
    for name, (_, text) in fixed.plan.texts.items():
        if not Path(name).is_file():
            click.echo(text)
            continue
        try:
            Path(name).write_text(text, encoding="utf-8")
        except OSError as error:
            click.echo(f"Error: {name}: cannot be written: {error.strerror}", err=True)
            return False
    return True


def _after(fixed: Fixed, write: bool) -> str:
    """`fixed 2; now starts`: what was done, and the verdict on the new text."""
    from ..diagnostics.compat.render.text import counts, verdict

    done = f"{fixed.label}: {'fixed' if write else 'would fix'} {fixed.plan.fixed}"
    if not fixed.results:
        return f"{done}; nothing is left of it"
    said = []
    for result in fixed.results:
        words = verdict(result)
        now = f"{'now' if write else 'then'} {words}" if result.starts else f"still {words}"
        which = f"{result.input} " if result.input != fixed.label else ""
        said.append(
            f"{which}{now} at {result.target}" + (f" ({counts(result.findings)})" if result.findings else "")
        )
    return f"{done}; " + "; ".join(dict.fromkeys(said))
