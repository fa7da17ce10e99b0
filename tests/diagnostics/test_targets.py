"""Targets as people write them: the share of requests that a percentile asks for."""

from __future__ import annotations

import numpy as np
import pytest

from camshaft.core.errors import ConfigError
from camshaft.diagnostics.results import RequestRecord, Targets, parse_targets, summarise


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        ("ttft_p95=800ms", Targets(ttft_ms=800)),
        ("ttft_p99=1s,tpot=40ms", Targets(ttft_ms=1000, tpot_ms=40, share=0.99)),
        ("e2e_p50_s=9", Targets(e2e_ms=9000, share=0.5)),
        ("itl_p99=50ms", Targets(itl_ms=50)),  # what a request's own gaps are held by anyway
    ],
)
def test_a_percentile_is_the_share_of_requests(text: str, targets: Targets) -> None:
    assert parse_targets(text) == targets
    assert targets.describe().endswith(f"for {targets.share:.0%}") is (targets.share != 0.95)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("ttft_p95=1s,e2e_p99=9s", "p95 and p99; one share of the requests"),
        ("itl_p95=50ms", "itl is the 99th percentile of a request's own gaps"),
        ("ttft_p42=1s", "_p50, _p90, _p95 or _p99"),
    ],
)
def test_a_percentile_that_means_nothing_is_refused(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        parse_targets(text)


@pytest.mark.parametrize(("share", "kept"), [("p90", True), ("p95", False)])
def test_so_many_requests_must_keep_the_targets(share: str, kept: bool) -> None:
    rows = [RequestRecord(n, 0.0, 8, 1, 0.1 if n else 2.0, 3.0) for n in range(12)]
    result = summarise(rows, np.array([]), targets=parse_targets(f"ttft_{share}=1s"))
    assert result.keeps_targets is kept
    assert f"{share[1:]}% of its requests" in result.targets.rule()
