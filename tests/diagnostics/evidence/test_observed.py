"""Figures as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from camshaft.core.errors import EvidenceError
from camshaft.diagnostics.evidence import (
    Evidence,
    Figure,
    Setting,
    contradictions,
    observed_mapping,
    read_load,
    read_observed,
)
from camshaft.diagnostics.evidence.vocabulary import figure, vocabulary


@pytest.mark.parametrize(
    ("name", "value", "canonical", "statistic", "number"),
    [
        ("ttft_p50_s", 33.5, "ttft_ms", "p50", 33500),
        ("TTFT p99 (ms)", 900, "ttft_ms", "p99", 900),
        ("median_tpot_ms", 12, "tpot_ms", "p50", 12),
        ("p99_itl_ms", 33, "itl_ms", "p99", 33),
        ("queue_time_s", "12", "queue_ms", "", 12000),
        ("num_requests_running", "4-5", "running", "", 4.5),
        ("vllm:num_requests_waiting", 3, "waiting", "", 3),
        ("kv_cache_usage_perc", 0.9, "kv_usage", "", 0.9),
        ("kv_usage", "99.6%", "kv_usage", "", 0.996),
        ("kv_cache_usage_percent", 99, "kv_usage", "", 0.99),
        ("output_tok_s", 53.9, "output_tokens_per_s", "", 53.9),
        ("generation_tok_s_per_gpu_now", 1.5, "output_tokens_per_s", "", 1.5),
        ("per_request_tok_s", 30.4, "request_output_tokens_per_s", "", 30.4),
        ("decode_tok_s_single", 11.2, "request_output_tokens_per_s", "", 11.2),
        ("prompt_tok_s", "9,800", "prompt_tokens_per_s", "", 9800),
        ("request_rate", 120, "request_per_s", "", 120),
        ("completed_req_s", 40, "completed_per_s", "", 40),
        ("acceptance_rate", 0.4, "acceptance_rate", "", 0.4),
        ("api_server_process_cpu", "~100 % of one core", "host_cpu", "", 1.0),
        ("gpu_util", "35%", "gpu_util", "", 0.35),
        ("vllm:time_to_first_token_seconds", 4, "ttft_ms", "", 4000),
        ("vllm:request_time_per_output_token_seconds", 0.03, "tpot_ms", "", 30),
        ("vllm:inter_token_latency_seconds", "0.03", "itl_ms", "", 30),
        ("vllm:e2e_request_latency_seconds", 9, "e2e_ms", "", 9000),
        ("vllm:request_queue_time_seconds", 2, "queue_ms", "", 2000),
        ("vllm:request_prefill_time_seconds", 2, "prefill_ms", "", 2000),
        ("ttft_p99", "4.2 s", "ttft_ms", "p99", 4200),
        ("ttft_s", "900 milliseconds", "ttft_ms", "", 900),
        ("kv_memory", "40GiB", "kv_memory_gib", "", 40),
        ("kv_memory_mib", 512, "kv_memory_gib", "", 0.5),
        ("request_rate", "600/min", "request_per_s", "", 10),
    ],
)
def test_spellings_units_and_statistics(
    name: str, value: object, canonical: str, statistic: str, number: float
) -> None:
    read = figure(name, value, "here")
    assert read is not None
    assert (read.name, read.statistic) == (canonical, statistic)
    assert read.value == pytest.approx(number)


@pytest.mark.parametrize(
    ("name", "word", "trend"),
    [
        ("gpu_util", "low", "low"),
        ("ttft", "rising", "rising"),
        ("num_preemptions_total", "rising steadily", "rising"),
        ("kv_usage", "nearly full", "high"),
    ],
)
def test_words_are_trends(name: str, word: str, trend: str) -> None:
    read = figure(name, word, "here")
    assert read is not None
    assert read.value is None
    assert read.trend == trend


def test_the_circumstance_is_kept() -> None:
    read = figure("ttft_warm_session_during_other_prefill_s", 440, "here")
    assert read is not None
    assert read.qualifier == "warm_session_during_other_prefill"
    assert read.value == 440_000


def test_every_canonical_name_is_understood_again() -> None:
    units = {"ms": "1 ms", "gib": "1 GiB"}
    for written, row in vocabulary()["figures"].items():
        read = figure(written, units.get(row["unit"], 1), "here")
        assert read is not None, written
        again = figure(read.name, 1, "here")
        assert again is not None, read.name
        assert again.name == read.name


def test_unknown_names_become_notes_and_knobs_become_settings() -> None:
    evidence = observed_mapping({"moon_phase": 3, "max_num_seqs": 8}, "file")
    assert evidence.figures == []
    assert evidence.setting("max_num_seqs") == 8
    assert "moon_phase" in evidence.notes[0]


def test_a_file_with_sections(tmp_path) -> None:
    file = tmp_path / "seen.yaml"
    file.write_text(
        "metrics:\n  ttft_p50_s: 33.5\n  sweep:\n  - {concurrency: 6, tpot_ms: 107, kv: 0.794}\n"
        "workload: {concurrency: 16, input_len: 128, output_len: 64, requests: 320}\n"
        "hardware: {gpu: RTX A6000, count: 2}\nversion: 0.17.0\n"
        "log: ['Running: 2 reqs, Waiting: 14 reqs']\n"
    )
    evidence = read_observed([str(file), "gpu_util=low"])
    assert evidence.value("ttft_ms", "p50") == 33500
    assert evidence.sweep == [{"concurrency": 6.0, "tpot_ms": 107.0, "kv_usage": 0.794}]
    assert (evidence.gpu, evidence.gpu_count, evidence.version) == ("RTX A6000", 2, "0.17.0")
    assert (evidence.hint("concurrency"), evidence.hint("input_tokens"), evidence.hint("requests")) == (
        16,
        128,
        320,
    )
    assert evidence.value("waiting") == 14
    assert evidence.trend("gpu_util") == "low"


@pytest.mark.parametrize("argument", ["nothing.yaml", "=3", "ttft_p99_s="])
def test_unusable_arguments_are_refused(argument: str) -> None:
    with pytest.raises(EvidenceError):
        read_observed([argument])


@pytest.mark.parametrize("text", ["ttft_p99_s: 2024-99-99", "ttft_p99_s: &a {b: *a}", "ttft: [", "- 1"])
def test_a_file_that_holds_no_figures_is_refused(text: str, tmp_path) -> None:
    file = tmp_path / "seen.yaml"
    file.write_text(text)
    with pytest.raises(EvidenceError, match="seen"):
        read_observed([str(file)])


@pytest.mark.parametrize(
    ("text", "inputs", "outputs"),
    [
        ("inputs ~100k tokens each; KV holds 4 of them at 90 %", 100_000, None),
        ("one session polled while another starts a cold ~339k-token prefill", 339_000, None),
        ("prompts of 2,000 tokens, nothing else", 2000, None),
    ],
)
def test_lengths_in_sentences(text: str, inputs: int | None, outputs: int | None) -> None:
    load = read_load(text, "file")
    assert (load.input_tokens, load.output_tokens) == (inputs, outputs)


def test_named_data_sets_bring_their_lengths_and_say_so() -> None:
    load = read_load({"request_rate": 120, "dataset": "sharegpt"}, "file")
    assert load.request_rate_per_s == 120
    assert load.input_tokens == 220
    assert "sharegpt" in load.source


def test_shared_prefixes_are_told_apart() -> None:
    assert read_load({"shape": "grouped by shared prefix"}, "f").shared_prefix is True
    assert read_load({"dataset": "random (no shared prefix)"}, "f").shared_prefix is False


def test_contradictions_are_found() -> None:
    evidence = Evidence(
        figures=[
            Figure(name="ttft_ms", value=100, source="a", statistic="p50"),
            Figure(name="ttft_ms", value=50, source="a", statistic="p99"),
            Figure(name="running", value=9, source="a"),
            Figure(name="running", value=90, source="b"),
        ],
        settings=[Setting(name="max_num_seqs", value=8, source="config")],
    )
    texts = " | ".join(item.what for item in contradictions(evidence))
    assert "p99 (50) is below p50 (100)" in texts
    assert "running is 9 and 90" in texts
    assert "max_num_seqs is 8" in texts


def test_sound_evidence_has_no_contradiction() -> None:
    evidence = observed_mapping({"ttft_p50_s": 1, "ttft_p99_s": 4, "running": 4, "kv_usage": 0.9}, "file")
    assert contradictions(evidence) == []


@settings(derandomize=True, max_examples=200, deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=30)
        | st.sampled_from(["ttft_p99_s", "metrics", "workload", "hardware", "sweep", "log"]),
        st.recursive(
            st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=30),
            lambda inner: (
                st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
            ),
            max_leaves=6,
        ),
        max_size=5,
    )
)
def test_any_mapping_is_read_or_noted(told: dict) -> None:
    assert isinstance(observed_mapping(told, "file"), Evidence)


@pytest.mark.parametrize(
    ("told", "answer"),
    [
        ("runing=3", "did you mean running"),
        ("foo=3", "no figure this tool knows"),
        ("ttft_p99_s=abc", "no number"),
    ],
)
def test_an_argument_that_is_not_understood_is_refused(told: str, answer: str) -> None:
    with pytest.raises(EvidenceError, match=answer):
        read_observed([told])
    assert read_observed(["waiting=rising", "max_num_seqs=8", "ttft_p99_s=4.2"]).notes == []


@pytest.mark.parametrize(
    "told", ["ttft_p99=4.2", "ttft_p99=4.2 parsecs", "vllm:time_to_first_token=4", "kv_memory=40"]
)
def test_a_figure_without_its_unit_is_refused(told: str) -> None:
    with pytest.raises(EvidenceError, match="unit is missing"):
        read_observed([told])


def test_in_a_file_a_figure_without_its_unit_is_left_out_and_said() -> None:
    evidence = observed_mapping({"ttft_p99": 4.2, "sweep": [{"running": 4, "tpot": 30}]}, "seen.yaml")
    assert evidence.figures == []
    assert evidence.sweep == [{"running": 4.0}]
    assert [note.partition(": its unit")[0] for note in evidence.notes] == [
        "seen.yaml: ttft_p99 = 4.2",
        "seen.yaml: sweep, tpot = 30",
    ]


def test_what_is_asked_for_is_listed_in_lines_that_a_terminal_shows() -> None:
    with pytest.raises(EvidenceError) as refused:
        read_observed(["foo=3"])
    lines = str(refused.value).splitlines()
    assert max(map(len, lines)) <= 100
    assert " ".join(" ".join(lines[1:]).split()) == ", ".join(vocabulary()["asked"])
    for name in vocabulary()["asked"]:
        read = figure(name, 1, "here")
        assert read is not None
        assert read.name == name


def test_help_lists_what_is_understood() -> None:
    from camshaft.cli.diagnose import EPILOG

    listed = EPILOG.partition("low or rising): ")[2].partition(". A FILE")[0]
    assert " ".join(listed.split()).split(", ") == vocabulary()["asked"]
