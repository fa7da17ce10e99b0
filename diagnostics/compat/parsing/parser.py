"""A release's argument parser, from its table: the same options, abbreviations, arities and conversions as argparse.

Unlike argparse it does not stop at the first mistake: every mistake becomes a `Misuse`, and what can still be read is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any, Literal

import msgspec

from ....core.places import Place
from ..facts.unknown import Unknown, unknown
from ..releases.dialect import Dialect
from ..releases.table import Flag, Table
from .arguments import Argument
from .conversion import BadValue, convert
from .placeholders import holds_placeholder, is_placeholder

MisuseKind = Literal[
    "unknown", "ambiguous", "missing_value", "explicit_value", "bad_value", "bad_choice", "stray_word"
]
NEGATIVE_NUMBER = re.compile(r"-\d+$|-\d*\.\d+$")


class Use(msgspec.Struct, frozen=True):
    """One option as used: its flag, how it was spelled, the option and value arguments, the value.

    `value` is an `Unknown` when it holds something only a running shell could know.
    """

    flag: Flag
    spelled: str
    option: Argument
    values: tuple[Argument, ...] = ()
    value: Any = None
    abbreviated: bool = False
    negative: bool = False

    @property
    def value_place(self) -> Place:
        """Where its value stands; where it has none, the option."""
        return (self.values[0] if self.values else self.option).place


class Misuse(msgspec.Struct, frozen=True):
    """One thing the parser would refuse. `flag` is set when the option itself is known."""

    kind: MisuseKind
    spelled: str
    option: Argument
    values: tuple[Argument, ...] = ()
    flag: Flag | None = None
    detail: str = ""
    candidates: tuple[str, ...] = ()


class Parsed(msgspec.Struct):
    """What a release's parser makes of the arguments."""

    uses: list[Use] = []
    misuses: list[Misuse] = []
    positionals: list[Argument] = []
    opaque: list[Argument] = []

    def values(self) -> dict[str, Any]:
        """Parsed value by snake_case name, the last use winning; repeated `append` options collect."""
        found: dict[str, Any] = {}
        for use in self.uses:
            if use.flag.kind == "append" and not isinstance(use.value, Unknown):
                before = found.get(use.flag.dest)
                found[use.flag.dest] = [*(before if isinstance(before, list) else []), use.value]
            else:
                found[use.flag.dest] = use.value
        return found


class Parser:
    """Parses arguments by one release's table. `arity` says how many words an option of other releases took; `unheld`
    options take values besides their choices."""

    def __init__(
        self,
        table: Table,
        arity: Callable[[str], int | None] | None = None,
        dialect: Dialect | None = None,
        unheld: Collection[str] = (),
    ) -> None:
        self.table = table
        self._dialect = dialect or Dialect()
        self.spellings = table.spellings()
        self._known = frozenset(self.spellings)
        self._arity = arity or (lambda _: None)
        self._unheld = unheld

    def parse(self, arguments: list[Argument]) -> Parsed:
        """Every option's use, every mistake, and the words that belong to no option."""
        parsed = Parsed()
        index = 0
        while index < len(arguments):
            argument = arguments[index]
            if argument.text == "--" and not argument.opaque:
                parsed.positionals += arguments[index + 1 :]
                break
            if not self._is_option(argument):
                (parsed.opaque if argument.opaque else parsed.positionals).append(argument)
                index += 1
                continue
            index = self._option(arguments, index, parsed)
        return parsed

    def _is_option(self, argument: Argument) -> bool:
        """argparse's rule for what may be an option string."""
        text = argument.text
        if len(text) < 2 or not text.startswith("-"):
            return False
        if text in self._known:
            return True
        if NEGATIVE_NUMBER.fullmatch(text):
            return False
        return " " not in text.split("=", 1)[0]

    def lookup(self, text: str) -> tuple[str | None, str | None, tuple[str, ...]]:
        """(option string or None, explicit value or None, candidates when it is ambiguous)."""
        if text in self._known:
            return text, None, ()
        name, equals, value = text.partition("=")
        explicit = value if equals else None
        if name in self._known:
            return name, explicit, ()
        matches = tuple(self._abbreviations(name))
        if len(matches) == 1:
            return matches[0], explicit, ()
        if not matches and not text.startswith("--"):  # -O3: a short option and its value in one word
            short = text[:2]
            if short in self._known and len(text) > 2:
                return short, text[2:], ()
        return None, explicit, matches

    def _abbreviations(self, name: str) -> list[str]:
        if not name.startswith("-") or len(name) < 3:
            return []
        return [spelling for spelling in self.spellings if spelling.startswith(name)]

    def _option(self, arguments: list[Argument], index: int, parsed: Parsed) -> int:
        """Handle the option at `index`; returns the index after its values."""
        argument = arguments[index]
        option, explicit, candidates = self.lookup(argument.text)
        spelled = argument.text.split("=", 1)[0]
        if spelled in ("-h", "--help"):
            return index + 1
        if option is None:
            return self._unknown(arguments, index, explicit, candidates, parsed)
        flag = self.table.find(option)
        assert flag is not None  # `option` is one of the table's own spellings
        follow = self._following(arguments, index + 1)
        least, most = arity(flag)
        given = (
            [Argument(explicit, argument.origins, argument.opaque)] if explicit is not None else follow[:most]
        )
        after = index + 1 + (0 if explicit is not None else len(given))
        if explicit is not None and most == 0:
            parsed.misuses.append(Misuse("explicit_value", spelled, argument, tuple(given), flag, explicit))
            return after
        if len(given) < least:
            if follow and follow[-1].opaque:  # an unknown variable may hold the rest
                given = follow
            else:
                parsed.misuses.append(Misuse("missing_value", spelled, argument, tuple(given), flag))
                return after
        self._use(flag, option, spelled, argument, given, parsed)
        if most == 0 and follow and follow[0].text.lower() in ("true", "false"):
            parsed.misuses.append(Misuse("stray_word", spelled, argument, (follow[0],), flag))
            return after + 1
        return after

    def _following(self, arguments: list[Argument], index: int) -> list[Argument]:
        found = []
        while (
            index < len(arguments) and not self._is_option(arguments[index]) and arguments[index].text != "--"
        ):
            found.append(arguments[index])
            index += 1
        return found

    def _use(
        self, flag: Flag, option: str, spelled: str, argument: Argument, given: list[Argument], parsed: Parsed
    ) -> None:
        negative = option in flag.negatives
        values = tuple(given)
        abbreviated = option != spelled and spelled.startswith("--")
        texts = [value.text for value in given]
        opaque = any(value.opaque or is_placeholder(value.text) for value in given)
        open_value = unknown(f"given.{flag.dest}", given=True)
        try:
            free = msgspec.structs.replace(flag, choices=None) if flag.name in self._unheld else flag
            value = convert(free, texts, negative, self._dialect)
            if opaque and not isinstance(value, dict):
                value = open_value
        except BadValue as error:
            value = open_value
            if not opaque and not any(map(holds_placeholder, texts)):
                kind: MisuseKind = "bad_choice" if error.choices is not None else "bad_value"
                parsed.misuses.append(Misuse(kind, spelled, argument, values, flag, str(error)))
        parsed.uses.append(Use(flag, spelled, argument, values, value, abbreviated, negative))

    def _unknown(
        self,
        arguments: list[Argument],
        index: int,
        explicit: str | None,
        candidates: tuple[str, ...],
        parsed: Parsed,
    ) -> int:
        argument = arguments[index]
        spelled = argument.text.split("=", 1)[0]
        if argument.opaque and explicit is None and not re.match(r"--?[A-Za-z][\w.-]*$", spelled):
            parsed.opaque.append(argument)
            return index + 1
        values: list[Argument] = []
        if explicit is not None:
            values = [Argument(explicit, argument.origins, argument.opaque)]
        else:
            follow = self._following(arguments, index + 1)
            took = self._arity(spelled)
            values = follow[: 1 if took is None else took]
        kind: MisuseKind = "ambiguous" if candidates else "unknown"
        parsed.misuses.append(Misuse(kind, spelled, argument, tuple(values), None, "", candidates))
        return index + 1 + (0 if explicit is not None else len(values))


def arity(flag: Flag) -> tuple[int, int]:
    """The least and the most words that an option takes."""
    many = 1_000_000
    if flag.kind in ("store_true", "store_false", "boolean_optional", "store_const", "count"):
        return 0, 0
    if flag.kind == "store_boolean":
        return 0, 1
    if flag.nargs is None:
        return (0, 1) if flag.parse == "optional_value" else (1, 1)
    if isinstance(flag.nargs, int):
        return flag.nargs, flag.nargs
    return {"?": (0, 1), "*": (0, many), "+": (1, many)}.get(flag.nargs, (0, many))
