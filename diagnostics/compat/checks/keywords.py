"""Arguments of the engine's classes in Python, which take fewer names than the command line."""

from __future__ import annotations

from ..inputs.base import Word
from ..parsing.parser import Misuse, Use
from ..releases.table import Flag
from .context import Context
from .findings import Edit, Finding
from .remedies import remedy


def misnamed(context: Context, given: Use | Misuse) -> bool:
    """Whether a keyword of Python is a spelling that only the command line takes for an option."""
    configuration, (origin, *_) = context.configuration, given.option.origins
    if not configuration.typed or configuration.usage == "api_server" or isinstance(origin, Word):
        return False
    return given.flag is not None and origin.key.replace("-", "_") != given.flag.dest


def keyword(context: Context, given: Use | Misuse, flag: Flag) -> Finding:
    """Another spelling of an option, as a keyword."""
    key = given.spelled.lstrip("-").replace("-", "_")
    return Finding(
        code="FL-01",
        severity="error",
        change="unknown",
        message=f"The engine's classes have no argument {key} at {context.target}: only the command line takes it, "
        f"for {flag.dest}.",
        place=given.option.place,
        flags=(flag.name,),
        fix=f"Give {flag.dest}.",
        evidence=f"{context.target} {flag.evidence}",
        stops=True,
    )


def server_only(context: Context, use: Use) -> Finding:
    """An option of the HTTP server, given to the engine as a keyword that it does not take, or no longer takes."""
    name = use.flag.name
    gone = context.options.leaves_engine(name, context.target)
    if gone is not None:
        change = context.changes.options.get(name)
        why = f": {change.why}" if change else ""
        fix, edits = remedy(context, change, use) if change else ("Delete it.", (Edit("unset", name),))
        return Finding(
            code="FL-02",
            severity="error",
            change="removed",
            message=f"The engine's classes take {use.flag.dest} no more from {gone} on{why}.",
            place=use.option.place,
            flags=(name,),
            fix=fix,
            evidence=f"{context.target} {use.flag.evidence}: an option of the server alone",
            stops=True,
            edits=edits,
        )
    return Finding(
        code="FL-01",
        severity="error",
        change="unknown",
        message=f"{use.flag.dest} sets the HTTP server; the engine's classes have no such argument at {context.target}.",
        place=use.option.place,
        flags=(use.flag.name,),
        fix=f"Delete it, or start `vllm serve` with {use.flag.name}.",
        evidence=f"{context.target} {use.flag.evidence}",
        stops=True,
    )
