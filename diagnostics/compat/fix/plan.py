"""Rewrites an input for the target release: options dropped, renamed or set, everything else as it was."""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from ..check import check
from ..checks.context import Context
from ..checks.findings import Edit, Result
from ..inputs.base import Configuration, Entry, UnreadableInput, Word
from ..inputs.read import read_again
from ..releases.table import negative_of
from ..releases.versions import parse
from .cut import Changes, cut_variable, is_block_item
from .settings import CannotFix, edit_settings


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
    changes = Changes()
    for edit in chosen:
        uses, target = _origins(context, edit.flag), _target(context, edit)
        if target == "environment":
            cut_variable(configuration.env[edit.flag], changes)
        elif target == "settings":
            edit_settings(configuration, edit, _keys(uses), _replaced(context, result, edit), changes)
        elif target == "words":
            words = [[o for o in use if isinstance(o, Word)] for use in uses]
            _edit_words(context, edit, [use for use in words if use], changes)
        if target != "nothing":
            made.applied.append(edit)
    made.texts = changes.texts()
    made.fixed = sum(
        bool(f.edits) and all(edit in made.applied or edit.flag in keep for edit in f.edits)
        for f in result.findings
    )
    _verify(context, result, made)
    return made


def _held(configuration: Configuration, without: Collection[int] = ()) -> list[object]:
    """What a configuration holds in its own source: its words, then its keys with their values."""
    words = [word.text for word in configuration.words if id(word) not in without]
    entries = [e for e in configuration.entries if e.source is configuration.source and id(e) not in without]
    return [*words, *((entry.key, entry.value) for entry in entries)]


def _verify(context: Context, result: Result, made: Plan) -> None:
    """Read the new text again and judge it: what was fixed must be gone, all else be there and nothing beside it, or
    nothing is written."""
    configuration = context.configuration
    name = configuration.source.name
    if name not in made.texts:
        return
    old, new = made.texts[name]
    try:
        found = read_again(new, configuration)
    except UnreadableInput as error:
        if all(not line.strip() or line.lstrip().startswith("#") for line in new.splitlines()):
            return  # every key went; comments may be left
        raise CannotFix(f"{name}: the edited text would not read back ({error}); edit it by hand") from None
    same = [item for item in found if item.label == configuration.label] or found  # a label may hold its line
    again = next((item for item in same if _holds(item, context, made.applied)), None)
    if again is None or (_is_json(old) and not _is_json(new)):
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


def _holds(again: Configuration, context: Context, edits: Sequence[Edit]) -> bool:
    """Whether a server read again holds what the edits are not about, what they write, and nothing else."""
    before = context.configuration
    uses = {edit: [origin for use in _origins(context, edit.flag) for origin in use] for edit in edits}
    untouched = _held(before, {id(origin) for origins in uses.values() for origin in origins})
    held = _held(again)
    added = list(held)
    for item in untouched:
        if item in added:
            added.remove(item)
    written = [edit for edit in edits if edit.kind != "unset"]
    names = {edit.to or edit.flag for edit in written}
    names |= set(map(negative_of, names))
    values = [edit.value for edit in written]
    values += [word.text for edit in written for word in uses[edit] if isinstance(word, Word)]
    left = before.env.keys() - {edit.flag for edit in edits}
    return (
        _is_among(untouched, held)
        and all(_option(item) in names or item in values for item in added)
        and left <= again.env.keys() <= before.env.keys()
    )


def _option(item: object) -> str:
    """The option that a word or a key with its value names."""
    return "--" + item[0].replace("_", "-") if isinstance(item, tuple) else str(item).partition("=")[0]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _is_among(wanted: Sequence[object], items: Sequence[object]) -> bool:
    """Whether the wanted items are among the items, in their order."""
    rest = iter(items)
    return all(item in rest for item in wanted)


def _ordered(edits: Sequence[Edit]) -> list[Edit]:
    """Without repeats; one "set" an option (the last wins), and no option both dropped and set."""
    sets = {edit.flag: edit for edit in edits if edit.kind == "set"}
    renames = {edit.flag for edit in edits if edit.kind == "rename"}
    kept = [e for e in dict.fromkeys(edits) if e.kind != "set"]
    kept = [e for e in kept if e.kind != "unset" or (e.flag not in sets and e.flag not in renames)]
    return kept + list(sets.values())


def _target(context: Context, edit: Edit) -> str:
    """Whether an edit belongs to the settings file, to the command's words, to the environment, or to no text."""
    if not edit.flag.startswith("-"):
        return "environment" if context.configuration.env[edit.flag].source else "nothing"
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


def _keys(uses: list[list[Entry | Word]]) -> list[Entry]:
    return list({id(origin): origin for use in uses for origin in use if isinstance(origin, Entry)}.values())


def _replaced(context: Context, result: Result, edit: Edit) -> list[Entry]:
    """The keys that go out by the findings that set an edit's option, as they stand in the text."""
    findings = [f for f in result.findings if any(e.kind == "set" and e.flag == edit.flag for e in f.edits)]
    flags = {e.flag for f in findings for e in f.edits if e.kind == "unset"}
    keys = _keys([use for flag in flags for use in _origins(context, flag)])
    return sorted(keys, key=lambda entry: entry.start)


def _edit_words(context: Context, edit: Edit, uses: list[list[Word]], changes: Changes) -> None:
    """Drop, rename or set an option of a command."""
    if edit.kind == "set":
        _set(context, edit, uses, changes)
    for use in uses if edit.kind != "set" else ():
        if edit.kind == "unset":
            _drop(use, changes)
        elif edit.to is not None:
            _rename(use, edit, edit.to, changes)


def _rename(use: list[Word], edit: Edit, to: str, changes: Changes) -> None:
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
        _drop(use[1:], changes)


def _drop(use: list[Word], changes: Changes) -> None:
    for word in use:
        drop = changes.drop_item if word.style == "item" else changes.drop_words
        drop(word.source, word.start, word.end)


def _contiguous(use: list[Word]) -> list[list[Word]]:
    """Words that stand next to each other in one source, continuation lines included."""
    groups: list[list[Word]] = []
    for word in use:
        if groups and groups[-1][-1].source is word.source:
            between = word.source.text[groups[-1][-1].end : word.start]
            if not between.replace("\\\n", "").strip():
                groups[-1].append(word)
                continue
        groups.append([word])
    return groups


def _set(context: Context, edit: Edit, uses: list[list[Word]], changes: Changes) -> None:
    """Write an option's value where it stands, or the option behind the last word of the command that stays."""
    option = negative_of(edit.flag) if edit.value is False else edit.flag
    value = None if isinstance(edit.value, bool) else edit.value
    shell = option if value is None else f"{option} {shlex.quote(value)}"
    item = option if value is None else f"{option}={value}"
    if uses:
        _replace_value(uses[-1], shell, item, changes)
        return
    words = [word for word in context.configuration.words if word.style != "expanded"]
    words = [word for word in words if not changes.drops(word)] or words
    if not words:
        raise CannotFix("the command has no place for a new option; edit it by hand")
    last = max(words, key=lambda word: word.end)
    text = last.source.text
    line = text.rfind("\n", 0, last.start) + 1
    if last.style == "item":
        block = is_block_item(text, last.start, last.end)
        separator = "\n" + text[line : last.start] if block else ", "
        changes.put(last.source, last.end, last.end, separator + _item(item, last, block))
        return
    continued = line > 1 and text[: line - 1].rstrip(" \t").endswith("\\")
    indent = text[line : len(text[line:]) - len(text[line:].lstrip(" \t")) + line]
    changes.put(last.source, last.end, last.end, f" \\\n{indent}{shell}" if continued else f" {shell}")


def _item(text: str, like: Word, block: bool) -> str:
    """A text as an item of a list: plain behind a dash where YAML takes it so, else in the quotes of another item."""
    if block and not any(char in text for char in "{}[]'\"#:,&*!|>%@`"):
        return text
    if like.source.text[like.start] == '"':
        return json.dumps(text, ensure_ascii=False)
    return "'" + text.replace("'", "''") + "'"


def _replace_value(use: list[Word], shell: str, item: str, changes: Changes) -> None:
    first, last = use[0], use[-1]
    if first.style == "item":
        changes.put(first.source, first.start, first.end, _item(item, first, False))
        if len(use) > 1:
            _drop(use[1:], changes)
        return
    if len(_contiguous(use)) > 1:
        raise CannotFix(
            f"{first.place}: {shell.split()[0]} is written in more than one place; edit it by hand"
        )
    changes.put(first.source, first.start, last.end, shell)
