"""What stands for a fact nobody gave."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Unknown:
    """A value that depends on facts nobody gave; `missing` names them (``model.num_experts``, ``device``)."""

    missing: frozenset[str]


def unknown(*names: str) -> Unknown:
    return Unknown(frozenset(names))
