"""What stands for a fact nobody gave."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Unknown:
    """A value that depends on facts nobody gave; `missing` names them (``model.num_experts``, ``device``).

    One that is `given` is at least not null: somebody wrote something for it (``$N``).
    """

    missing: frozenset[str]
    given: bool = False


def unknown(*names: str, given: bool = False) -> Unknown:
    return Unknown(frozenset(names), given)
