from __future__ import annotations

from ..parts import Batching


class Continuous(Batching):
    """Requests enter and leave between any two steps."""

    name = "continuous"
