"""Findings about the devices that a container is given."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..releases.table import option_of
from .context import Context
from .findings import Finding

# What multiplies to the devices that one server's workers take.
SIZES = ("tensor_parallel_size", "pipeline_parallel_size")


def device_findings(context: Context) -> Iterator[Finding]:
    """A server whose workers take more GPUs than its container asks for, and that no other node lends any.

    One that asks for none runs on something else.
    """
    gpus, values = context.configuration.gpus, context.values
    sizes = {name: values[name] for name in SIZES if isinstance(values.get(name), int)}
    wanted = math.prod(sizes.values())
    elsewhere = values.get("distributed_executor_backend") not in (None, "mp") or "nnodes" in values
    if context.engine != "vllm" or not gpus or wanted <= gpus or elsewhere:
        return
    flags = tuple(option_of(name) for name in sizes)
    given = " and ".join(f"{flag} {size}" for flag, size in zip(flags, sizes.values(), strict=True))
    yield Finding(
        code="IN-05",
        severity="error",
        change="conflict",
        message=f"{given} takes {wanted} GPUs and the container is given {gpus}; {context.target} does not start so.",
        place=context.place_of(flags),
        flags=flags,
        fix=f"Ask for {wanted} GPUs, or lower {flags[0]}.",
        evidence="the container's resources",
        stops=True,
    )
