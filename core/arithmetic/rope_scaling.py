"""What a `config.json` says of a model's rotary embedding, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CHANGING_ROPES = ("dynamic", "longrope")  # their angles depend on the longest sequence of a batch
_LARGEST = 1e12
_ROPE_NUMBERS = (
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "factor",
    "high_freq_factor",
    "low_freq_factor",
    "mscale",
    "mscale_all_dim",
    "original_max_position_embeddings",
)


def rope_of(text: Mapping[str, Any]) -> tuple[float, dict[str, Any] | None]:
    """Base of the rotary embedding, and its scaling if there is one; of layers that differ, the first scaled ones'.

    Raises ValueError or TypeError for a figure that is no number, or one that no model has.
    """
    rope = dict(text.get("rope_parameters") or text.get("rope_scaling") or {})
    each = [dict(part) for part in rope.values() if isinstance(part, Mapping)] or [rope]
    found = next((part for part in each if rope_kind(part)), each[0])
    outside = text.get("original_max_position_embeddings")  # where Phi 3 keeps it
    if outside and not found.get("original_max_position_embeddings"):
        found["original_max_position_embeddings"] = outside
    theta = float(found.get("rope_theta") or text.get("rope_theta") or 10000.0)
    numbers = {key: value for key, value in found.items() if key in _ROPE_NUMBERS and value is not None}
    if any(isinstance(value, bool) or not 0 <= value <= _LARGEST for value in numbers.values()):
        raise ValueError(f"rope scaling {found}: numbers of 0 or more are needed for {', '.join(numbers)}")
    if not 0 < theta <= _LARGEST:
        raise ValueError(f"rope_theta is {theta}, a number above 0 is needed")
    return theta, found if rope_kind(found) else None


def rope_kind(scaling: Mapping[str, Any]) -> str | None:
    """The name of a rope scaling; None for none."""
    kind = scaling.get("rope_type") or scaling.get("type")
    return None if kind in (None, "default") else str(kind)
