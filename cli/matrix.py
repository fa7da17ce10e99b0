"""`engine matrix`: the flags and rules of each release, as data."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .names import flags as flag_names
from .names import releases as release_names
from .output import echo, print_columns, user_errors

if TYPE_CHECKING:
    from ..diagnostics.compat.releases.difference import Change, Difference, TableDifference
    from ..diagnostics.compat.releases.table import Flag, Table

ENGINES = ("vllm", "camshaft")

_engine = click.option(
    "--engine", type=click.Choice(ENGINES), default="vllm", show_default=True, help="Whose releases."
)
_source = click.option(
    "--source",
    type=click.Path(exists=True, path_type=Path),
    help="An unpacked release or its archive, instead of fetching it.",
)


def _format(*names: str) -> Callable[[Any], Any]:
    return click.option("--format", "form", type=click.Choice(names), default="text", show_default=True)


@click.group()
def matrix() -> None:
    """Flags and rules of each release: show, diff, harvest, verify."""


@matrix.command()
@_engine
@_format("text", "json")
def releases(engine: str, form: str) -> None:
    """List the releases that have a table, oldest first."""
    from ..diagnostics.compat.releases.versions import versions

    with user_errors():
        known = [str(version) for version in versions(engine)]
    click.echo(json.dumps({"engine": engine, "releases": known}) if form == "json" else "\n".join(known))


@matrix.command()
@click.argument("version", required=False, shell_complete=release_names)
@_engine
@click.option(
    "--flag",
    "wanted",
    multiple=True,
    metavar="NAME",
    shell_complete=flag_names,
    help="Only this flag, with its JSON keys; repeatable.",
)
@click.option("--env", "variables", is_flag=True, help="The environment variables instead of the flags.")
@_format("text", "json", "markdown")
def show(version: str | None, engine: str, wanted: tuple[str, ...], variables: bool, form: str) -> None:
    """Print what VERSION accepts (default: the newest release)."""
    with user_errors():
        table = _load(engine, version)
        flags = _chosen(table, wanted)
    if variables:
        _show_environment(table, form)
    elif form == "json":
        records = {flag.name: _record(flag) for flag in flags}
        click.echo(json.dumps({"engine": engine, "version": str(table.version), "flags": records}, indent=1))
    else:
        rows = [_row(flag) for flag in flags]
        _print_rows(("flag", "type", "default", "choices", "notes"), rows, form)
        for flag in flags if wanted else []:
            _show_keys(flag, form)


def _load(engine: str, version: str | None) -> Table:
    from ..diagnostics.compat.releases.table import load
    from ..diagnostics.compat.releases.versions import resolve

    found, note = resolve(engine, version)
    if note:
        click.echo(note, err=True)
    return load(engine, found)


def _chosen(table: Table, wanted: tuple[str, ...]) -> list[Flag]:
    from ..core.errors import ConfigError
    from ..core.wording import nearest

    if not wanted:
        return list(table.flags.values())
    found = []
    for spelled in wanted:
        flag = table.find(spelled)
        if flag is None:
            known = [name.lstrip("-") for name in table.spellings()]
            hint = nearest(spelled.lstrip("-").replace("_", "-"), known)
            raise ConfigError(
                f"{table.engine} {table.version} has no {spelled}{_elsewhere(table, spelled) or hint}"
            )
        found.append(flag)
    return found


def _elsewhere(table: Table, spelled: str) -> str:
    """Which other releases have an option; empty where none has."""
    from ..diagnostics.compat.releases.history import options
    from ..diagnostics.compat.releases.table import option_of

    lives, version = options(table.engine), table.version
    name = lives.name(option_of(spelled.lstrip("-")))
    if name is None:
        return ""
    gone, later = lives.removed_by(name, version), lives.arrives_after(name, version)
    if gone is not None:
        return f": it was removed in {gone.gone}; `engine matrix show {gone.last}` has it"
    return f"; it exists from {later} on" if later is not None else ""


def _record(flag: Flag) -> dict[str, Any]:
    """A flag as the JSON form has it: the common keys always, the others where they say something."""
    from ..diagnostics.compat.releases.table import to_record

    always = {
        "aliases": flag.aliases,
        "type": flag.type,
        "default": flag.default,
        "choices": flag.choices,
        "deprecated": flag.deprecated,
        "field": flag.field,
        "group": flag.group,
    }
    return always | to_record(flag)


def _row(flag: Flag) -> tuple[str, ...]:
    default = f"computed ({flag.resolver})" if flag.resolver else _value(flag.default)
    notes = [", ".join(flag.aliases + flag.negatives), flag.deprecated or ""]
    choices = "" if flag.choices is None else " ".join(map(_value, flag.choices))
    return flag.name, flag.type, default, choices, "; ".join(note for note in notes if note)


def _value(value: Any) -> str:
    return "none" if value is None else value if isinstance(value, str) and value else json.dumps(value)


def _show_keys(flag: Flag, form: str) -> None:
    if flag.nested:
        click.echo("")
        rows = [
            (
                f"{flag.name}.{key.name}",
                key.type,
                "computed" if key.resolver else _value(key.default),
                " ".join(map(_value, key.choices or [])),
            )
            for key in flag.nested.values()
        ]
        _print_rows(("key", "type", "default", "choices"), rows, form)
    if form == "text":
        places = {"registered": flag.evidence, "defined": flag.defined, "computed": flag.resolved}
        click.echo("".join(f"\n{what}: {place}" for what, place in places.items() if place))


def _show_environment(table: Table, form: str) -> None:
    from ..diagnostics.compat.releases.table import environment_record

    if form == "json":
        records = {name: environment_record(variable) for name, variable in table.env.items()}
        click.echo(
            json.dumps({"engine": table.engine, "version": str(table.version), "env": records}, indent=1)
        )
        return
    rows = [(v.name, _value(v.default), v.deprecated or "", v.evidence) for v in table.env.values()]
    _print_rows(("variable", "default", "notes", "evidence"), rows, form)


def _print_rows(header: tuple[str, ...], rows: list[tuple[str, ...]], form: str) -> None:
    if form == "markdown":
        click.echo("| " + " | ".join(header) + " |")
        click.echo("|" + "---|" * len(header))
        for row in rows:
            click.echo("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
        return
    print_columns(header, rows)


@matrix.command(short_help="Print what changed from one release to another.")
@click.argument("start", metavar="A", shell_complete=release_names)
@click.argument("target", metavar="B", shell_complete=release_names)
@_engine
@_format("text", "json", "markdown")
def diff(start: str, target: str, engine: str, form: str) -> None:
    """Print what changed from release A to release B: flags, JSON keys and environment variables."""
    import msgspec

    from ..diagnostics.compat.releases.difference import difference

    with user_errors():
        found = difference(_load(engine, start), _load(engine, target))
    if form == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=1).decode())
    else:
        _print_difference(found, form)


def _print_difference(found: TableDifference, form: str) -> None:
    write = click.echo if form == "markdown" else echo
    bullet, title = ("- ", "## ") if form == "markdown" else ("  ", "")
    parts = {"flags": found.flags, "JSON keys": found.keys, "environment variables": found.environment}
    for what, part in parts.items():
        if part.empty:
            continue
        counts = f"{len(part.added)} added, {len(part.removed)} removed, {len(part.changed)} changed"
        write(f"{title}{what}, {found.start} to {found.target}: {counts}")
        for name in part.added:
            write(f"{bullet}+ {name}")
        for name in part.removed:
            write(f"{bullet}- {name}")
        respelled = _respelled(part)
        for name, changes in part.changed.items():
            if name not in respelled:
                told = "; ".join(map(_told, changes))
                write(f"{bullet}* {name}: {told}")
        if respelled:
            told = ", ".join(respelled[:3])
            write(
                f"{bullet}* {len(respelled)} more are turned off by other spellings as well, such as {told}"
            )
        write("")
    if all(part.empty for part in parts.values()):
        write(f"{found.engine} {found.target} accepts what {found.start} does.")


MANY = 8


def _respelled(part: Difference) -> list[str]:
    """The flags of which only negative spellings changed, where those are too many to list."""
    found = [n for n, changes in part.changed.items() if all(c.what == "negatives" for c in changes)]
    return found if len(found) > MANY else []


def _told(change: Change) -> str:
    """One changed attribute; of two sets of choices or spellings only what differs."""
    lists = change.what in ("choices", "negatives", "aliases")
    if lists and change.before is not None and change.after is not None:
        parts = [f"+{_value(c)}" for c in change.after if c not in change.before]
        parts += [f"-{_value(c)}" for c in change.before if c not in change.after]
        return f"{change.what} " + (" ".join(parts) or "in another order")
    return f"{change.what} {_value(change.before)} -> {_value(change.after)}"


@matrix.command(short_help="Make a release's table from its source.")
@click.argument("version", required=False, shell_complete=release_names)
@_engine
@_source
@click.option("--dry-run", is_flag=True, help="List what changed; store nothing.")
def harvest(version: str | None, engine: str, source: Path | None, dry_run: bool) -> None:
    """Make the table of VERSION from its source, store it, and list what changed since the release before.

    The source comes from the package index that pip is configured with, and is read, never run or built.
    For camshaft the table is made from this installation's own configuration schema, and VERSION is its release.
    """
    from ..diagnostics.compat.harvest.command import harvest_camshaft, harvest_release

    with user_errors():
        if engine == "camshaft":
            done = harvest_camshaft(store=not dry_run)
        elif version is None:
            raise click.UsageError("name the release, e.g. engine matrix harvest 0.33.0")
        else:
            with _progress(f"fetching {engine} {version}") as advance:
                done = harvest_release(engine, version, source, advance, store=not dry_run)
    click.echo(done.summary)
    for text in done.unresolved:
        echo(f"  not worked out: {text}")
    if done.difference is not None:
        _print_difference(done.difference, "text")


@contextmanager
def _progress(label: str) -> Iterator[Callable[[int, int], None]]:
    """Called with bytes done and in all: a bar on standard error, or a count where the size is not known (0)."""
    err = sys.stderr
    bar: Any = None
    shown = 0

    def advance(done: int, total: int) -> None:
        nonlocal bar, shown
        if total == 0:
            if err.isatty():
                click.echo(f"\r{label}  {done >> 20} MiB", nl=False, err=True)
        else:
            if bar is None:
                bar = click.progressbar(length=total, label=label, file=err).__enter__()
            bar.update(done - shown)
        shown = done

    try:
        yield advance
    finally:
        if bar is not None:
            bar.__exit__(None, None, None)
        elif shown and err.isatty():
            click.echo("", err=True)


@matrix.command()
@click.argument("dump", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_engine
def compare(dump: Path, engine: str) -> None:
    """Hold a table against DUMP, what a release's real parser accepts.

    A dump is made by diagnostics/compat/harvest/dump_parser.py, run with the Python of an environment that has that release.
    Exit status 1 when they differ.
    """
    from ..diagnostics.compat.harvest.compare import differences, read_dump

    with user_errors():
        real = read_dump(dump.read_bytes())
        found = differences(_load(engine, real.version), real)
    for text in found:
        echo(text)
    click.echo(f"{len(real.flags)} options of {engine} {real.version}: {len(found)} differences")
    if found:
        raise SystemExit(1)


@matrix.command(short_help="List what a release refuses, overrides or warns of.")
@click.argument("version", required=False, shell_complete=release_names)
@_engine
@_format("text", "json", "markdown")
def rules(version: str | None, engine: str, form: str) -> None:
    """List the combinations that VERSION refuses, overrides or warns of (default: the newest release).

    Those with the code FL-22 are what its front end and its objects check, as its source has it.
    """
    from ..diagnostics.compat.rules import conditions, phrasing
    from ..diagnostics.compat.rules.evaluate import evidence_of
    from ..diagnostics.compat.rules.records import load as load_rules

    with user_errors():
        table = _load(engine, version)
        found = table.version
        held = [rule for each in load_rules(engine).rules if (rule := each.held(found))]
        rows: list[dict[str, Any]] = [
            {
                "code": rule.code,
                "severity": rule.severity,
                "change": rule.change,
                "title": rule.title,
                "flags": rule.flags,
                "evidence": evidence_of(engine, rule, found),
            }
            for rule in held
        ]
        rows += [
            {
                "code": "FL-22",
                "severity": "error",
                "change": "conflict",
                "title": phrasing.text(refusal.when),
                "flags": sorted(set(conditions.options(names))),
                "evidence": f"{found} {refusal.evidence}",
            }
            for refusal in table.refusals.values()
            for names in [conditions.names(refusal.when)]
        ]
    if form == "json":
        click.echo(json.dumps({"engine": engine, "version": str(found), "rules": rows}, indent=1))
    else:
        cells = [
            tuple(str(row[key]) for key in ("code", "severity", "change", "title", "evidence"))
            for row in rows
        ]
        _print_rows(("code", "severity", "change", "title", "evidence"), cells, form)


@matrix.command(short_help="Look each rule's evidence up in a release's source.")
@click.argument("version", shell_complete=release_names)
@_engine
@_source
@_format("text", "json")
def verify(version: str, engine: str, source: Path | None, form: str) -> None:
    """Look each rule's evidence up in the source of VERSION, and list those that moved, changed or vanished."""
    from ..diagnostics.compat.harvest.command import release_source
    from ..diagnostics.compat.rules.verify import verify as verify_rules

    with (
        user_errors(),
        _progress(f"fetching {engine} {version}") as advance,
        release_source(engine, version, source, advance) as root,
    ):
        report = verify_rules(engine, version, root)
    click.echo(report.json() if form == "json" else report.text())
