"""The flag checker's findings for the release that a diagnosis is about: what traps it holds, whether it starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core.config import UNSUPPORTED
from ...core.errors import CamshaftError
from ..compat.checks.findings import Finding
from ..compat.releases.table import load
from ..compat.releases.versions import UnknownVersion, resolve
from ..compat.run import check_all
from .subject import Subject

BY_ESTIMATE = "VLLM-ME-"  # rules about memory: a diagnosis has its own budget of it


def has_knobs(subject: Subject, turned: Mapping[str, Any]) -> bool:
    """Whether the subject's release (the newest where none is told) has every knob and can do what it is turned to."""
    if subject.sglang:
        return True
    own = subject.engine.name == "camshaft"
    if own and any(
        name == entry.name and value is not None and entry.asks(value)
        for name, value in turned.items()
        for entry in UNSUPPORTED
    ):
        return False
    try:
        known = load(subject.engine.name, resolve(subject.engine.name, subject.engine.version)[0])
    except UnknownVersion:
        return True
    return all(known.find(_SPELLED.get(name, name)) or known.find(name) for name in turned)


_SPELLED = {"num_speculative_tokens": "speculative_config"}


def flag_traps(subject: Subject) -> tuple[dict[str, Any], ...]:
    """What the release does to the configuration's options; nothing where there is no file or no such release.

    Nothing of an option whose value was overridden, where the release knows it: what was written is not what runs.

    Where no release is told, what stops the newest one from starting.
    """
    told = subject.engine.version is not None
    return tuple(finding.as_dict() for finding in _findings(subject) if told or finding.stops)


def refused_options(subject: Subject) -> tuple[str, ...]:
    """Why the release (the newest where none is told) does not start with these options; empty where it does."""
    return tuple(
        " ".join(filter(None, (finding.message, finding.fix)))
        for finding in _findings(subject)
        if finding.stops and not finding.depends_on and not finding.code.startswith(BY_ESTIMATE)
    )


def _findings(subject: Subject) -> tuple[Finding, ...]:
    if subject.configuration is None:
        return ()
    try:
        results = check_all(
            [subject.configuration],
            engine=subject.engine.name,
            targets=[subject.engine.version or "newest"],
            model=dict(subject.shape.raw) if subject.shape is not None else None,
            device=subject.device,
        )
    except CamshaftError:
        return ()
    replaced = {name for name in subject.overridden if has_knobs(subject, {name: subject.given.get(name)})}
    return tuple(
        finding
        for result in results
        for finding in result.findings
        if not replaced.intersection(flag.removeprefix("--").replace("-", "_") for flag in finding.flags)
    )
