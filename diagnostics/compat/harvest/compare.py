"""Holds a table against a dump of the real parser (`dump_parser.py`): names, defaults, choices."""

from __future__ import annotations

from typing import Any

import msgspec

from ..releases.table import Flag, Table
from .errors import HarvestError


class ParserOption(msgspec.Struct):
    """One option of a dump; `strings` are all its spellings."""

    strings: list[str]
    default: Any = None
    choices: list[Any] | None = None
    nargs: str | int | None = None


class ParserDump(msgspec.Struct):
    """What the parser of an installed release accepts."""

    version: str
    flags: dict[str, ParserOption]


def read_dump(data: bytes) -> ParserDump:
    """Decode a dump. Raises HarvestError when it is none."""
    try:
        return msgspec.json.decode(data, type=ParserDump)
    except msgspec.MsgspecError as error:
        raise HarvestError(f"this is no dump of a parser: {error}") from error


def differences(table: Table, dump: ParserDump) -> list[str]:
    """Every disagreement between the table and the parser, one sentence each; empty when they agree."""
    found = [f"{name}: only the parser has it" for name in sorted(dump.flags.keys() - table.flags.keys())]
    found += [f"{name}: only the table has it" for name in sorted(table.flags.keys() - dump.flags.keys())]
    for name in sorted(dump.flags.keys() & table.flags.keys()):
        found += [f"{name}: {what}" for what in _of_flag(table.flags[name], dump.flags[name])]
    return found


def _of_flag(flag: Flag, option: ParserOption) -> list[str]:
    found = []
    spelled = {flag.name, *flag.aliases, *flag.negatives}
    if spelled != set(option.strings):
        found.append(f"spellings {sorted(spelled)} in the table, {sorted(option.strings)} in the parser")
    if not same(flag.default, option.default):
        found.append(f"default {flag.default!r} in the table, {option.default!r} in the parser")
    if not same(_sorted(flag.choices), _sorted(option.choices)):
        found.append(f"choices {flag.choices} in the table, {option.choices} in the parser")
    if flag.nargs != option.nargs:
        found.append(f"nargs {flag.nargs!r} in the table, {option.nargs!r} in the parser")
    return found


def same(left: Any, right: Any) -> bool:
    """Equal with equal types, so that True is not 1."""
    return left == right and msgspec.json.encode(left) == msgspec.json.encode(right)


def _sorted(values: list[Any] | None) -> list[Any] | None:
    return None if values is None else sorted(values, key=lambda value: (value is None, str(value)))
