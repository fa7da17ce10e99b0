"""Server logs: vLLM's of 0.6 to 0.33 (this engine's lines have the same form) and SGLang's.

Lines are read by the names in them, not by position, so that a field that a release adds or drops does
no harm. Log time has no year; only differences are used.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from ...core.errors import EvidenceError
from .access import Served, own_settings, served, tell_served
from .model import Event, Evidence, Figure, Sample, Setting
from .queue import growth_per_s
from .startup import startup_events, startup_settings
from .vocabulary import read_value, understand

_PREFIX = re.compile(
    r"^(?:.*?\((?P<proc>[\w-]+) pid=(?P<pid>\d+)\) )?(?:.*?\b)?(?P<lvl>INFO|WARNING|ERROR|DEBUG) "
    r"(?P<ts>\d\d-\d\d \d\d:\d\d:\d\d) \[?(?P<file>[\w./-]+):(?P<line>\d+)\] (?P<msg>.*)$"
)
_ISO = re.compile(r"^\[?(?P<ts>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)[^ ]*\]?\s*(?P<msg>.*)$")


def read_log(path: Path | str) -> Evidence:
    """Everything that a server's log tells. Raises EvidenceError if the file cannot be read or tells nothing."""
    file = Path(path)
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise EvidenceError(f"{file}: {error.strerror}") from error
    evidence = read_log_lines(lines, file.name)
    if not (evidence.samples or evidence.events or evidence.settings or evidence.figures):
        raise EvidenceError(
            f"{file}: no line of vLLM, SGLang or this engine was recognised; a server's log with its "
            "periodic statistics is needed (`Avg prompt throughput: ...` or `Decode batch ...`)"
        )
    return evidence


def read_log_lines(lines: Iterable[str], source: str) -> Evidence:
    """The same for lines at hand; empty evidence if nothing is recognised."""
    evidence, requests = Evidence(), list[Served]()
    for number, line in enumerate(lines, start=1):
        where = f"{source}:{number}"
        at_s, message = _split(line.rstrip())
        if (request := served(message, at_s)) is not None:
            requests.append(request)
        else:
            _read_message(message, at_s, where, evidence)
    _summarise(evidence, source)
    tell_served(evidence, requests, source)
    return evidence


def _split(line: str) -> tuple[float | None, str]:
    """Seconds on the log's clock and the message, whatever stands in front of it."""
    found = _PREFIX.match(line)
    if found:
        return _seconds(f"2000-{found['ts']}"), found["msg"]
    found = _ISO.match(line)
    if found:
        return _seconds(found["ts"].replace("T", " ")), found["msg"]
    return None, line


def _seconds(text: str) -> float | None:
    try:
        return datetime.strptime(text, "%Y-%m-%d %H:%M:%S").timestamp()
    except ValueError:
        return None


def _read_message(message: str, at_s: float | None, where: str, evidence: Evidence) -> None:
    if "KV cache usage" in message or "KV cache hit" in message or "Running:" in message:
        _stats(message, at_s, where, evidence)
    elif "Prefix cache hit rate: GPU" in message:
        _add_to_last(message, where, evidence, "prefix_hit_rate", r"GPU: ([\d.]+)%", 0.01)
    elif "SpecDecoding metrics" in message or "Speculative metrics" in message:
        _speculation(message, at_s, where, evidence)
    elif message.startswith("Iteration(") or " context requests" in message:
        _iteration(message, at_s, where, evidence)
    elif "Decode batch" in message or "Prefill batch" in message:
        _sglang(message, at_s, where, evidence)
    elif retracted := re.search(r"#retracted_reqs: (\d+)", message):
        before = evidence.event("preempted")
        total = float(retracted[1]) + (before.numbers["total"] if before else 0.0)
        evidence.events.append(
            Event(code="preempted", message=message, source=where, numbers={"total": total})
        )
    else:
        evidence.events += startup_events(message, where)
        _settings(message, where, evidence)


def _settings(message: str, where: str, evidence: Evidence) -> None:
    evidence.settings += startup_settings(message, where)
    if version := re.search(r"vLLM (?:API )?server version ([\d.]+)|LLM engine \(v([\d.]+)[^)]*\)", message):
        evidence.version = evidence.version or (version[1] or version[2]).rstrip(".")
        evidence.engine = evidence.engine or "vllm"
    if model := re.search(r"vLLM server version .*, serving model (\S+)", message):
        evidence.settings.append(Setting(name="model", value=model[1], source=where))
    elif engine := re.search(r"LLM engine \(v.*with config: (?:model=)?'([^']+)'", message):
        evidence.settings += _of_engine(engine[1], message, where)
    if "Camshaft server version" in message:
        evidence.engine = evidence.engine or "camshaft"
    elif message.startswith("configuration model="):
        evidence.settings += own_settings(message, where)
    if arguments := re.search(r"non-default args: (\{.*\})", message):
        evidence.settings += _non_default(arguments[1], where)
    elif arguments := re.search(r"args: Namespace\((.*)\)", message):
        evidence.settings += _namespace(arguments[1], where)


def _of_engine(model: str, message: str, where: str) -> list[Setting]:
    """What the line with the engine's configuration says of the model and the devices."""
    told: dict[str, Any] = {"model": model}
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        if found := re.search(rf"\b{name}=(\d+)", message):
            told[name] = int(found[1])
    return [Setting(name=name, value=value, source=where) for name, value in told.items()]


def _non_default(text: str, where: str) -> list[Setting]:
    try:
        told = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return []
    if not isinstance(told, dict):
        return []
    return [Setting(name=_knob(str(k)), value=v, source=where) for k, v in told.items()]


def _knob(name: str) -> str:
    return {"model_tag": "model"}.get(name, name)


def _namespace(text: str, where: str) -> list[Setting]:
    """Arguments of `Namespace(...)` whose values are literals."""
    try:
        call = ast.parse(f"f({text})", mode="eval").body
    except (SyntaxError, ValueError):
        return []
    settings = []
    for keyword in call.keywords if isinstance(call, ast.Call) else ():
        try:
            value: Any = ast.literal_eval(keyword.value)
        except ValueError:
            continue
        if keyword.arg and value is not None:
            settings.append(Setting(name=_knob(keyword.arg), value=value, source=where))
    return settings


def _stats(message: str, at_s: float | None, where: str, evidence: Evidence) -> None:
    """`Avg prompt throughput: 1.0 tokens/s, ..., Running: 2 reqs, Waiting: 1 reqs, GPU KV cache usage: 3.0%`."""
    values: dict[str, float] = {}
    for part in re.split(r", (?=[A-Za-z])", message.rstrip(".")):
        name, colon, told = part.rpartition(": ")
        if not colon:
            continue
        name = name.rsplit(": ", 1)[-1] if name.count(": ") else name
        if name.startswith("CPU KV") and "kv_usage" in values:
            continue
        meaning = understand(name)
        value = read_value(told, meaning)[0] if meaning else None
        if meaning and value is not None and not meaning.qualifier:
            values[meaning.name] = value
    if "running" in values or "kv_usage" in values:
        evidence.samples.append(Sample(at_s, values, where))


def _add_to_last(
    message: str, where: str, evidence: Evidence, name: str, pattern: str, factor: float
) -> None:
    found = re.search(pattern, message)
    if not found:
        return
    if evidence.samples:
        evidence.samples[-1].values[name] = float(found[1]) * factor
    else:
        evidence.figures.append(Figure(name=name, value=float(found[1]) * factor, source=where))


def _speculation(message: str, at_s: float | None, where: str, evidence: Evidence) -> None:
    share = re.search(r"[Dd]raft acceptance rate: ([\d.]+)(%?)", message)
    if share:
        value = float(share[1]) / (100 if share[2] else 1)
        evidence.figures.append(Figure(name="acceptance_rate", value=value, source=where, at_s=at_s))
    for name, pattern in (
        ("acceptance_length", r"Mean acceptance length: ([\d.]+)"),
        ("accepted_tokens", r"(?:Accepted|Number of accepted tokens): (\d+)"),
        ("drafted_tokens", r"(?:Drafted|Number of draft tokens): (\d+)"),
    ):
        found = re.search(pattern, message)
        if found:
            evidence.figures.append(Figure(name=name, value=float(found[1]), source=where, at_s=at_s))
    drafted = re.search(r"Number of speculative tokens: (\d+)", message)
    if drafted:
        evidence.settings.append(Setting(name="num_speculative_tokens", value=int(drafted[1]), source=where))


def _iteration(message: str, at_s: float | None, where: str, evidence: Evidence) -> None:
    """vLLM's line for each step (0.14.0 and later, a flag turns it on)."""
    names = {
        "context_requests": r"(\d+) context requests",
        "prefill_tokens": r"(\d+) context tokens",
        "running": r"(\d+) generation requests",
        "decode_tokens": r"(\d+) generation tokens",
        "step_ms": r"elapsed time: ([\d.]+) ms",
    }
    values = {
        name: float(found[1])
        for name, pattern in names.items()
        if (found := re.search(pattern, message)) is not None
    }
    if "step_ms" in values:
        evidence.samples.append(Sample(at_s, values, where))


def _sglang(message: str, at_s: float | None, where: str, evidence: Evidence) -> None:
    evidence.engine = evidence.engine or "sglang"
    names = {
        "running": r"#running-req: (\d+)",
        "waiting": r"#queue-req: (\d+)",
        "kv_usage": r"token usage: ([\d.]+)",
        "output_tokens_per_s": r"gen throughput \(token/s\): ([\d.]+)",
        "prefill_tokens": r"#new-token: (\d+)",
        "cached_tokens": r"#cached-token: (\d+)",
        "acceptance_length": r"accept len: ([\d.]+)",
        "acceptance_rate": r"accept rate: ([\d.]+)",
    }
    values = {
        name: float(found[1])
        for name, pattern in names.items()
        if (found := re.search(pattern, message)) is not None
    }
    if values:
        evidence.samples.append(Sample(at_s, values, where))
    if values and "cuda graph: " in message:
        values["graphs"] = float("cuda graph: True" in message)
    if "cuda graph: False" in message:
        evidence.events.append(Event(code="no_graph", message=message, source=where))


_SUMMED = ("preemptions",)


def _summarise(evidence: Evidence, source: str) -> None:
    """Figures over all samples that were busy: means, the sum of counts, and the largest where it tells more."""
    if not evidence.samples:
        return
    where = f"{source}: {len(evidence.samples)} lines of statistics"
    _grows(evidence, where)
    names = dict.fromkeys(name for sample in evidence.samples for name in sample.values)
    for name in names:
        values = [s.values[name] for s in evidence.samples if name in s.values]
        if name in _SUMMED:
            evidence.figures.append(Figure(name=name, value=sum(values), source=where, statistic="total"))
            continue
        mean = sum(values) / len(values)
        evidence.figures.append(
            Figure(name=name, value=mean, source=where, statistic="mean", derived=len(values) > 1)
        )
        if len(values) > 1:
            evidence.figures.append(
                Figure(name=name, value=max(values), source=where, statistic="max", derived=True)
            )


def _grows(evidence: Evidence, where: str) -> None:
    """What is in the server and grows, over three lines and more, where somebody waits at the last."""
    counted = [s for s in evidence.samples if "waiting" in s.values and "running" in s.values]
    held = [sample.values["running"] + sample.values["waiting"] for sample in counted]
    if len(counted) < 3 or not counted[-1].values["waiting"]:
        return
    growth = growth_per_s([sample.at_s for sample in counted], held)
    if growth is not None:
        evidence.figures.append(Figure(name="queue_growth_per_s", value=growth, source=where, derived=True))
