"""Metrics pages: one scrape and two."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from camshaft.core.errors import EvidenceError
from camshaft.diagnostics.evidence import described, metrics_evidence, parse, read_metrics
from camshaft.diagnostics.evidence.prometheus import bucket, quantile

PAGE = """\
# HELP vllm:num_requests_running Running.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m"}} 5
vllm:num_requests_running{{engine="1",model_name="m"}} 7
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0"}} 0.9
vllm:kv_cache_usage_perc{{engine="1"}} 0.7
# TYPE vllm:num_preemptions counter
vllm:num_preemptions_total {preemptions}
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total {generated}
# TYPE vllm:prefix_cache_queries counter
vllm:prefix_cache_queries_total {queries}
# TYPE vllm:prefix_cache_hits counter
vllm:prefix_cache_hits_total {hits}
# TYPE vllm:request_success counter
vllm:request_success_total{{finished_reason="stop"}} {done}
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{{le="0.1"}} {fast}
vllm:time_to_first_token_seconds_bucket{{le="1.0"}} {all}
vllm:time_to_first_token_seconds_bucket{{le="+Inf"}} {all}
vllm:time_to_first_token_seconds_sum {ttft_sum}
vllm:time_to_first_token_seconds_count {all}
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{{block_size="16",num_gpu_blocks="1234",enable_prefix_caching="True"}} 1
"""


def page(**changes: float) -> str:
    base = {
        "preemptions": 3,
        "generated": 1000,
        "queries": 100,
        "hits": 10,
        "done": 4,
        "fast": 5,
        "all": 10,
        "ttft_sum": 4.0,
    }
    return PAGE.format(**{**base, **changes})


def test_one_scrape_gives_gauges_totals_and_percentiles() -> None:
    evidence = metrics_evidence(parse(page(), "p"))
    assert evidence.engine == "vllm"
    assert evidence.value("running") == 12  # summed over engines
    assert evidence.value("kv_usage") == pytest.approx(0.8)  # a share is averaged
    assert evidence.value("preemptions") == 3
    assert evidence.value("prefix_hit_rate") == pytest.approx(0.1)
    assert evidence.value("ttft_ms", "mean") == pytest.approx(400)
    assert evidence.value("ttft_ms", "p50") == pytest.approx(100)
    assert evidence.setting("num_gpu_blocks") == 1234
    assert evidence.setting("enable_prefix_caching") is True


def test_two_scrapes_give_what_happened_between_them() -> None:
    before = parse(page(), "a")
    later = page(
        preemptions=9, generated=6000, queries=1100, hits=510, done=24, fast=5, all=30, ttft_sum=16.0
    )
    evidence = metrics_evidence(parse(later, "b"), before, interval_s=10)
    assert evidence.value("preemptions") == 6
    assert evidence.value("output_tokens_per_s") == pytest.approx(500)
    assert evidence.value("prefix_hit_rate") == pytest.approx(0.5)
    assert evidence.value("completed_per_s") == pytest.approx(2)
    assert evidence.value("ttft_ms", "mean") == pytest.approx(600)
    assert evidence.value("ttft_ms", "p50") == pytest.approx(550)


STARTED = "process_start_time_seconds {}\n"


def test_after_a_restart_the_second_page_alone_tells_totals_and_no_rates() -> None:
    before = parse(page(preemptions=50) + STARTED.format(100), "a")
    evidence = metrics_evidence(parse(page(preemptions=2) + STARTED.format(160), "b"), before, 60)
    assert evidence.value("preemptions") == 2
    assert evidence.value("output_tokens_per_s") is None
    assert any("restarted between" in note for note in evidence.notes)


@pytest.mark.parametrize(
    ("first", "second", "asked"),
    [(100, 100, r"swapped\?"), (160, 100, r"swapped\?"), (None, None, "swapped, or did the server restart")],
)
def test_pages_in_the_wrong_order_are_refused(first: int | None, second: int | None, asked: str) -> None:
    pages = [
        parse(page(generated=generated) + ("" if started is None else STARTED.format(started)), name)
        for name, generated, started in (("after", 6000, first), ("before", 1000, second))
    ]
    with pytest.raises(EvidenceError, match=f"after to before: .*{asked}"):
        metrics_evidence(pages[1], pages[0], 60)


def test_histograms_of_lengths_are_kept_whole_with_the_mean_of_the_page() -> None:
    name = "vllm:request_prompt_tokens"
    text = "".join(
        f'{name}_bucket{{le="{le}"}} {n}\n' for le, n in (("100", 50), ("1000", 90), ("+Inf", 100))
    )
    before = text.replace("} 50", "} 0").replace("} 90", "} 0").replace("} 100", "} 0")
    evidence = metrics_evidence(
        parse(f"{text}{name}_sum 30000\n", "b"), parse(f"{before}{name}_sum 0\n", "a")
    )
    lengths = evidence.lengths["input_tokens"]
    assert len(lengths) == 100
    assert sum(lengths) / 100 == pytest.approx(300, abs=1)
    assert lengths == tuple(sorted(lengths))
    assert lengths[10] < 100 < lengths[60] < lengths[-1]


def test_sglang_names_under_both_prefixes() -> None:
    for prefix in ("sglang:", "sglang_"):
        evidence = metrics_evidence(parse(f"{prefix}num_running_reqs 3\n{prefix}token_usage 0.5\n", "p"))
        assert evidence.engine == "sglang"
        assert evidence.value("running") == 3
        assert evidence.value("kv_usage") == 0.5


@pytest.mark.parametrize("text", ["", "<html>", "a{b 3"])
def test_what_is_no_metrics_page_is_refused(text: str) -> None:
    with pytest.raises(EvidenceError):
        parse(text, "p")


def test_three_pages_are_too_many(tmp_path) -> None:
    file = tmp_path / "m.txt"
    file.write_text(page())
    with pytest.raises(EvidenceError, match="one or two"):
        read_metrics([str(file)] * 3)
    assert read_metrics([str(file)]).value("running") == 12


@settings(derandomize=True, max_examples=100, deadline=None)
@given(counts=st.lists(st.integers(0, 50), min_size=2, max_size=8), share=st.floats(0.01, 1.0))
def test_quantiles_lie_in_a_bucket_that_reaches_them(counts: list[int], share: float) -> None:
    counts[-1] += 1
    cumulative, total = {}, 0
    for place, count in enumerate(counts):
        total += count
        cumulative[float(place + 1)] = float(total)
    value = quantile(cumulative, share)
    reached = max(bound for bound in (0.0, *cumulative) if bound <= value)
    assert 0 <= value <= len(counts)
    assert cumulative.get(reached, 0.0) <= share * total + 1e-6


def test_a_percentile_of_a_histogram_is_told_with_the_bucket_it_was_interpolated_in() -> None:
    lines = described(metrics_evidence(parse(page(fast=4), "p")).figures)
    assert (
        "ttft_ms: mean 400, p50 about 250 (100 to 1000), p90 about 850 (100 to 1000), p99 about 985 (100 to 1000) [p]"
        in lines
    )
    assert bucket({0.1: 1, 1.0: 1, float("inf"): 9}, 0.99) == (1.0, float("inf"))


def test_few_requests_are_said_to_be_few() -> None:
    assert any("4 requests ended: too few" in note for note in metrics_evidence(parse(page(), "p")).notes)
    assert not metrics_evidence(parse(page(done=40), "p")).notes


def test_a_bound_that_is_no_number_is_refused_and_a_value_that_is_none_left_out() -> None:
    for bound in ("abc", "NaN"):
        with pytest.raises(EvidenceError, match="not a metrics page"):
            parse(f'vllm:time_to_first_token_seconds_bucket{{le="{bound}"}} 3\n', "p")
    evidence = metrics_evidence(parse("vllm:num_requests_running NaN\nvllm:num_requests_waiting 3\n", "p"))
    assert evidence.value("running") is None
    assert evidence.value("waiting") == 3


def test_what_clients_gave_up_is_not_done() -> None:
    aborted = 'vllm:request_success_total{{finished_reason="abort"}} {}\n'
    before, after = (
        parse(page(done=done) + aborted.format(gone), "p") for done, gone in ((100, 50), (160, 90))
    )
    evidence = metrics_evidence(after, before, 20.0)
    assert evidence.value("completed_per_s") == pytest.approx(3.0)
    assert evidence.value("aborted_per_s") == pytest.approx(2.0)
