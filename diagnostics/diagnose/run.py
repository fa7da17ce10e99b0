"""The diagnosis from end to end: settle, budget, fit the load, replay, turn each knob, replay again, decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...core.errors import CamshaftError
from ...core.workload import Workload
from ..evidence import Contradiction, Evidence, Setting, contradictions
from ..results import Targets
from ..simulate import Prepared
from .choose import effective, prepared_for
from .conclude import concluded, too_thin
from .dialect import in_sglang
from .facts import about, memory, title, told, wrong_release
from .flags import flag_traps
from .load import paced
from .memory import refused_at_start, refused_by_budget
from .model import Report, Verdict
from .rules import ALL, Rule
from .situation import Situation
from .subject import Subject
from .trials import Tell, try_knobs


def diagnose(
    subject: Subject,
    evidence: Evidence,
    *,
    workload: Workload | None = None,
    targets: Targets | None = None,
    rules: tuple[Rule, ...] = ALL,
    tell: Tell = lambda _: None,
) -> Report:
    """The report. `rules` propose knobs from the evidence; without any the replays of every turn decide alone.

    `tell` hears what is replayed next. Raises ConfigError where the configuration contradicts itself.
    """
    report = _diagnosed(subject, evidence, workload, targets, rules, tell)
    verdict = _doubted(report.verdict, wrong_release(subject, evidence))
    report = replace(report, verdict=verdict, by_hand=verdict.knob in subject.given)
    return in_sglang(report) if subject.sglang else report


def _doubted(verdict: Verdict, doubt: str | None) -> Verdict:
    """A verdict on a server that runs, with what speaks against the release that is assumed for it."""
    if doubt is None or verdict.bottleneck in ("kv_does_not_fit", "refused"):
        return verdict
    if verdict.knob is None:
        return replace(verdict, why=f"{doubt}. As if it were that one: {verdict.why}", confidence="thin")
    told = f"{doubt[0].upper()}{doubt[1:]}"
    return replace(verdict, advice=f"{verdict.advice}. {told}" if verdict.advice else told)


def _diagnosed(
    subject: Subject,
    evidence: Evidence,
    workload: Workload | None,
    targets: Targets | None,
    rules: tuple[Rule, ...],
    tell: Tell,
) -> Report:
    prepared = prepared_for(subject, evidence, targets or Targets())
    workload = paced(workload, evidence)
    situation = Situation(
        subject,
        evidence,
        targets or Targets(),
        effective(prepared, subject),
        workload or evidence.recorded,
        prepared.budget.kv_tokens if prepared is not None and prepared.budget.fits else None,
    )
    found = tuple(f"{c.what} ({', '.join(c.sources)})" for c in _contradictions(subject, evidence))
    report = Report(
        title=title(subject),
        about=about(subject),
        verdict=_undecided(found),
        memory=memory(prepared, evidence),
        evidence=told(evidence),
        contradictions=found,
        assumptions=(*subject.notes, *evidence.notes),
        flags=flag_traps(subject),
    )
    refused = refused_at_start(situation)
    impossible = prepared is not None and not prepared.budget.fits
    if prepared is not None and impossible and (refused is None or refused.confidence == "thin"):
        refused = refused_by_budget(prepared, situation)
    if refused is not None:
        return replace(
            report,
            verdict=refused,
            assumptions=(*report.assumptions, *(prepared.assumptions if prepared else ())),
        )
    if prepared is None and evidence.thin and workload is None:
        return replace(report, verdict=too_thin(subject))
    if found and not _told_enough(evidence, found):
        return report
    return _replayed(report, situation, prepared, workload, rules, tell)


def _replayed(
    report: Report,
    situation: Situation,
    prepared: Prepared | None,
    workload: Workload | None,
    rules: tuple[Rule, ...],
    tell: Tell,
) -> Report:
    try:
        trials = try_knobs(situation, prepared, workload, rules, tell)
    except CamshaftError as error:
        why = f"the load cannot be replayed: {error}"
        return replace(report, verdict=replace(report.verdict, bottleneck="none", why=why, confidence="thin"))
    return concluded(report, trials, prepared, workload is not None, tell)


def _undecided(found: Sequence[str]) -> Verdict:
    return Verdict(
        bottleneck="none",
        why=f"the evidence contradicts itself: {'; '.join(found)}. Nothing is concluded from it",
        confidence="thin",
    )


def _contradictions(subject: Subject, evidence: Evidence) -> list[Contradiction]:
    """Of the evidence, and between it and the configuration: one engine never runs more than its slots."""
    slots = subject.given.get("max_num_seqs")
    if slots is None or int(subject.given.get("data_parallel_size") or 1) > 1:
        return contradictions(evidence)
    told = Evidence(settings=[Setting(name="max_num_seqs", value=slots, source="the configuration")])
    return contradictions(told.merge(evidence))


def _told_enough(evidence: Evidence, found: Sequence[str]) -> bool:
    """Whether what contradicts itself is a small part of what was told."""
    return len(found) * 4 <= len(evidence.figures) + len(evidence.events)
