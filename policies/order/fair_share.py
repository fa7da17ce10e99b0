from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field, PrivateAttr

from ..base import Events, Key, RequestView, StepView
from ..parts import Order

_FEW = 256  # counters that are never looked through


class FairShare(Order):
    """Least served tenant first: a virtual counter of weighted tokens for each (VTC, arXiv 2401.00588).

    A tenant that comes back after it was idle is lifted to the least counter of the busy ones, so idling
    saves nothing up. Between two tenants that both always have requests waiting, the weighted service
    differs by at most 2 max(input_weight * longest prompt, output_weight * tokens in the cache).
    """

    name = "fair_share"
    dynamic: ClassVar[bool] = True
    accounts: ClassVar[bool] = True

    input_weight: float = Field(default=1.0, ge=0, description="charge for a prompt token computed")
    output_weight: float = Field(default=2.0, ge=0, description="charge for a token generated")
    shares: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict,
        description="a tenant's share; others have 1; twice the share, twice the service",
    )

    _counters: dict[str, float] = PrivateAttr(default_factory=dict)
    _present: dict[str, int] = PrivateAttr(default_factory=dict)  # unfinished requests
    _last_to_leave: float = PrivateAttr(default=0.0)
    _forget_at: int = PrivateAttr(default=_FEW)  # counters held

    def key(self, view: RequestView, step: StepView) -> Key:
        return (self._counters.get(view.tenant, 0.0),)

    def counter(self, tenant: str) -> float:
        """Weighted tokens a tenant was served, divided by its share, lifts included."""
        return self._counters.get(tenant, 0.0)

    def on_events(self, events: Events) -> None:
        for view in events.arrived:
            self._arrive(view.tenant)
        if len(events.tenant_codes):
            charge = self.input_weight * events.prefill_tokens + self.output_weight * events.decode_tokens
            sums = np.bincount(events.tenant_codes, weights=charge, minlength=len(events.tenants))
            for tenant, amount in zip(events.tenants, sums.tolist(), strict=True):
                if amount:
                    share = self.shares.get(tenant, 1.0)
                    self._counters[tenant] = self._counters.get(tenant, 0.0) + amount / share
        for view in events.finished:
            self._leave(view.tenant)
        if len(self._counters) > self._forget_at:
            self._forget()

    def _arrive(self, tenant: str) -> None:
        if not self._present.get(tenant):
            self._counters[tenant] = max(self._counters.get(tenant, 0.0), self._floor())
        self._present[tenant] = self._present.get(tenant, 0) + 1

    def _leave(self, tenant: str) -> None:
        left = self._present.get(tenant, 0) - 1
        if left > 0:
            self._present[tenant] = left
        else:
            self._present.pop(tenant, None)
            self._last_to_leave = self._counters.get(tenant, 0.0)

    def _floor(self) -> float:
        """What whoever comes back is lifted to; it never falls."""
        return min((self._counters[tenant] for tenant in self._present), default=self._last_to_leave)

    def _forget(self) -> None:
        """Drops the counters that a lift would replace: names come from clients and may be without end."""
        floor = self._floor()
        self._counters = {
            tenant: counter
            for tenant, counter in self._counters.items()
            if tenant in self._present or counter > floor
        }
        self._forget_at = max(_FEW, 2 * len(self._counters))
