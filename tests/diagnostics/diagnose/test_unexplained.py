"""What is seen and the replay of the same load does not give is said, not explained away."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from camshaft.diagnostics.diagnose import Report, read_subject
from camshaft.diagnostics.evidence import Evidence
from camshaft.diagnostics.report import text

Diagnose = Callable[..., Report]
CONFIG = {"model": "Qwen/Qwen3-8B", "max_model_len": 8192, "max_num_seqs": 64}
LOAD = {"request_rate": 2, "input_len": 1000, "output_len": 200}


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ({"ttft_p99_s": 4.2}, "the first token (p99) takes 4,200 ms"),
        ({"itl_p50_ms": 300}, "the time between tokens (p50) takes 300 ms"),
        ({"preemptions": 500}, "sequences are evicted and in the replay of that load none is"),
    ],
)
def test_a_latency_far_above_the_replay_is_named(examine: Diagnose, seen: dict[str, Any], said: str) -> None:
    report = examine(CONFIG, {**LOAD, **seen}, version="0.18.0", gpu="H100")
    assert report.verdict.bottleneck == "none"
    assert said in report.verdict.why


def test_what_the_replay_gives_is_not(examine: Diagnose) -> None:
    report = examine(CONFIG, {**LOAD, "itl_p50_ms": 8}, version="0.18.0", gpu="H100")
    assert "not explained" not in report.verdict.why
    assert not report.verdict.unexplained


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ({"output_tok_s": 150}, "150 output tokens a second are done and 40"),
        ({"output_tok_s": 900}, "900 output tokens a second are done and 40"),
        ({"completed_req_s": 1}, "1 requests a second are done and "),
        ({"prompt_tok_s": 700}, "700 prompt tokens a second are done and "),
    ],
)
def test_a_rate_beyond_the_error_of_the_replay_is_named(
    examine: Diagnose, seen: dict[str, Any], said: str
) -> None:
    report = examine(CONFIG, {**LOAD, **seen}, version="0.18.0", gpu="H100")
    assert said in f"{report.verdict.why} {report.verdict.unexplained}"


@pytest.mark.parametrize(
    ("seen", "copies"),
    [
        ({"output_tok_s": 380}, 1),
        ({"prompt_tok_s": 1900}, 1),
        ({"prompt_tok_s": 1900}, 2),
        ({"output_tok_s_max": 2000}, 1),
    ],
)
def test_a_rate_within_it_is_not(examine: Diagnose, seen: dict[str, Any], copies: int) -> None:
    config = {**CONFIG, "data_parallel_size": copies}
    report = examine(config, {**LOAD, **seen}, version="0.18.0", gpu="H100")
    assert not report.verdict.unexplained


@pytest.mark.parametrize("slo", ["", "tpot=7ms"])
def test_what_an_assumed_load_does_not_give_is_no_verdict(examine: Diagnose, slo: str) -> None:
    report = examine(CONFIG, {"ttft_p99_s": 20}, version="0.18.0", gpu="H100", slo=slo)
    lines = text.render(report)
    assert lines.startswith("no verdict: nobody told the load")
    assert "the first token (p99) takes 20,000 ms" in report.verdict.why
    assert "replayed with the model's and device's step times" in lines


def test_a_knob_is_not_proved_by_a_replay_that_misses_what_is_seen(examine: Diagnose) -> None:
    seen = {"running": 8, "waiting": 56, "output_tok_s": 300, "input_len": 500, "output_len": 200}
    verdict = examine({**CONFIG, "max_num_seqs": 8}, seen, version="0.18.0", gpu="H100").verdict
    assert verdict.knob == "max_num_seqs"
    assert "what is seen is not explained: 300 output tokens a second" in verdict.unexplained
    assert "not all that is seen is explained" in text.headline(verdict)


def test_a_figure_without_a_statistic_is_held_against_the_largest_of_the_replay(examine: Diagnose) -> None:
    late = examine(CONFIG, {**LOAD, "tpot_ms": 3000}, version="0.18.0", gpu="H100").verdict
    assert "a token takes 3,000 ms" in f"{late.why} {late.unexplained}"
    usual = examine(CONFIG, {**LOAD, "tpot_ms": 12}, version="0.18.0", gpu="H100").verdict
    assert not usual.unexplained


def test_the_release_is_the_image_s_where_nobody_names_one(tmp_path: Path) -> None:
    file = tmp_path / "docker-compose.yml"
    file.write_text(
        "services:\n  vllm:\n    image: vllm/vllm-openai:v0.9.2\n"
        "    command: ['--model', 'Qwen/Qwen3-8B', '--max-num-seqs', '64']\n"
    )
    assert read_subject(str(file), Evidence()).engine.version == "0.9.2"
    assert read_subject(str(file), Evidence(), version="0.18.0").engine.version == "0.18.0"


def test_a_queue_that_grows_asks_for_no_more_slots_than_the_cache_fills(examine: Diagnose) -> None:
    line = (
        "INFO 11-30 10:00:{second} [loggers.py:118] Engine 000: Avg prompt throughput: 8123.4 tokens/s, Avg generation "
        "throughput: 1210.2 tokens/s, Running: 64 reqs, Waiting: {waiting} reqs, GPU KV cache usage: 22.0%, Prefix cache "
        "hit rate: 0.0%"
    )
    log = [line.format(second=f"{10 * i:02}", waiting=waiting) for i, waiting in enumerate((312, 655, 990))]
    report = examine(CONFIG, {}, log, version="0.18.0", gpu="H100")
    assert report.verdict.knob == "max_num_seqs"
    assert 64 < report.verdict.after <= 64 / 0.22
    assert "Even so 40.2 requests a second arrive and a full server gets through " in report.verdict.advice


def test_a_growing_queue_is_replayed_as_arrivals_that_make_it_grow_so(examine: Diagnose) -> None:
    line = (
        "Engine 000: Avg prompt throughput: 14900.0 tokens/s, Avg generation throughput: 3420.0 tokens/s, Running: 64 reqs, "
        "Waiting: {} reqs, GPU KV cache usage: 18.0%, Prefix cache hit rate: 0.0%"
    )
    report = examine({"max_num_seqs": 64}, {}, [line.format(waiting) for waiting in (40, 55, 71)])
    assert any("the queue grows by 1.6 requests a second while 15 are done" in a for a in report.assumptions)
    assert "16.7 a second" in report.about["load"]
    assert report.verdict.knob == "max_num_seqs"
    assert report.before is not None
    waiting, ends = (report.before.log.column(name) for name in ("waiting", "end_s"))
    last_s = max(record.arrival_s for record in report.before.records)
    early, late = waiting[ends < last_s / 2].mean(), waiting[(ends > 0.8 * last_s) & (ends < last_s)].mean()
    assert late > early + 5
    calm = examine({"max_num_seqs": 64}, {}, [line.format(waiting) for waiting in (55, 61, 52)])
    assert "clients" in calm.about["load"]
