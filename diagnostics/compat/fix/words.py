"""Edits of options where they stand among a command's words: dropped, renamed, set, or put in the place of others."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from itertools import pairwise

from ..checks.findings import Edit
from ..inputs.base import Configuration, EnvSetting, Word
from ..releases.table import negative_of
from .cut import Changes, is_block_item
from .settings import CannotFix

# One use of an option: the words that give it.
Use = list[Word]


def drop_option(use: Use, changes: Changes) -> None:
    """Take the words of an option out."""
    for word in use:
        drop = changes.drop_item if word.style == "item" else changes.drop_words
        drop(word.source, word.start, word.end)


def rename_option(use: Use, edit: Edit, to: str, changes: Changes) -> None:
    """Write the option's new name, and drop its value when it becomes a switch."""
    word = use[0]
    raw = word.source.text[word.start : word.end]
    option = word.text.split("=", 1)[0]
    at = raw.find(option)
    if at < 0:
        raise CannotFix(f"{word.place}: {option} is not written there as it stands; edit it by hand")
    if edit.value is True and "=" in word.text:
        closing = raw[-1] if raw[-1:] in "\"'" and raw[:1] == raw[-1:] else ""
        changes.put(word.source, word.start, word.end, raw[:at] + to + closing)
        return
    changes.put(word.source, word.start + at, word.start + at + len(option), to)
    if edit.value is True and len(use) > 1:
        drop_option(use[1:], changes)


def set_option(
    configuration: Configuration,
    edit: Edit,
    uses: Sequence[Use],
    replaced: Sequence[Use | EnvSetting],
    beside: Sequence[Configuration],
    changes: Changes,
) -> None:
    """Write an option's value where it stands, or in the place of the first option that it replaces, or behind the
    last word of the command that stays.

    Raises CannotFix where it would then be given at other times than what it replaces, or not to all servers
    (`beside`) that were given that.
    """
    option = negative_of(edit.flag) if edit.value is False else edit.flag
    value = None if isinstance(edit.value, bool) else edit.value
    shell = option if value is None else f"{option} {shlex.quote(value)}"
    item = option if value is None else f"{option}={value}"
    going = sorted((use for use in replaced if isinstance(use, list)), key=lambda use: use[0].start)
    stands = [*uses[-1:], *(use for use in going if use[0].style != "expanded")]
    last = stands[0][0] if stands else _last(configuration, changes)
    given = [word for use in [*uses, *going] for word in use]
    settings = [setting for setting in replaced if isinstance(setting, EnvSetting) and setting.source]
    _check_runs(configuration, edit, last, given if stands else [], [*given, *settings])
    _check_shared(edit, last, given, beside, bool(stands))
    if uses:
        _write(uses[-1], shell, item, changes)
    elif stands:
        _write_instead(stands[0], shell, item, changes)
    else:
        _append(last, shell, item, changes)


def _check_runs(
    configuration: Configuration,
    edit: Edit,
    at: Word,
    beside: Sequence[Word],
    within: Sequence[Word | EnvSetting],
) -> None:
    """Whatever it replaces must be in no branch, loop or function that `at` is not in; what it joins, in the same."""
    blocks_at = configuration.blocks_at
    new = blocks_at(at.start)
    same = all(blocks_at(word.start) == new for word in beside)
    if not same or not all(blocks_at(part.start) <= new for part in within):
        where = next(part.place for part in within if blocks_at(part.start) != new)
        raise CannotFix(f"{where}: {edit.flag} would be given under another condition; edit it by hand")


def _check_shared(
    edit: Edit, at: Word, given: Sequence[Word], beside: Sequence[Configuration], in_place: bool
) -> None:
    """Other servers that are given what is replaced must be given all of it, and what takes its place."""
    spans = {(word.start, word.end) for word in given}
    for other in beside:
        seen = spans & {(word.start, word.end) for word in other.words}
        if seen and not (in_place and seen == spans):
            raise CannotFix(f"{at.place}: another server is given what {edit.flag} replaces; edit it by hand")


def _last(configuration: Configuration, changes: Changes) -> Word:
    """The last word of the command that stays in it."""
    words = [word for word in configuration.words if word.style in ("shell", "item")]
    words = [word for word in words if not changes.drops(word)] or words
    if not words:
        raise CannotFix("the command has no place for a new option; edit it by hand")
    return max(words, key=lambda word: word.end)


def _append(last: Word, shell: str, item: str, changes: Changes) -> None:
    text = last.source.text
    line = text.rfind("\n", 0, last.start) + 1
    if last.style == "item":
        block = is_block_item(text, last.start, last.end)
        changes.put(last.source, last.end, last.end, _separator(last, block) + _item(item, last, block))
        return
    continued = line > 1 and text[: line - 1].rstrip(" \t").endswith("\\")
    indent = text[line : len(text[line:]) - len(text[line:].lstrip(" \t")) + line]
    changes.put(last.source, last.end, last.end, f" \\\n{indent}{shell}" if continued else f" {shell}")


def _separator(item: Word, block: bool) -> str:
    """What stands in front of one more item of a list."""
    text = item.source.text
    return "\n" + text[text.rfind("\n", 0, item.start) + 1 : item.start] if block else ", "


def _item(text: str, like: Word, block: bool) -> str:
    """A text as an item of a list: plain behind a dash where YAML takes it so, else in the quotes of another item."""
    if block and not any(char in text for char in "{}[]'\"#:,&*!|>%@`"):
        return text
    if like.source.text[like.start] == '"':
        return json.dumps(text, ensure_ascii=False)
    return "'" + text.replace("'", "''") + "'"


def _contiguous(use: Use) -> bool:
    """Whether words stand next to each other in one source, continuation lines included."""
    for word, following in pairwise(use):
        between = word.source.text[word.end : following.start]
        if following.source is not word.source or between.replace("\\\n", "").strip() or not between:
            return False
    return True


def _write(use: Use, shell: str, item: str, changes: Changes) -> None:
    """Write an option over the words that give it."""
    first, last = use[0], use[-1]
    if first.style == "item":
        changes.put(first.source, first.start, first.end, _item(item, first, False))
        if len(use) > 1:
            drop_option(use[1:], changes)
        return
    if not _contiguous(use):
        raise CannotFix(
            f"{first.place}: {shell.split()[0]} is written in more than one place; edit it by hand"
        )
    changes.put(first.source, first.start, last.end, shell)


def _write_instead(use: Use, shell: str, item: str, changes: Changes) -> None:
    """Write an option over the words of one that was to go, or behind the option that took its place before."""
    first, listed = use[0], use[0].style == "item"
    words = use[:1] if listed else use
    if not _contiguous(words):
        raise CannotFix(f"{first.place}: {first.text} is written in more than one place; edit it by hand")
    block = listed and is_block_item(first.source.text, first.start, first.end)
    new = _item(item, first, block) if listed else shell
    taken = [changes.take_back(word.source, word.start, word.end) for word in words]
    if not all(taken):  # another option has taken the place
        new = (_separator(first, block) if listed else " ") + new
    changes.put(first.source, words[0].start, words[-1].end, new)
