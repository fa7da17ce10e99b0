"""What can go wrong while a table is made."""

from __future__ import annotations

from ....core.errors import EvidenceError


class HarvestError(EvidenceError):
    """A release that cannot be fetched, unpacked or read."""
