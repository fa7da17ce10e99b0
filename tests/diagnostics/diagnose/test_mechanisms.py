"""One mechanism at a time, seen through evidence that a person would have: the verdict follows the mechanism."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from camshaft.core.workload import Workload, load_workload
from camshaft.diagnostics.diagnose import Report

Examine = Callable[..., Report]


def _stats(running: int, waiting: int, kv: float, prompt: float = 2000.0, output: float = 5000.0) -> str:
    return (
        f"INFO 05-11 12:04:19 [loggers.py:118] Engine 000: Avg prompt throughput: {prompt} tokens/s, Avg generation "
        f"throughput: {output} tokens/s, Running: {running} reqs, Waiting: {waiting} reqs, GPU KV cache usage: {kv}%, "
        "Prefix cache hit rate: 0.0%"
    )


@pytest.mark.parametrize(
    ("config", "metrics", "load", "bottleneck", "knob", "direction"),
    [
        (
            {"enable_chunked_prefill": False, "max_num_seqs": 64},
            {"itl_p50_ms": 25, "itl_p99_ms": 900, "running": 20, "waiting": 0, "kv_usage": 0.4},
            {"input_len": 8000, "output_len": 100, "concurrency": 20},
            "prefill_interference",
            "enable_chunked_prefill",
            "on",
        ),
        (
            {"max_num_batched_tokens": 16384, "max_num_seqs": 64},
            {"itl_p50_ms": 22, "itl_p99_ms": 650, "running": 24, "waiting": 0, "kv_usage": 0.4},
            {"input_len": 6000, "output_len": 100, "concurrency": 24},
            "prefill_interference",
            "max_num_batched_tokens",
            "lower",
        ),
        (
            {"max_num_batched_tokens": 512},
            {"running": 12, "waiting": 52, "kv_usage": 0.15, "ttft_p50_s": 9.0, "tpot_ms": 28},
            {"input_len": 4000, "output_len": 100, "concurrency": 64},
            "token_budget",
            "max_num_batched_tokens",
            "raise",
        ),
        (
            {"speculative_config": {"method": "eagle", "num_speculative_tokens": 4}},
            {
                "acceptance_rate": 0.45,
                "running": 96,
                "tpot_ms_with": 38,
                "tpot_ms_without": 27,
                "kv_usage": 0.5,
            },
            {"concurrency": 96, "input_len": 100, "output_len": 50},
            "speculation",
            "num_speculative_tokens",
            "lower",
        ),
    ],
)
def test_the_knob_follows_from_the_mechanism(
    examine: Examine,
    config: dict[str, Any],
    metrics: dict[str, Any],
    load: dict[str, Any],
    bottleneck: str,
    knob: str,
    direction: str,
) -> None:
    verdict = examine(config, {"metrics": metrics, "workload": load}).verdict
    assert (verdict.bottleneck, verdict.knob, verdict.direction) == (bottleneck, knob, direction)
    assert verdict.predicted


def test_slots_that_are_all_taken_with_room_in_the_cache(examine: Examine) -> None:
    verdict = examine(
        {"max_num_seqs": 16}, {}, [_stats(16, 30, 31.2, 800, 600), _stats(16, 34, 32.2, 800, 600)]
    ).verdict
    assert (verdict.bottleneck, verdict.knob, verdict.before, verdict.direction) == (
        "admission_cap",
        "max_num_seqs",
        16,
        "raise",
    )
    assert verdict.to_dict()["default_at_fault"] == "continuous_batching"


def test_a_full_cache_is_never_answered_with_more_slots(examine: Examine) -> None:
    report = examine(
        {"max_num_seqs": 64}, {}, [_stats(18, 40, 97.0, 900, 700), _stats(20, 42, 98.0, 900, 700)]
    )
    assert report.verdict.bottleneck == "kv_capacity"
    assert report.verdict.knob != "max_num_seqs"
    assert report.verdict.to_dict()["default_at_fault"] == "paged_kv"


def test_a_healthy_server_is_left_alone(examine: Examine) -> None:
    verdict = examine({"max_num_seqs": 64}, {}, [_stats(12, 0, 11.2, 200, 500)]).verdict
    assert (verdict.bottleneck, verdict.knob) == ("none", None)


def test_more_load_than_capacity_is_said_to_be_that(examine: Examine) -> None:
    metrics = {
        "running": 60, "waiting": "rising", "kv_usage": 0.7, "request_rate": 20, "completed_req_s": 9, "gpu_util": 0.99
    }  # fmt: skip
    load = {"input_len": 2000, "output_len": 100, "request_rate": 20}
    verdict = examine({"max_num_seqs": 64}, {"metrics": metrics, "workload": load}).verdict
    assert (verdict.bottleneck, verdict.knob) == ("offered_load", None)
    assert "20 requests a second arrive and 9 are done" in verdict.why


def test_a_target_below_the_device_is_refused_with_the_floor(examine: Examine) -> None:
    config = {"model": "meta-llama/Llama-3.1-8B-Instruct"}
    observed = {
        "hardware": {"gpu": "H100"},
        "workload": {"concurrency": 4, "input_len": 256, "output_len": 32},
    }
    report = examine(config, observed, slo="itl=2ms")
    assert (report.verdict.bottleneck, report.verdict.knob) == ("weight_bandwidth", None)
    floor = next(limit for limit in report.limits if limit.name == "tpot_floor_ms")
    assert floor.value > 15.0e9 / 3.35e12 * 1e3  # bytes of the weights over the bandwidth


def test_evidence_that_contradicts_itself_gives_no_verdict(examine: Examine) -> None:
    report = examine(
        {"max_num_seqs": 8}, {"metrics": {"running": 40, "waiting": 3, "ttft_p50_s": 4, "ttft_p99_s": 1}}
    )
    assert (report.verdict.knob, report.verdict.confidence) == (None, "thin")
    assert report.contradictions


def test_nothing_known_is_said_and_not_guessed(examine: Examine) -> None:
    verdict = examine({"max_num_seqs": 8}).verdict
    assert (verdict.bottleneck, verdict.knob, verdict.confidence) == ("none", None, "thin")
    assert "--gpu" in verdict.why
    assert "--log" in verdict.why


def _closed(clients: int, inputs: int, outputs: int, requests: int = 32) -> Workload:
    arrival = {"kind": "closed", "concurrency": clients, "requests": requests}
    return load_workload({"arrival": arrival, "input_tokens": inputs, "output_tokens": outputs})


def test_requests_that_are_too_long_are_given_room(examine: Examine) -> None:
    mixed = load_workload(
        {
            "arrival": {"kind": "closed", "concurrency": 4, "requests": 32},
            "input_tokens": {"uniform": [1000, 6000]},
            "output_tokens": 32,
        }
    )
    config = {"model": "Qwen/Qwen3-8B", "max_model_len": 4096}
    verdict = examine(config, gpu="H100", version="0.18.0", workload=mixed).verdict
    assert (verdict.bottleneck, verdict.knob, verdict.direction) == (
        "context_length",
        "max_model_len",
        "raise",
    )
    assert verdict.after >= 6000 + 32 - 200
    assert verdict.predicted["served_share"].after == 1.0


def test_clients_that_are_too_few_are_the_limit_and_a_full_server_is_not(examine: Examine) -> None:
    config = {"model": "Qwen/Qwen3-8B", "max_model_len": 4096}
    few = examine(config, gpu="H100", version="0.18.0", workload=_closed(4, 200, 64)).verdict
    assert few.knob is None
    assert "The clients are the limit: 4 at once" in few.why
    queued = examine(
        {**config, "max_num_seqs": 4}, gpu="H100", version="0.18.0", workload=_closed(4, 200, 64)
    )
    assert "The clients are the limit" not in queued.verdict.why  # more of them would wait for the slots


def test_a_floor_that_a_turn_lowers_is_none(examine: Examine) -> None:
    load = load_workload(
        {
            "arrival": {"kind": "poisson", "rate": 0.5, "requests": 120},
            "input_tokens": 9000,
            "output_tokens": 20,
            "shared_prefix_tokens": 8000,
        }
    )
    config = {"model": "Qwen/Qwen3-8B", "max_model_len": 32768, "enable_prefix_caching": False}
    verdict = examine(config, gpu="A100-80GB", version="0.18.0", workload=load, slo="ttft=700ms").verdict
    assert (verdict.bottleneck, verdict.knob) == ("repeated_prefill", "enable_prefix_caching")


def test_clients_that_give_up_are_told_of(examine: Examine) -> None:
    seen = {"completed_req_s": 2, "aborted_req_s": 2, "waiting": 80, "running": 60, "queue_growth_per_s": 0}
    load = {"request_rate": 4, "input_len": 1000, "output_len": 200}
    report = examine(
        {"model": "Qwen/Qwen3-8B", "max_model_len": 8192}, {**seen, **load}, gpu="L40S", version="0.18.0"
    )
    assert "Clients give up 2 requests a second, 50% of those that end" in report.verdict.advice


def test_separate_options_of_drafts_are_replayed_as_it_is(examine: Examine) -> None:
    """Else a turn of the drafts is compared with a server that has none."""
    base = {"model": "Qwen/Qwen2.5-7B-Instruct", "max_model_len": 8192}
    drafts = {"speculative_model": "[ngram]", "num_speculative_tokens": 5}
    plain, drafted = (
        examine({**base, **told}, gpu="A100-80GB", version="0.7.3", workload=_closed(1, 200, 64))
        for told in ({}, drafts)
    )
    paces = [report.as_it_is["output_tokens_per_s"].before for report in (plain, drafted)]
    assert paces[1] > 1.4 * paces[0]
    assert not any("--speculative-model" in text for text in drafted.assumptions)


def test_a_slow_token_with_drafts_asks_for_their_acceptance(examine: Examine) -> None:
    drafts = {"method": "ngram", "num_speculative_tokens": 5}
    config = {"model": "Qwen/Qwen2.5-7B-Instruct", "max_model_len": 8192, "speculative_config": drafts}
    why = examine(
        config, {"tpot_ms": 40}, gpu="A100-80GB", version="0.9.0", workload=_closed(1, 200, 64)
    ).verdict.why
    assert "--observed acceptance_rate=0.3 tells it" in why
