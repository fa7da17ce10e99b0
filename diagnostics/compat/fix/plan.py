"""Rewrites an input for the target release: options dropped, renamed or set, everything else as it was."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from ..check import check
from ..checks.context import Context
from ..checks.findings import Edit, Result
from ..inputs.base import Configuration, Entry, EnvSetting, UnreadableInput, Word
from ..inputs.read import read_again
from ..releases.table import negative_of, option_of
from ..releases.versions import parse
from .cut import Changes, cut_variable
from .settings import CannotFix, edit_settings
from .words import drop_option, rename_option, set_option


@dataclass
class Plan:
    """What `--fix` would do to one input: the new text of each source, and what it leaves alone."""

    texts: dict[str, tuple[str, str]] = field(default_factory=dict)
    applied: list[Edit] = field(default_factory=list)
    left: list[Edit] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)  # why some edits are for a person to make
    fixed: int = 0  # findings whose every edit was made
    servers: list[Configuration] = field(default_factory=list)  # those that the new text of the source holds

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
    configuration: Configuration,
    result: Result,
    unsafe: bool = False,
    keep: Collection[str] = (),
    beside: Sequence[Configuration] = (),
) -> Plan:
    """The edits that the findings of one result propose, applied to the texts the configuration came from.

    Variables in `keep` stay set: other servers see them as well. `beside` are the other servers of the source.
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
    made.texts = _edited(context, result, chosen, beside, made)
    made.fixed = sum(
        bool(f.edits) and all(edit in made.applied or edit.flag in keep for edit in f.edits)
        for f in result.findings
    )
    _verify(context, result, made)
    return made


def _edited(
    context: Context, result: Result, chosen: list[Edit], beside: Sequence[Configuration], made: Plan
) -> dict[str, tuple[str, str]]:
    """The texts with the chosen edits; those that cannot be made are left out, with all that goes with them."""
    changes, made.applied = Changes(), []
    for edit in chosen:
        try:
            if _make(context, result, edit, beside, changes):
                made.applied.append(edit)
        except CannotFix as error:
            made.refused.append(str(error))
            out = _going_with(edit, result)
            return _edited(context, result, [e for e in chosen if _subject(e) not in out], beside, made)
    return changes.texts()


def _subject(edit: Edit) -> tuple[str, str]:
    return edit.kind, edit.flag


def _going_with(edit: Edit, result: Result) -> set[tuple[str, str]]:
    """What is edited by the findings that ask for an edit, and by those that ask for any of that."""
    findings = [{_subject(e) for e in finding.edits} for finding in result.findings]
    found = {_subject(edit)}
    while more := {s for edits in findings if edits & found for s in edits} - found:
        found |= more
    return found


def _make(
    context: Context, result: Result, edit: Edit, beside: Sequence[Configuration], changes: Changes
) -> bool:
    """Note what an edit changes; False where no text holds it."""
    configuration = context.configuration
    uses, target = _origins(context, edit.flag), _target(context, edit)
    if edit.open:
        raise CannotFix(f"{edit.flag} {edit.value} holds what is not known here; edit it by hand")
    if target == "environment":
        cut_variable(configuration.env[edit.flag], changes)
    elif target == "settings":
        going = sorted(_keys(_replaced(context, result, edit)), key=lambda entry: entry.start)
        edit_settings(configuration, edit, _keys(uses), going, changes)
    elif edit.kind == "set" and target == "words":
        going = [*_words(_replaced(context, result, edit)), *_variables(context, result, edit)]
        set_option(configuration, edit, _words(uses), going, beside, changes)
    elif target == "words":
        for use in _words(uses):
            if edit.kind == "unset":
                drop_option(use, changes)
            elif edit.to is not None:
                rename_option(use, edit, edit.to, changes)
    return target != "nothing"


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
        made.servers = found = read_again(new, configuration)
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
    return option_of(item[0]) if isinstance(item, tuple) else str(item).partition("=")[0]


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


def _words(uses: list[list[Entry | Word]]) -> list[list[Word]]:
    found = [[origin for origin in use if isinstance(origin, Word)] for use in uses]
    return [use for use in found if use]


def _gone_for(result: Result, edit: Edit) -> list[str]:
    """What the findings that set an edit's option take out: options and variables."""
    findings = [f for f in result.findings if any(e.kind == "set" and e.flag == edit.flag for e in f.edits)]
    return list(dict.fromkeys(e.flag for f in findings for e in f.edits if e.kind == "unset"))


def _replaced(context: Context, result: Result, edit: Edit) -> list[list[Entry | Word]]:
    """The uses of the options that go for an edit's option."""
    return [use for flag in _gone_for(result, edit) for use in _origins(context, flag)]


def _variables(context: Context, result: Result, edit: Edit) -> list[EnvSetting]:
    """The variables that go for an edit's option."""
    env = context.configuration.env
    return [env[name] for name in _gone_for(result, edit) if name in env]
