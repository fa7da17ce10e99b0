"""How far predictions for a model on a device may be off."""

from __future__ import annotations

from ...core.arithmetic.shape import ModelShape
from .hardware import HardwareSheet

# Times the error of other mixtures. GLM's 4.5 and 4.6 come out 27 % too fast on A100 (GPUStack, performance lab), 73 % on
# B200 (vLLM, pull 23695) and 43 to 69 % on MI300X, by the tiles of its experts (pull 27323); neither its shape nor its
# router explains that. MiniMax, whose router is in float32 too, lies within its device's own band.
LESS_KNOWN = {"Glm4MoeForCausalLM": 2.0}
MOST_PERCENT = 90.0  # by which steps are taken to be faster: they take some time


def error_percent(hardware: HardwareSheet, shape: ModelShape) -> tuple[float, float]:
    """Percent of the time per token and of the time to first token, as the device's sheet has them for such models."""
    band = hardware.error_band
    if not shape.num_experts:
        return band.tpot_percent, band.ttft_percent
    factor = LESS_KNOWN.get(shape.architecture, 1.0)
    return band.moe_tpot_percent * factor, band.moe_ttft_percent * factor
