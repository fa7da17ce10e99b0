"""Releases of vLLM, as rules that change between them compare them."""

from __future__ import annotations

from .errors import ConfigError


def vllm_release(version: str) -> tuple[int, ...]:
    """The numbers of a version such as 0.18.0 or v0.11.1. Raises ConfigError for what is not numbers and dots."""
    try:
        release = tuple(
            int(part) for part in version.removeprefix("v").split(".") if not part.startswith("post")
        )
    except ValueError:
        release = ()
    if len(release) < 2:
        raise ConfigError(f"vLLM version {version!r} is not of the form 0.18.0")
    return release
