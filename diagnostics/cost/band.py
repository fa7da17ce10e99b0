"""How far predictions for a model on a device may be off."""

from __future__ import annotations

from ...core.shape import ModelShape
from .hardware import HardwareSheet
from .step import FLOAT32_ROUTERS

# GLM 4.5 Air on four A100 gave 20 tokens/s where 25 are predicted (GPUStack, performance lab), and GLM on newer devices
# lies further below; of other mixtures' errors that is twice. The router explains a part, and nothing the rest.
LESS_KNOWN = 1.6


def error_percent(hardware: HardwareSheet, shape: ModelShape) -> tuple[float, float]:
    """Percent of the time per token and of the time to first token, as the device's sheet has them for such models."""
    band = hardware.error_band
    if not shape.num_experts:
        return band.tpot_percent, band.ttft_percent
    factor = LESS_KNOWN if shape.architecture in FLOAT32_ROUTERS else 1.0
    return band.moe_tpot_percent * factor, band.moe_ttft_percent * factor
