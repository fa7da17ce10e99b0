"""Findings about what could not be read: settings files, variables, words an image swallows."""

from __future__ import annotations

from collections.abc import Iterator

from ....core.places import Place
from ..parsing.parser import Use
from ..parsing.placeholders import is_open
from ..releases.names import names
from ..releases.table import Field, Flag
from .bounds import leaves
from .context import Context
from .findings import Finding


def unread_findings(context: Context) -> Iterator[Finding]:
    """Settings files and variables whose content is not known: nothing can be promised about them."""
    doubled = context.configuration.doubled
    if doubled is not None:
        yield Finding(
            code="IN-03",
            severity="error",
            change="conflict",
            message="The image's entry point starts the server itself, so these words become arguments that it refuses.",
            place=doubled.place,
            flags=(doubled.text,),
            fix="Give the image only the model and its options, or replace its entry point.",
            evidence="the official image's ENTRYPOINT",
            stops=True,
        )
    for name in context.configuration.unread:
        if name.startswith("**"):
            yield _unknown_words(name, context.configuration.start_place)
            continue
        yield Finding(
            code="IN-01",
            severity="warning",
            change="unknown",
            message=f"The settings file {name} could not be read, so what it holds was not checked.",
            place=context.configuration.start_place,
            flags=("--config",),
            fix=f"Check {name} as well.",
            depends_on=(name,),
            stops=True,
        )
    for argument in context.unknown_words:
        yield _unknown_words(argument.text, argument.place)


def _unknown_words(text: str, place: Place) -> Finding:
    return Finding(
        code="IN-04",
        severity="info",
        change="unknown",
        message=f"What {text} stands for is only known when it runs; it was not checked.",
        place=place,
        fix="Check what it amounts to as well.",
        depends_on=(text,),
        stops=True,
    )


# Types of which nothing is checked, unless the values are among names that a release knows.
FREE = ("str", "list[str]", "any")


def unread_values(context: Context) -> list[str]:
    """The note that names the options whose values were not checked, for only a run can tell them."""
    refused = {id(misuse.option) for misuse in context.parsed.misuses}
    told: dict[str, None] = {}
    for use in context.parsed.uses:
        if id(use.option) not in refused:
            told |= {name: None for name, kind in _open_values(use) if _is_checked(context, name, kind)}
    return [f"not checked, for only a run can tell the value: {', '.join(told)}"] if told else []


def _open_values(use: Use) -> list[tuple[str, Flag | Field]]:
    """The option, or its keys behind a dot, whose value is unknown."""
    flag = use.flag
    if not isinstance(use.value, dict):
        return [(flag.name, flag)] if is_open(use.value) else []
    paths = [path for path, value in leaves(use.value, flag.nested) if is_open(value)]
    return [(f"{flag.name}.{path}", flag.nested[path]) for path in paths if path in flag.nested]


def _is_checked(context: Context, name: str, kind: Flag | Field) -> bool:
    return bool(kind.choices) or kind.type not in FREE or name in names(context.engine)
