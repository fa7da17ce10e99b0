"""Fixes every server of an input, one after the other, and judges what the new text amounts to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ....core.errors import CamshaftError
from ..checks.findings import Edit, Result
from ..inputs.base import Configuration
from .plan import CannotFix, Plan, plan

Judge = Callable[[Configuration], Result]


@dataclass
class Fixed:
    """What the fixes of one source amount to: its plan, the verdicts on the new text, and why some were not made."""

    label: str
    plan: Plan = field(default_factory=Plan)
    results: list[Result] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def fix_all(configurations: Sequence[Configuration], judge: Judge, unsafe: bool = False) -> list[Fixed]:
    """One outcome for each source, in order; nothing is written.

    A variable that several servers of a source see is taken out with the last of them, after each has its option.
    """
    groups: dict[int, list[Configuration]] = {}
    for configuration in configurations:
        groups.setdefault(id(configuration.source), []).append(configuration)
    return [_fix_group(group, judge, unsafe) for group in groups.values()]


def _fix_group(group: list[Configuration], judge: Judge, unsafe: bool) -> Fixed:
    outcome = Fixed(group[0].label if len(group) == 1 else group[0].source.name)
    for position in range(len(group)):
        configuration = group[position]
        shared = _shared(configuration, group[position + 1 :])
        try:
            beside = [other for other in group if other is not configuration]
            made = plan(configuration, judge(configuration), unsafe, shared, beside)
            again = _servers(group, made)
        except CamshaftError as error:
            outcome.refused.append(str(error))
            continue
        outcome.refused += made.refused
        _merge(outcome.plan, made)
        if again is None:
            return outcome
        group = again
    outcome.results = [judge(configuration) for configuration in group]
    return outcome


def _shared(configuration: Configuration, others: Sequence[Configuration]) -> frozenset[str]:
    """The variables that servers further on see by the same words."""
    return frozenset(
        name
        for name, setting in configuration.env.items()
        for other in others
        if name in other.env and other.env[name].place == setting.place
    )


def _servers(group: list[Configuration], made: Plan) -> list[Configuration] | None:
    """The servers of the new text, or None where nothing is left of it. Raises CannotFix where they are others."""
    name = group[0].source.name
    if name not in made.texts:
        return group
    if made.servers and len(made.servers) != len(group):
        raise CannotFix(f"{name}: the edited text would not hold the same servers; edit it by hand")
    return made.servers or None


def _merge(whole: Plan, made: Plan) -> None:
    for name, (old, new) in made.texts.items():
        whole.texts[name] = (whole.texts[name][0] if name in whole.texts else old, new)
    whole.applied += made.applied
    whole.fixed += made.fixed
    whole.left += [edit for edit in made.left if edit not in whole.left]


def flags_left(edits: Sequence[Edit]) -> str:
    """The names of what is left to a person, each once."""
    return ", ".join(dict.fromkeys(edit.flag for edit in edits))
