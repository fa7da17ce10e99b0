"""What a server or an engine is sent before a measured load."""

from __future__ import annotations

from ...core.workload import Workload

WARM_UP_SEED = 0x3A7  # mixed into the load's own: contents that no measured request shares


def warm_up_load(workload: Workload, requests: int) -> Workload:
    """The first few requests of a load, with short answers."""
    shape = workload.first(requests).shape.model_copy(update={"max_output_tokens": 8})
    return Workload(workload.name, shape, workload.trace)
