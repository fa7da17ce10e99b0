"""Whole numbers and sizes as people write them: 25.6k, 16K, 2GiB."""

from __future__ import annotations

import re

DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_NUMBER = r"(\d{1,18}(?:\.\d{1,18})?)"  # longer ones are a mistake, and a float has no place for them
_SUFFIXED = re.compile(_NUMBER + r"([kKmMgGtT])")
_SIZED = re.compile(_NUMBER + r" *([kKMGT])(i?)B")


def human_readable(text: str) -> int | None:
    """1k is 1,000, 1K is 1,024, 25.6k is 25,600 (vLLM's human_readable_int); None for a text without such a letter.

    Raises ValueError for decimals in front of K, M, G or T.
    """
    match = _SUFFIXED.fullmatch(text.strip())
    if match is None:
        return None
    number, suffix = match.groups()
    if suffix in DECIMAL:
        return int(float(number) * DECIMAL[suffix])
    if "." in number:
        raise ValueError(
            f"{text.strip()}: {suffix} is a power of 1,024 and takes whole numbers; did you mean {number}{suffix.lower()}?"
        )
    return int(number) * BINARY[suffix]


def human_readable_bytes(text: str) -> int | None:
    """A size with its unit, 1GiB or 500MB, and else as `human_readable`."""
    match = _SIZED.fullmatch(text.strip())
    if match is None:
        return human_readable(text)
    number, prefix, binary = match.groups()
    return round(float(number) * (BINARY[prefix.upper()] if binary else DECIMAL[prefix.lower()]))
