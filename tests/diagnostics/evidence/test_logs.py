"""Server logs of every form that is documented, read by name."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from camshaft.core.errors import EvidenceError
from camshaft.diagnostics.evidence import Evidence, read_log, read_log_lines

V0 = (
    "INFO 02-25 23:26:51 metrics.py:455] Avg prompt throughput: 10.5 tokens/s, Avg generation throughput: 11.0 "
    "tokens/s, Running: 3 reqs, Swapped: 0 reqs, Pending: 4 reqs, GPU KV cache usage: 12.5%, CPU KV cache usage: 1.0%."
)
V1_07 = (
    "INFO 05-11 12:04:19 [loggers.py:78] Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 2.0 tokens/s,"
    " Running: 5 reqs, Waiting: 6 reqs, GPU KV cache usage: 50.0%, Prefix cache hit rate: 25.0%"
)
V1_20 = (
    "(APIServer pid=3646) INFO 05-19 10:13:11 [loggers.py:271] Engine 000: Avg prompt throughput: 18032.5 tokens/s, "
    "Avg generation throughput: 589.8 tokens/s, Running: 21 reqs, Waiting: 23 reqs, Deferred: 2 reqs, "
    "Preemptions: 5, GPU KV cache usage: 95.9%, Prefix cache hit rate: 3.0%, External prefix cache hit rate: 44.0%, "
    "MM cache hit rate: 9.0%"
)
V1_30 = (
    "INFO 05-19 10:13:11 [loggers.py:300] 2 Engines Aggregated: Avg prompt throughput: 1.0 tokens/s, Avg generation "
    "throughput: 2.0 tokens/s, Running: 7 reqs, Waiting: 0 reqs, CPU KV cache usage: 5.9%, "
    "KV fetch: 1 waiting to start, 2 in progress, 3 completed waiting"
)
SGLANG = (
    "[2026-01-02 03:04:05 TP0] Decode batch, #running-req: 45, #token: 9000, token usage: 0.93, cuda graph: True, "
    "gen throughput (token/s): 1234.50, #queue-req: 17"
)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (V0, {"running": 3, "waiting": 4, "kv_usage": 0.125, "swapped": 0, "output_tokens_per_s": 11.0}),
        (V1_07, {"running": 5, "waiting": 6, "kv_usage": 0.5, "prefix_hit_rate": 0.25}),
        (
            V1_20,
            {
                "running": 21,
                "waiting": 23,
                "deferred": 2,
                "preemptions": 5,
                "kv_usage": 0.959,
                "prefix_hit_rate": 0.03,
            },
        ),
        (V1_30, {"running": 7, "waiting": 0, "kv_usage": 0.059, "prompt_tokens_per_s": 1.0}),
        (SGLANG, {"running": 45, "waiting": 17, "kv_usage": 0.93, "output_tokens_per_s": 1234.5}),
    ],
)
def test_statistics_lines_of_each_release(line: str, expected: dict[str, float]) -> None:
    (sample,) = read_log_lines([line], "log").samples
    for name, value in expected.items():
        assert sample.values[name] == pytest.approx(value)


def test_a_line_without_any_prefix_is_read() -> None:
    evidence = read_log_lines(["Running: 2 reqs, Waiting: 14 reqs"], "log")
    assert evidence.value("running") == 2
    assert evidence.value("waiting") == 14


def test_the_hit_rate_line_of_v0_belongs_to_the_statistics_before_it() -> None:
    second = "INFO 02-25 23:26:51 metrics.py:471] Prefix cache hit rate: GPU: 61.20%, CPU: 0.00%"
    (sample,) = read_log_lines([V0, second], "log").samples
    assert sample.values["prefix_hit_rate"] == pytest.approx(0.612)


def test_counts_are_summed_and_levels_averaged() -> None:
    evidence = read_log_lines([V1_20, V1_20.replace("Preemptions: 5", "Preemptions: 7")], "log")
    assert evidence.value("preemptions") == 12
    assert evidence.value("running", "mean") == 21
    assert "2 lines" in evidence.figures[0].source


@pytest.mark.parametrize(
    ("line", "code", "numbers"),
    [
        (
            "ValueError: To serve at least one request with the models's max seq len (65536), (2.45 GiB KV cache is "
            "needed, which is larger than the available KV cache memory (1.9 GiB). Based on the available memory, the "
            "estimated maximum model length is 50816.",
            "kv_does_not_fit",
            {
                "max_model_len": 65536,
                "needed_gib": 2.45,
                "available_gib": 1.9,
                "estimated_max_model_len": 50816,
            },
        ),
        (
            "ValueError: The model's max seq len (8192) is larger than the maximum number of tokens that can be stored "
            "in KV cache (4000). Try increasing gpu_memory_utilization",
            "kv_does_not_fit",
            {"max_model_len": 8192, "kv_tokens": 4000},
        ),
        ("ValueError: No available memory for the cache blocks. Try increasing", "no_kv_memory", {}),
        (
            "WARNING 02-25 23:26:51 scheduler.py:1] Sequence group x is preempted by PreemptionMode.RECOMPUTE mode "
            "because there is not enough KV cache space. total_num_cumulative_preemption=51",
            "preempted",
            {"total": 51},
        ),
    ],
)
def test_failures_and_warnings_keep_their_numbers(line: str, code: str, numbers: dict[str, float]) -> None:
    event = read_log_lines([line], "log").event(code)
    assert event is not None
    assert event.numbers == numbers
    assert event.source == "log:1"


def test_settings_are_read_from_start_up_lines() -> None:
    lines = [
        "(EngineCore_DP0 pid=387) INFO 05-19 10:13:11 [kv_cache_utils.py:1] GPU KV cache size: 1,105,151 tokens, "
        "Maximum concurrency for 700,000 tokens per request: 1.58x",
        "INFO 05-19 10:13:11 [gpu_worker.py:1] Available KV cache memory: 51.38 GiB",
        "INFO 05-19 10:13:11 [utils.py:277] vLLM server version 0.18.0, serving model foo",
        "INFO 05-19 10:13:11 [utils.py:1] non-default args: {'model_tag': 'm/x', 'max_num_seqs': 64}",
        "INFO 05-19 10:13:11 [api.py:1] args: Namespace(host=None, max_model_len=4096, enforce_eager=True, f=<class 'x'>)",
        "INFO 05-19 10:13:11 [vllm.py:755] Asynchronous scheduling is disabled.",
        "INFO 05-19 10:13:11 [s.py:1] Chunked prefill is enabled with max_num_batched_tokens=2048.",
    ]
    evidence = read_log_lines(lines, "log")
    assert evidence.version == "0.18.0"
    wanted = {
        "kv_tokens": 1105151,
        "max_concurrency": 1.58,
        "kv_gib": 51.38,
        "model": "m/x",
        "max_num_seqs": 64,
        "async_scheduling": False,
        "max_num_batched_tokens": 2048,
    }
    assert {name: evidence.setting(name) for name in wanted} == wanted


def test_speculation_lines_old_and_new() -> None:
    old = (
        "Speculative metrics: Draft acceptance rate: 0.417, System efficiency: 0.3, Number of speculative tokens: 5, "
        "Number of accepted tokens: 10, Number of draft tokens: 24, Number of emitted tokens: 14."
    )
    new = (
        "SpecDecoding metrics: Mean acceptance length: 2.52, Accepted throughput: 3.0 tokens/s, Drafted throughput: "
        "9.0 tokens/s, Accepted: 152 tokens, Drafted: 300 tokens, Per-position acceptance rate: 0.6, 0.4, "
        "Avg Draft acceptance rate: 50.7%"
    )
    first, second = read_log_lines([old], "log"), read_log_lines([new], "log")
    assert first.value("acceptance_rate") == pytest.approx(0.417)
    assert first.setting("num_speculative_tokens") == 5
    assert second.value("acceptance_rate") == pytest.approx(0.507)
    assert second.value("drafted_tokens") == 300


def test_iteration_lines_give_chunk_sizes_and_step_times() -> None:
    line = (
        "INFO 05-19 10:13:11 [x.py:1] Iteration(12): 1 context requests, 2000 context tokens, 48 generation requests, "
        "48 generation tokens, iteration elapsed time: 93.10 ms"
    )
    (sample,) = read_log_lines([line], "log").samples
    assert sample.values["prefill_tokens"] == 2000
    assert sample.values["step_ms"] == pytest.approx(93.1)


def test_a_log_without_a_known_line_is_refused(tmp_path) -> None:
    file = tmp_path / "server.log"
    file.write_text("GET / 200\nhello\n")
    with pytest.raises(EvidenceError, match=r"server\.log: no line of vLLM"):
        read_log(file)
    with pytest.raises(EvidenceError):
        read_log(tmp_path / "absent.log")


@settings(derandomize=True, max_examples=150, deadline=None)
@given(st.lists(st.text(max_size=120) | st.sampled_from([V0, V1_20, SGLANG]).flatmap(
    lambda line: st.integers(0, len(line)).map(lambda cut: line[:cut])), max_size=6))  # fmt: skip
def test_damaged_lines_never_crash(lines: list[str]) -> None:
    assert isinstance(read_log_lines(lines, "log"), Evidence)


def test_sglang_retractions_are_preemptions_and_add_up() -> None:
    evidence = read_log_lines(
        [
            "[2025-11-07 15:45:28] KV cache pool is full. Retract requests. #retracted_reqs: 2, #new_token_ratio: 0.1 -> 0.7",
            "[2025-11-07 15:45:31] KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_token_ratio: 0.2 -> 0.8",
        ],
        "log",
    )
    event = evidence.event("preempted")
    assert event is not None
    assert event.numbers == {"total": 5.0}


def test_sglang_tells_whether_a_step_ran_from_a_graph() -> None:
    line = "Decode batch, #running-req: {}, token usage: 0.1, cuda graph: {}, gen throughput (token/s): 100.0, #queue-req: 0"
    evidence = read_log_lines([line.format(32, True), line.format(64, False)], "log")
    assert evidence.series("graphs") == [1.0, 0.0]
    assert evidence.event("no_graph") is not None


@pytest.mark.parametrize(
    ("waiting", "growth"),
    [
        ([40, 55, 71], 1.55),
        ([40, 42, 39, 41], None),
        ([0, 60, 5, 70], None),
        ([71, 55, 40], None),
        ([40, 71], None),
    ],
)
def test_a_queue_that_grows_steadily_is_told_by_its_rate(waiting: list[int], growth: float | None) -> None:
    lines = [
        f"INFO 11-30 10:00:{10 * place:02} [loggers.py:118] Engine 000: Avg generation throughput: 900.0 tokens/s, Running: 64 "
        f"reqs, Waiting: {count} reqs, GPU KV cache usage: 22.0%"
        for place, count in enumerate(waiting)
    ]
    assert read_log_lines(lines, "log").value("queue_growth_per_s") == (
        None if growth is None else pytest.approx(growth)
    )
