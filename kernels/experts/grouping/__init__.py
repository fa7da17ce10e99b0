"""The places of a batch's choices grouped by expert, so that a tile of them reads one expert's weight."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ... import checks
from ...dispatch import Dispatch

_best = Dispatch(__name__, "sort_by_expert")


@dataclass(frozen=True, slots=True)
class Groups:
    """Places grouped by expert, as `sort_by_expert` makes them: each tile of places has one expert."""

    places: torch.Tensor  # int32 [tiles * tile]; those past a group hold num_places
    tile_experts: torch.Tensor  # int32 [tiles]; -1 past the last
    num_places: int
    tile: int

    def check(
        self, op: str, x: torch.Tensor, columns: int, divisor: int, row_weights: torch.Tensor | None
    ) -> None:
        """What a product reads for these places: row p // divisor of x, `columns` wide, and a weight for each place
        where there are any. Raises KernelInputError.
        """
        checks.check_size(op, "x", x, (self.num_places // divisor, columns))
        checks.check_tensor(op, "places", self.places, x.device, checks.INTEGERS, whole=True)
        checks.check_tensor(op, "tile_experts", self.tile_experts, x.device, checks.INTEGERS, whole=True)
        checks.check_size(op, "places", self.places, (len(self.tile_experts) * self.tile,))
        if row_weights is not None:
            checks.check_tensor(op, "row_weights", row_weights, x.device, checks.SINGLES, whole=True)
            checks.check_size(op, "row_weights", row_weights.view(-1), (self.num_places,))


def tile_of(num_places: int, num_experts: int) -> int:
    """Places of one tile: 64 fill Hopper's warpgroup instructions; a decode batch spreads thin, and weights bound it."""
    return 64 if num_places >= 32 * num_experts else 16


def tiles_of(num_places: int, num_experts: int, tile: int) -> int:
    """Tiles that hold any choice of experts: known from sizes alone, so that no value has to come back."""
    return min(-(-num_places // tile) + num_experts, num_places)


def sort_by_expert(ids: torch.Tensor, num_experts: int, tile: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(places int32 [tiles * tile], tile_experts int32 [tiles]): flat indices into ids [T, k], grouped by expert.

    ids: int64, contiguous, each in 0..num_experts - 1. An expert's places stand in rising order and start on a
    tile. Places past a group hold T * k, tiles past the last hold -1. Nothing waits for the device.
    """
    total = ids.numel()
    tiles = tiles_of(total, num_experts, tile)
    places = torch.empty(tiles * tile, dtype=torch.int32, device=ids.device)
    tile_experts = torch.empty(tiles, dtype=torch.int32, device=ids.device)
    _best(ids)(ids, num_experts, tile, places, tile_experts)
    return places, tile_experts
