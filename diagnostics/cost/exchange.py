"""Time of an exchange between devices, from the curve that was measured or over PCIe."""

from __future__ import annotations

import numpy as np

from .hardware import HardwareSheet

# Where nobody measured an all-reduce: a ring at about 40 % of a 5.0 x16 link.
PCIE_LATENCY_US = 25.0
PCIE_BYTES_PER_US = 25_000.0


def all_reduce_us(hardware: HardwareSheet, message_bytes: float, size: int) -> float:
    """Microseconds of an all-reduce of `message_bytes` over `size` devices: of the nearest number that was measured."""
    curves = hardware.allreduce
    known = sorted(int(count) for count in curves)
    if not known:
        return PCIE_LATENCY_US + message_bytes * 2 * (size - 1) / size / PCIE_BYTES_PER_US
    nearest = min(known, key=lambda count: (abs(count - size), count))
    curve = curves[str(nearest)]
    top, floor = curve.bytes[-1], curve.us[0]
    at = np.log(min(max(message_bytes, 1.0), top))
    took = float(np.exp(np.interp(at, np.log(curve.bytes), np.log(curve.us)))) * max(1.0, message_bytes / top)
    return floor + max(0.0, took - floor) * hardware.allreduce_scale
