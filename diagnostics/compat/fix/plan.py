"""Rewrites an input for the target release: options dropped, renamed or set, everything else as it was."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ....core.errors import ConfigError
from ..check import check
from ..checks.context import Context
from ..checks.findings import Edit, Result
from ..inputs.base import Configuration, Entry, Source, UnreadableInput, Word
from ..inputs.read import COMMAND_LINE, read_command, read_text
from ..releases.versions import parse
from .cut import (
    Replacement,
    applied,
    block_item_span,
    cut_key,
    cut_variable,
    flow_item_span,
    is_block_item,
    shell_cuts,
)
from .settings import edit_settings


class CannotFix(ConfigError):
    """An edit would not read back as intended; nothing is written."""


@dataclass
class Plan:
    """What `--fix` would do to one input: the new text of each source, and what it leaves alone."""

    texts: dict[str, tuple[str, str]] = field(default_factory=dict)
    applied: list[Edit] = field(default_factory=list)
    left: list[Edit] = field(default_factory=list)
    fixed: int = 0  # findings whose every edit was made

    def diff(self) -> str:
        """A unified diff of every changed source."""
        parts = []
        for name, (old, new) in self.texts.items():
            lines = difflib.unified_diff(
                old.splitlines(keepends=True),
                new.splitlines(keepends=True),
                f"{name} (before)",
                f"{name} (after)",
            )
            parts.append("".join(line if line.endswith("\n") else line + "\n" for line in lines))
        return "".join(parts)


def plan(
    configuration: Configuration, result: Result, unsafe: bool = False, keep: Collection[str] = ()
) -> Plan:
    """The edits that the findings of one result propose, applied to the texts the configuration came from.

    Variables in `keep` stay set: other servers see them as well.
    Raises CannotFix when the edited text would not hold what it should.
    """
    context = Context(configuration, result.engine, None, parse(result.target), {}, None)
    wanted = _ordered([e for f in result.findings if not f.depends_on for e in f.edits if e.flag not in keep])
    if wanted and not configuration.editable:
        raise CannotFix(f"{configuration.label} is no text that can be rewritten in place; edit it by hand")
    made = Plan()
    chosen: list[Edit] = []
    for edit in wanted:
        (chosen if edit.safe or unsafe else made.left).append(edit)
    settings = [edit for edit in chosen if _target(context, edit) == "settings"]
    words = [edit for edit in chosen if _target(context, edit) == "words"]
    cuts = _cut_variables(configuration, [edit for edit in chosen if _target(context, edit) == "environment"])
    if configuration.typed:
        cuts += _cut_keys(context, settings)
    elif settings and configuration.entries:
        source = configuration.entries[0].source
        keys = {edit.flag: _keys(context, edit.flag) for edit in settings}
        made.texts[source.name] = (source.text, edit_settings(source, settings, keys))
    if words or cuts:
        for name, texts in _edit_words(context, words, cuts).items():
            if name in made.texts:
                raise CannotFix(f"{name} holds settings and commands; edit it by hand")
            made.texts[name] = texts
    made.texts = {name: texts for name, texts in made.texts.items() if texts[0] != texts[1]}
    made.applied = [edit for edit in chosen if _target(context, edit) != "nothing"]
    made.fixed = sum(
        bool(f.edits) and all(edit in made.applied or edit.flag in keep for edit in f.edits)
        for f in result.findings
    )
    _verify(configuration, result, made, _untouched(context, made.applied))
    return made


def _untouched(context: Context, edits: Sequence[Edit]) -> list[str]:
    """The words of the command that no edit is about."""
    touched = {id(origin) for edit in edits for use in _origins(context, edit.flag) for origin in use}
    return [word.text for word in context.configuration.words if id(word) not in touched]


def _verify(configuration: Configuration, result: Result, made: Plan, untouched: Sequence[str]) -> None:
    """Read the new text again and judge it: what was fixed must be gone and all else be there, or nothing is written."""
    name = configuration.source.name
    if name not in made.texts:
        return
    new = made.texts[name][1]
    try:
        read = read_command(new) if name == COMMAND_LINE else read_text(new, name, None, result.engine)
    except UnreadableInput as error:
        if all(not line.strip() or line.lstrip().startswith("#") for line in new.splitlines()):
            return  # every key went; comments may be left
        raise CannotFix(f"{name}: the edited text would not read back ({error}); edit it by hand") from None
    same = [item for item in read if item.label == configuration.label]
    again = next((item for item in same if _holds([w.text for w in item.words], untouched)), None)
    if again is None:
        raise CannotFix(f"{name}: the edited text would not hold the same server; edit it by hand")
    after = check(again, engine=result.engine, start=None, target=parse(result.target))
    fixed = {
        (f.code, f.flags, f.env)
        for f in result.findings
        if f.edits and all(e in made.applied for e in f.edits)
    }
    left = fixed & {(finding.code, finding.flags, finding.env) for finding in after.findings}
    if left:
        flags = ", ".join(sorted({name for _, flags, env in left for name in (*flags, *env)}))
        raise CannotFix(
            f"{name}: {flags} cannot be fixed without breaking the text around it; edit it by hand"
        )


def _holds(words: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether the wanted words are among the words, in their order."""
    rest = iter(words)
    return all(word in rest for word in wanted)


def _ordered(edits: Sequence[Edit]) -> list[Edit]:
    """Without repeats; one "set" an option (the last wins), and no option both dropped and set."""
    sets = {edit.flag: edit for edit in edits if edit.kind == "set"}
    renames = {edit.flag for edit in edits if edit.kind == "rename"}
    kept = [e for e in dict.fromkeys(edits) if e.kind != "set"]
    kept = [e for e in kept if e.kind != "unset" or (e.flag not in sets and e.flag not in renames)]
    return kept + list(sets.values())


def _target(context: Context, edit: Edit) -> str:
    """Whether an edit belongs to the settings file, to the command's words or to the environment."""
    if not edit.flag.startswith("-"):
        return "environment"
    origins = _origins(context, edit.flag)
    if origins:
        return "settings" if isinstance(origins[0][0], Entry) else "words"
    if edit.kind != "set":
        return "nothing"
    return "settings" if context.configuration.entries and not context.configuration.words else "words"


def _origins(context: Context, flag: str) -> list[list[Entry | Word]]:
    """The words or keys of each use of an option, known to the release or not."""
    found: list[list[Entry | Word]] = []
    for use in [*context.parsed.uses, *context.parsed.misuses]:
        name = use.flag.name if use.flag else context.options.name(use.spelled)
        if flag in (name, use.spelled):
            origins = [o for a in (use.option, *use.values) for o in a.origins]
            found.append(list({id(origin): origin for origin in origins}.values()))
    for trap in context.arguments.traps:
        if trap.kind in ("false_dropped", "false_literal", "empty_list"):
            known = context.table.find(trap.name)
            name = known.name if known else context.options.name(trap.name.replace("_", "-")) or trap.name
            if name == flag:
                found.append([trap.origin])
    return found


def _keys(context: Context, flag: str) -> list[str]:
    """The keys of a settings file that set an option."""
    return list(dict.fromkeys(o.key for use in _origins(context, flag) for o in use if isinstance(o, Entry)))


# A text, what to cut there, and whether blanks and continuations around it are still to be seen to.
Cut = tuple[Source, int, int, bool]


def _cut_variables(configuration: Configuration, edits: list[Edit]) -> list[Cut]:
    settings = [configuration.env[edit.flag] for edit in edits]
    return [(setting.source, *cut_variable(setting)) for setting in settings if setting.source is not None]


def _cut_keys(context: Context, edits: list[Edit]) -> list[Cut]:
    """The keys of a chart's settings to take out; other changes of such keys are for a person to make."""
    cuts: list[Cut] = []
    for edit in edits:
        entries = [o for use in _origins(context, edit.flag) for o in use if isinstance(o, Entry)]
        if edit.kind != "unset" or any(entry.end == 0 for entry in entries):
            raise CannotFix(f"{edit.flag} stands among a chart's settings; edit it by hand")
        cuts += [
            (entry.source, *cut_key(entry.source.text, entry.start, entry.end), False) for entry in entries
        ]
    return cuts


def _edit_words(context: Context, edits: list[Edit], cuts: list[Cut]) -> dict[str, tuple[str, str]]:
    """New texts by source name, after making `cuts` and dropping, renaming and setting options of a command."""
    changes: dict[str, list[Replacement]] = {}
    words_out: dict[str, list[tuple[int, int]]] = {}
    sources: dict[str, Source] = {}

    def note(source: Source, replacement: Replacement) -> None:
        sources[source.name] = source
        changes.setdefault(source.name, []).append(replacement)

    def cut(source: Source, start: int, end: int) -> None:
        sources[source.name] = source
        changes.setdefault(source.name, [])
        words_out.setdefault(source.name, []).append((start, end))

    for source, start, end, loose in cuts:
        cut(source, start, end) if loose else note(source, (start, end, ""))
    for edit in edits:
        uses = [[o for o in use if isinstance(o, Word)] for use in _origins(context, edit.flag)]
        uses = [use for use in uses if use]
        if edit.kind == "set":
            continue
        for use in uses:
            if edit.kind == "unset":
                _drop(use, note, cut)
            elif edit.to is not None:
                _rename(use, edit, note, cut)
    for edit in edits:
        if edit.kind == "set":
            uses = [[o for o in use if isinstance(o, Word)] for use in _origins(context, edit.flag)]
            _set(context, edit, [use for use in uses if use], note, cut, words_out)
    for name, spans in words_out.items():
        changes[name] += [(*span, "") for span in shell_cuts(sources[name].text, spans)]
    return {name: (sources[name].text, applied(sources[name].text, found)) for name, found in changes.items()}


Note = Callable[[Source, Replacement], None]
CutWords = Callable[[Source, int, int], None]


def _rename(use: list[Word], edit: Edit, note: Note, cut: CutWords) -> None:
    """Write the option's new name, and drop its value when it becomes a switch."""
    word = use[0]
    raw = word.source.text[word.start : word.end]
    option = word.text.split("=", 1)[0]
    at = raw.find(option)
    if at < 0:
        raise CannotFix(f"{word.place}: {option} is not written there as it stands; edit it by hand")
    assert edit.to is not None  # the caller checked
    if edit.value is True and "=" in word.text:
        quotes = raw[:at], raw[-1] if raw[-1:] in "\"'" and raw[:1] == raw[-1:] else ""
        note(word.source, (word.start, word.end, quotes[0] + edit.to + quotes[1]))
        return
    note(word.source, (word.start + at, word.start + at + len(option), edit.to))
    if edit.value is True and len(use) > 1:
        _drop(use[1:], note, cut)


def _drop(use: list[Word], note: Note, cut: CutWords) -> None:
    for group in _contiguous(use):
        first, last = group[0], group[-1]
        source = first.source
        if first.style == "item" and is_block_item(source.text, first.start):
            for word in group:
                note(source, (*block_item_span(source.text, word.start, word.end), ""))
        elif first.style == "item":
            note(source, (*flow_item_span(source.text, first.start, last.end), ""))
        else:
            cut(source, first.start, last.end)


def _contiguous(use: list[Word]) -> list[list[Word]]:
    """Words that stand next to each other in one source, continuation lines included."""
    groups: list[list[Word]] = []
    for word in use:
        if groups and groups[-1][-1].source is word.source:
            between = word.source.text[groups[-1][-1].end : word.start]
            if not between.replace("\\\n", "").strip() or groups[-1][-1].style == "item":
                groups[-1].append(word)
                continue
        groups.append([word])
    return groups


def _set(
    context: Context,
    edit: Edit,
    uses: list[list[Word]],
    note: Note,
    cut: CutWords,
    going: Mapping[str, list[tuple[int, int]]],
) -> None:
    """Write an option's value where it stands, or the option behind the last word of the command that stays."""
    negative = edit.value is False
    option = f"--no-{edit.flag[2:]}" if negative else edit.flag
    value = None if isinstance(edit.value, bool) else edit.value
    if uses:
        _replace_value(uses[-1], option, value, note, cut)
        return
    words = [word for word in context.configuration.words if word.style != "expanded"]
    words = [w for w in words if not any(a <= w.start < b for a, b in going.get(w.source.name, ()))] or words
    if not words:
        raise CannotFix("the command has no place for a new option; edit it by hand")
    last = max(words, key=lambda word: word.end)
    text = last.source.text
    if last.style == "item":
        item = option if value is None else f"{option}={value}"
        block = is_block_item(text, last.start)
        separator = "\n" + text[text.rfind("\n", 0, last.start) + 1 : last.start] if block else ", "
        note(last.source, (last.end, last.end, separator + _yaml_quoted(item, block)))
        return
    new = option if value is None else f"{option} {shlex.quote(value)}"
    line = text.rfind("\n", 0, last.start) + 1
    continued = line > 1 and text[: line - 1].rstrip(" \t").endswith("\\")
    indent = text[line : len(text[line:]) - len(text[line:].lstrip(" \t")) + line]
    note(last.source, (last.end, last.end, f" \\\n{indent}{new}" if continued else f" {new}"))


def _yaml_quoted(text: str, block: bool) -> str:
    quoted = "'" + text.replace("'", "''") + "'"
    plain = block and not any(char in text for char in "{}[]'\"#:,&*!|>%@`")
    return text if plain else quoted


def _replace_value(use: list[Word], option: str, value: str | None, note: Note, cut: CutWords) -> None:
    first, last = use[0], use[-1]
    if first.style == "item":
        new = option if value is None else f"{option}={value}"
        note(first.source, (first.start, first.end, _yaml_quoted(new, False)))
        _drop(use[1:], note, cut) if len(use) > 1 else None
        return
    if len(_contiguous(use)) > 1:
        raise CannotFix(f"{first.place}: {option} is written in more than one place; edit it by hand")
    new = option if value is None else f"{option} {shlex.quote(value)}"
    note(first.source, (first.start, last.end, new))
