"""Step times fitted from evidence: they give back what was observed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from camshaft.core.workload import load_workload
from camshaft.diagnostics.cost.speculation import tokens_per_step
from camshaft.diagnostics.diagnose.fit import fit
from camshaft.diagnostics.diagnose.fitted_cost import FittedCost, acceptance_of_each
from camshaft.diagnostics.diagnose.situation import Situation
from camshaft.diagnostics.diagnose.subject import Subject
from camshaft.diagnostics.evidence import observed_mapping
from camshaft.diagnostics.results import Targets
from camshaft.diagnostics.simulate import EngineKind

NONE = np.empty(0, dtype=np.int64)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.floats(0.01, 0.99), st.integers(1, 12))
def test_acceptance_of_each_draft_gives_the_reported_rate(rate: float, drafted: int) -> None:
    each = acceptance_of_each(rate, drafted)
    assert (tokens_per_step(drafted, each) - 1) / drafted == pytest.approx(rate, abs=1e-6)
    assert rate - 1e-6 <= each <= 1  # later drafts need all earlier ones


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.integers(1, 200), st.integers(0, 4000))
def test_a_step_is_linear_in_what_it_holds(decodes: int, prompt: int) -> None:
    cost = FittedCost(base_ms=20.0, sequence_ms=0.1, prefill_token_ms=0.05)
    chunk = np.array([prompt]) if prompt else NONE
    took = cost.step(np.full(decodes, 100), chunk, NONE[: len(chunk)], decodes).total
    assert took == pytest.approx(20.0 + 0.1 * decodes + 0.05 * prompt)


def _situation(observed: dict, config: dict) -> Situation:
    subject = Subject(label="case", given=config, engine=EngineKind("vllm"))
    return Situation(subject, observed_mapping(observed, "observed"), Targets(), config)


def test_the_replay_as_it_is_shows_the_observed_speed() -> None:
    observed = {
        "metrics": {"tpot_ms": 40, "running": 8, "waiting": 0},
        "workload": {"concurrency": 8, "input_len": 16, "output_len": 200},
    }
    rig = fit(_situation(observed, {"max_num_seqs": 32}))
    result = rig.play({}).result
    assert result.tpot_ms is not None
    assert result.tpot_ms.mean == pytest.approx(40, rel=0.03)


def test_a_cache_as_large_as_the_running_requests_make_it() -> None:
    observed = {
        "metrics": {"running": 10, "kv_usage": 0.5},
        "workload": {"input_len": 1000, "output_len": 200},
    }
    rig = fit(_situation(observed, {"max_num_seqs": 32}))
    assert rig.params.num_blocks * 16 == pytest.approx(10 * 1100 / 0.5, rel=0.01)


def test_a_workload_that_was_given_is_the_one_replayed() -> None:
    load = load_workload(
        {
            "arrival": {"kind": "closed", "concurrency": 2, "requests": 4},
            "input_tokens": 8,
            "output_tokens": 8,
        }
    )
    assert fit(_situation({"metrics": {"tpot_ms": 40}}, {}), load).workload is load
