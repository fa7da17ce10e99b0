"""How many cores this process may compute on."""

from __future__ import annotations

import functools
import os
from pathlib import Path


@functools.cache
def usable_cores() -> int:
    """Cores of the affinity mask; fewer if the control group's quota or OMP_NUM_THREADS says so."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limits = [cores]
    told = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if told.isdigit() and int(told) > 0:
        limits.append(int(told))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        limits.append(max(1, round(int(quota) / int(period))))
    except (OSError, ValueError):
        pass
    return min(limits)
