"""Contradictions between a given knob and the named policy.

A knob given explicitly wins over the value that a policy file brings. It does not win over what the
policy is: one that takes whole prompts, or one request at a time, or pads a closed batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...policies.registry import PolicyFile
from ..errors import ConfigError

if TYPE_CHECKING:
    from .sources import LoadedConfig


def part_name(named: Any) -> str:
    """The name of a policy's part, given bare or with parameters."""
    return named if isinstance(named, str) else str(named.get("name", ""))


def chunks(policy: PolicyFile) -> bool:
    """Whether a policy cuts prompts into chunks."""
    if policy.knobs.enable_chunked_prefill is not None:
        return policy.knobs.enable_chunked_prefill
    return part_name(policy.chunking) != "off"


@dataclass(frozen=True, slots=True)
class Conflict:
    """One row of the matrix: a code, the knob, when its value contradicts the policy, and the way out."""

    code: str
    knob: str
    clashes: Callable[[Any, PolicyFile], bool]
    why: str
    fix: str


POLICY_CONFLICTS: tuple[Conflict, ...] = (
    Conflict(
        "CAMSHAFT-POL-01",
        "enable_chunked_prefill",
        lambda value, policy: value is True and not chunks(policy),
        "the policy takes prompts whole",
        "name policy: continuous-chunked, or remove enable_chunked_prefill",
    ),
    Conflict(
        "CAMSHAFT-POL-02",
        "enable_chunked_prefill",
        lambda value, policy: value is False and part_name(policy.chunking) == "adaptive",
        "the policy holds its target by cutting prompts",
        "name policy: continuous, or remove enable_chunked_prefill",
    ),
    Conflict(
        "CAMSHAFT-POL-03",
        "long_prefill_token_threshold",
        lambda value, policy: value > 0 and not chunks(policy),
        "the policy takes prompts whole, so no chunk can be capped",
        "name policy: continuous-chunked, or remove long_prefill_token_threshold",
    ),
    Conflict(
        "CAMSHAFT-POL-04",
        "max_num_seqs",
        lambda value, policy: value > 1 and part_name(policy.batching) == "single",
        "the policy runs one request at a time",
        "name policy: continuous-chunked, or remove max_num_seqs",
    ),
    Conflict(
        "CAMSHAFT-POL-05",
        "scheduling_policy",
        lambda value, policy: policy.plugin is not None,
        "the policy is a plug-in with an order of its own",
        "remove scheduling_policy",
    ),
)


def refuse_policy_conflicts(loaded: LoadedConfig, policy: PolicyFile) -> None:
    """Raises ConfigError for each knob that contradicts the policy, when both were written by hand.

    A preset's own knobs give way silently to a policy that was named over it, and a policy that nobody
    named gives way to the knobs.
    """
    if "policy" not in loaded.entries or loaded.policy_wins:
        return
    lines: list[str] = []
    for conflict in POLICY_CONFLICTS:
        entry = loaded.entries.get(conflict.knob)
        if entry is None or entry.value is None or entry.origin == "preset":
            continue
        value = getattr(loaded.config, conflict.knob)
        if conflict.clashes(value, policy):
            lines.append(
                f"{entry.place}: {conflict.code}: {entry.spelled}: {value} contradicts policy {policy.name} "
                f"({loaded.entries['policy'].place}): {conflict.why}; {conflict.fix}"
            )
    if lines:
        raise ConfigError("\n".join(lines))
