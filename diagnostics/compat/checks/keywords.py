"""Arguments of the engine's classes in Python, which take fewer names than the command line."""

from __future__ import annotations

import msgspec

from ..inputs.base import Word
from ..parsing.parser import Misuse, Use
from ..releases.table import Flag, name_of
from .context import Context
from .findings import Edit, Finding, no_such
from .remedies import remedy


def misnamed(context: Context, given: Use | Misuse) -> bool:
    """Whether a keyword of Python is a spelling that only the command line takes for an option."""
    configuration, (origin, *_) = context.configuration, given.option.origins
    if not configuration.keywords or isinstance(origin, Word):
        return False
    return given.flag is not None and origin.key.replace("-", "_") != given.flag.dest


def keyword(context: Context, given: Use | Misuse, flag: Flag) -> Finding:
    """Another spelling of an option, as a keyword."""
    key = name_of(given.spelled)
    told = f"have no argument {key} at {context.target}: only the command line takes it, for {flag.dest}"
    return _refused(context, given, flag, told, f"Give {flag.dest}.")


def server_only(context: Context, use: Use) -> Finding:
    """An option of the HTTP server, given to the engine as a keyword that it does not take, or no longer takes."""
    flag = use.flag
    gone = context.options.leaves_engine(flag.name, context.target)
    if gone is None:
        told = f"have no argument {flag.dest} at {context.target}: it sets the HTTP server"
        return _refused(context, use, flag, told, f"Delete it, or start `vllm serve` with {flag.name}.")
    change = context.changes.options.get(flag.name)
    why = f": {change.why}" if change else ""
    fix, edits = remedy(context, change, use) if change else ("Delete it.", (Edit("unset", flag.name),))
    refused = _refused(context, use, flag, f"take {flag.dest} no more from {gone} on{why}", fix)
    evidence = f"{refused.evidence}: an option of the server alone"
    return msgspec.structs.replace(refused, code="FL-02", change="removed", evidence=evidence, edits=edits)


def _refused(context: Context, given: Use | Misuse, flag: Flag, told: str, fix: str) -> Finding:
    """A keyword that the engine's classes do not take."""
    evidence = f"{context.target} {flag.evidence}"
    return no_such(
        f"The engine's classes {told}.", given.option.place, (flag.name,), fix=fix, evidence=evidence
    )
