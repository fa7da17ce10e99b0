"""The flag checker's findings for the release that a diagnosis is about."""

from __future__ import annotations

from typing import Any

from ...core.errors import CamshaftError
from ..compat.run import check_all
from .subject import Subject


def flag_traps(subject: Subject) -> tuple[dict[str, Any], ...]:
    """What the release does to the configuration's options; nothing where there is no file or no such release."""
    if subject.configuration is None or subject.engine.version is None:
        return ()
    try:
        results = check_all(
            [subject.configuration],
            engine=subject.engine.name,
            targets=[subject.engine.version],
            device=subject.device,
        )
    except CamshaftError:
        return ()
    return tuple(finding.as_dict() for result in results for finding in result.findings)
