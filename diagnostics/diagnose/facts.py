"""What a report is about: the model and device, the evidence, and where the memory goes."""

from __future__ import annotations

from typing import Any

from ...core.arithmetic.memory import GIB
from ..evidence import Evidence, described
from ..simulate import Prepared
from ..simulate.engines import NEWEST_VLLM
from ..simulate.prepare import device_count, several
from .flags import refused_options
from .subject import Subject


def title(subject: Subject) -> str:
    model = subject.shape.name if subject.shape else subject.given.get("model") or "an unknown model"
    where = subject.hardware.name if subject.hardware else subject.gpu or "an unknown device"
    where = several(device_count(subject.given), where)
    return f"{subject.label}: {model} on {where}, {subject.engine.describe()}"


def missing(subject: Subject) -> str:
    """What has to be named before step times can be computed: `--gpu and --model`; empty where nothing has."""
    named = subject.given.get("model")
    model = f"a folder with the config.json of {named}, which has no sheet here, with --model"
    parts = [] if subject.hardware else ["--gpu"]
    if subject.shape is None:
        parts.append(model if named else "--model")
    return " and ".join(parts)


def wrong_release(subject: Subject, evidence: Evidence) -> str | None:
    """That a server was seen to run which the release assumed for it would not start; None where that is not so."""
    if subject.engine.name != "vllm" or subject.sglang or subject.engine.version or not evidence.ran:
        return None
    reasons = refused_options(subject)
    if not reasons:
        return None
    return (
        f"a server was seen to run, and vLLM {NEWEST_VLLM}, assumed as no release is named, does not start with these "
        f"options: {reasons[0].rstrip('.')}. Name the release with --version"
    )


def about(subject: Subject) -> dict[str, str]:
    """What was diagnosed, part by part."""
    told = {
        "model": subject.shape.name if subject.shape else subject.given.get("model"),
        "device": subject.hardware.name if subject.hardware else subject.gpu,
        "engine": "sglang" if subject.sglang else subject.engine.name,
        "judged": subject.bare,
        "evidence": "; ".join(subject.differs),
        "version": subject.engine.version or _assumed(subject),
    }
    return {name: str(value) for name, value in told.items() if value}


def _assumed(subject: Subject) -> str | None:
    """Whose scheduler is replayed where no release is named."""
    if subject.sglang:
        return f"replayed by vLLM {NEWEST_VLLM}'s scheduler"
    return f"{NEWEST_VLLM} assumed" if subject.engine.name == "vllm" else None


def told(evidence: Evidence) -> tuple[str, ...]:
    figures = described(evidence.figures)
    events = [f"{event.code}: {event.message} [{event.source}]" for event in evidence.events]
    settings = [f"{setting.name} = {setting.value} [{setting.source}]" for setting in evidence.settings]
    loads = [f"load: {hints.text} [{hints.source}]" for hints in evidence.load if hints.text]
    rows = [", ".join(f"{name} {value:g}" for name, value in row.items()) for row in evidence.sweep]
    return (*loads, *figures, *events, *settings, *rows)


def memory(prepared: Prepared | None, evidence: Evidence) -> dict[str, Any]:
    if prepared is None:
        told = {
            s.name: s.value for s in evidence.settings if s.name.endswith("_gib") or s.name == "kv_tokens"
        }
        return {"source": "the evidence", **told} if told else {}
    budget = prepared.budget
    return {
        "source": budget.rule,
        "devices": prepared.devices,
        "rows_gib": {label: round(size / GIB, 3) for label, size in budget.rows()},
        "kv_tokens": budget.kv_tokens,
        "bytes_per_token": budget.bytes_per_token,
        "max_concurrency": round(budget.max_concurrency, 2),
        "fits": budget.fits,
        "missing_gib": round(budget.missing_bytes / GIB, 3),
    }
