"""Whether what was seen is of the server that a configuration describes: another model's is refused, other options are told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...core.arithmetic.model_sheets import shape_named
from ...core.arithmetic.shape import ModelShape
from ...core.errors import CamshaftError, EvidenceError
from .model import Evidence, Setting

# Knobs that change what a server does with a load; a port or a key may differ as it likes.
COMPARED = (
    "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "quantization", "max_model_len",
    "max_num_seqs", "max_num_batched_tokens", "long_prefill_token_threshold", "gpu_memory_utilization",
    "kv_cache_memory_bytes", "kv_cache_dtype", "block_size", "enable_prefix_caching", "enable_chunked_prefill",
    "enforce_eager", "async_scheduling", "scheduling_policy", "policy",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Difference:
    """A knob as the configuration writes it, and as the server that was seen ran."""

    knob: str
    written: Any
    ran: Any
    source: str


def require_same_model(model: str | None, served: Any, evidence: Evidence) -> None:
    """Raises EvidenceError where the evidence is of another model than the configuration, or of two.

    served: the configuration's `served_model_name`, one or several; a metrics page knows a model by that alone.
    """
    aliases = {str(name) for name in (served if isinstance(served, list | tuple) else [served])}
    told, named = model, "the configuration names"
    for setting in evidence.settings:
        if setting.name not in ("model", "model_name") or setting.value in aliases:
            continue
        found = str(setting.value)
        if told is not None and _differ(told, found):
            raise EvidenceError(
                f"{_file(setting)} is of {found} and {named} {told}: nothing is concluded from both together"
            )
        if told is None and setting.name == "model":
            told, named = found, f"{_file(setting)} of"


def differences(given: Mapping[str, Any], evidence: Evidence) -> list[Difference]:
    """The knobs that are written otherwise than the server ran; of several runs the last counts."""
    last = {setting.name: setting for setting in evidence.settings if setting.name in COMPARED}
    return [
        Difference(name, given[name], last[name].value, _file(last[name]))
        for name in COMPARED
        if name in last and given.get(name) is not None and _unlike(given[name], last[name].value)
    ]


def taken_from_server(found: Iterable[Difference]) -> list[str]:
    """For a report, a sentence for each source: the figures are of the server, so its options are taken."""
    return [
        f"{source} is of a server with {_listed((d.knob, d.ran) for d in told)}, where the configuration says "
        f"{_joined(str(d.written) for d in told)}: the server's are taken"
        for source, told in _by_source(found)
    ]


def asked_instead(found: Iterable[Difference]) -> list[str]:
    """The same of options that were asked for in place of the server's."""
    return [
        f"{source} is of a server with {_listed((d.knob, d.ran) for d in told)}: what was seen is not of "
        f"{_listed((d.knob, d.written) for d in told)}, as --set has it"
        for source, told in _by_source(found)
    ]


def _by_source(found: Iterable[Difference]) -> list[tuple[str, list[Difference]]]:
    by_source: dict[str, list[Difference]] = {}
    for difference in found:
        by_source.setdefault(difference.source, []).append(difference)
    return list(by_source.items())


def _file(setting: Setting) -> str:
    """`server.log` of `server.log:12`; an address and its port stay."""
    name, _, line = setting.source.rpartition(":")
    return name if line.isdigit() and "//" not in name else setting.source


def _listed(knobs: Iterable[tuple[str, Any]]) -> str:
    return _joined(f"{name} {value}" for name, value in knobs)


def _joined(parts: Iterable[str]) -> str:
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last


def _differ(one: str, other: str) -> bool:
    """Whether two names are known to be of different models; a name that nobody knows may be a folder or an alias."""
    if _leaf(one) == _leaf(other):
        return False
    shapes = _shape(one), _shape(other)
    return None not in shapes and shapes[0] != shapes[1]


def _leaf(name: str) -> str:
    return name.rstrip("/").rsplit("/", 1)[-1].lower()


def _shape(name: str) -> ModelShape | None:
    try:
        return replace(shape_named(name), name="")
    except CamshaftError:
        return None


def _unlike(written: Any, ran: Any) -> bool:
    """Whether two values are two settings; one that the release resolves (`auto`, `4k`) is not compared."""
    if isinstance(written, bool) or isinstance(ran, bool):
        return isinstance(written, bool) and isinstance(ran, bool) and written != ran
    try:
        return float(written) != float(ran)
    except (TypeError, ValueError):
        if not (isinstance(written, str) and isinstance(ran, str)) or "auto" in (written, ran):
            return False
        return not (written.startswith(ran) or ran.startswith(written))  # fp8 is fp8_e4m3
