"""A command that the release refuses does not start, and nothing given vanishes without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from camshaft.core.errors import ConfigError
from camshaft.core.workload import load_workload
from camshaft.diagnostics.diagnose import Report, diagnose, read_subject
from camshaft.diagnostics.diagnose.flags import has_knobs, refused_options
from camshaft.diagnostics.evidence import Evidence, observed_mapping
from camshaft.diagnostics.report import text

MODEL = "meta-llama/Llama-3.1-8B-Instruct"


def _examined(options: str, evidence: Evidence | None = None, version: str | None = None) -> Report:
    seen = evidence or Evidence()
    return diagnose(read_subject(f"vllm serve {MODEL} {options}", seen, gpu="H100", version=version), seen)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--frobnicate 3", "--frobnicate is no option"),
        ("--max-num-sqs 8", "Did you mean --max-num-seqs"),
        ("-tp 3", "32 attention heads do not split over tensor_parallel_size 3"),
        ("--max-model-len 262144", "above the 131072 positions"),
    ],
)
@pytest.mark.parametrize("version", [None, "0.18.0"])
def test_what_the_release_refuses_does_not_start(options: str, reason: str, version: str | None) -> None:
    verdict = _examined(options, version=version).verdict
    assert verdict.bottleneck == "refused"
    assert reason in verdict.why


def test_what_is_overridden_is_judged_by_its_new_value() -> None:
    command = f"vllm serve {MODEL} -tp 3 --max-num-sqs 8"
    given = read_subject(command, Evidence(), gpu="H100")
    turned = read_subject(command, Evidence(), gpu="H100", overrides=["tensor_parallel_size=2"])
    assert any("do not split" in reason for reason in refused_options(given))
    (left,) = refused_options(turned)
    assert "--max-num-seqs" in left


def test_a_word_that_is_no_value_is_told_as_it_was_typed() -> None:
    with pytest.raises(ConfigError, match=r"--tensor-parallel-size: .*\(given: 'abc'\)"):
        _examined("--tensor-parallel-size abc")


@pytest.mark.parametrize("option", ["max-num-seqs", "gpu-memory-utilization", "data-parallel-size"])
def test_a_wrong_value_is_told_where_nobody_knows_the_model(option: str) -> None:
    seen = observed_mapping({"running": 8, "waiting": 3, "tpot_ms": 30}, "observed")
    with pytest.raises(ConfigError, match=rf"--{option}: .*\(given: 'many'\)"):
        diagnose(read_subject(f"vllm serve foo/bar --{option} many", seen), seen)


def test_what_only_a_running_shell_knows_is_left_out_and_said() -> None:
    subject = read_subject(f"vllm serve {MODEL} -tp $TP --max-num-seqs 8", Evidence())
    assert "tensor_parallel_size" not in subject.given
    assert subject.given["max_num_seqs"] == 8
    assert any("-tp $TP: known only where it runs" in note for note in subject.notes)


def test_what_only_a_running_shell_knows_of_an_object_is_left_out_and_said() -> None:
    given = '{"cudagraph_capture_sizes": [1, $X], "mode": $M, "cudagraph_mode": "FULL"}'
    subject = read_subject(f"vllm serve {MODEL} --compilation-config '{given}'", Evidence())
    assert subject.given["compilation_config"] == {"cudagraph_capture_sizes": [1], "cudagraph_mode": "FULL"}
    assert any("--compilation-config" in note and "left out" in note for note in subject.notes)


def test_a_server_that_was_seen_to_run_is_not_doubted() -> None:
    seen = observed_mapping({"running": 8, "waiting": 40, "kv_usage": 0.2, "tpot_ms": 9}, "observed")
    report = _examined("--max-num-seqs 8 --frobnicate 3", seen)
    assert report.verdict.bottleneck != "refused"
    assert any("frobnicate" in flag["message"] for flag in report.flags)
    assert "--version" in report.verdict.advice


@pytest.mark.parametrize(("version", "doubted"), [(None, True), ("0.9.2", False)])
def test_a_server_that_runs_is_not_of_the_release_that_refuses_it(version: str | None, doubted: bool) -> None:
    seen = observed_mapping({"tpot_ms": 9, "request_rate": 2, "input_len": 500, "output_len": 50}, "observed")
    report = _examined("--max-model-len 8192 --swap-space 4", seen, version)
    told = text.headline(report.verdict)
    assert told.startswith("no verdict: a server was seen to run") is doubted
    assert ("Name the release with --version" in told) is doubted


def test_what_is_not_modelled_is_said() -> None:
    told = _examined("--max-num-seqs 64 --enable-lora --port 8001").assumptions
    assert any(text.startswith("not modelled: --enable-lora;") for text in told)
    refused = _examined("--enable-lora --gpu-memory-utilization 0.2")
    assert refused.verdict.bottleneck == "kv_does_not_fit"
    assert any(text.startswith("not modelled: --enable-lora;") for text in refused.assumptions)


def test_weights_left_in_the_hosts_memory_are_what_holds_it_back() -> None:
    verdict = _examined("--cpu-offload-gb 8 --max-model-len 8192").verdict
    assert (verdict.knob, verdict.after, verdict.bottleneck) == ("cpu_offload_gb", 0, "weight_bandwidth")


def test_where_step_times_are_assumed_nothing_is_said_of_what_they_go_to() -> None:
    seen = Evidence()
    load = load_workload("chat")
    verdict = diagnose(read_subject("vllm serve acme/secret-model-7b", seen), seen, workload=load).verdict
    assert verdict.confidence == "thin"
    assert "--gpu" in verdict.why
    assert "reading weights" not in verdict.why


@pytest.mark.parametrize(
    ("command", "seen", "asked"),
    [
        (None, {"ttft_p99_s": 4.2}, "name --gpu and --model, or"),
        (None, {"ttft_p50_s": 4.2, "request_rate": 40}, "name --gpu and --model, or"),
        (f"vllm serve {MODEL} --max-model-len 8192", {"ttft_p50_s": 4.2}, "name --gpu, or"),
    ],
)
def test_where_step_times_are_assumed_there_is_no_verdict(
    command: str | None, seen: dict[str, float], asked: str
) -> None:
    evidence = observed_mapping(seen, "observed")
    report = diagnose(read_subject(command, evidence), evidence)
    shown = text.render(report)
    assert shown.startswith("no verdict: ")
    assert asked in report.verdict.why
    assert "fitted from the evidence" not in shown
    assert "40 % of the usable memory" not in shown


def test_a_device_that_only_a_files_name_tells_is_said_to_be_so(tmp_path: Path) -> None:
    file = tmp_path / "h100-mine.yaml"
    file.write_text("preset: h100-8b\nmax_num_seqs: 64\n")
    assert any("the name of h100-mine.yaml" in note for note in read_subject(str(file), Evidence()).notes)
    assert not any("the name of" in note for note in read_subject(str(file), Evidence(), gpu="A100").notes)


def test_a_measured_cache_is_the_one_the_report_is_about() -> None:
    report = _examined("--max-model-len 8192", observed_mapping({"kv_tokens": 40_000}, "observed"))
    assert report.memory["kv_tokens"] == pytest.approx(40_000, abs=16)
    fit = next(limit.value for limit in report.limits if limit.name == "sequences_held")
    assert fit < 50


def test_a_verdict_that_rests_on_flashinfer_says_so() -> None:
    seen = Evidence()
    subject = read_subject(
        "vllm serve openai/gpt-oss-120b --max-model-len 32768", seen, gpu="H100", version="0.11.0"
    )
    report = diagnose(subject, seen, workload=load_workload("chat").at_concurrency(4).first(16))
    assert "FlashInfer" in report.verdict.advice
    assert any("vLLM's images" in text for text in report.assumptions)


@pytest.mark.parametrize(("version", "has"), [("0.9.2", False), ("0.10.2", True)])
def test_no_knob_is_replayed_that_the_release_lacks(version: str, has: bool) -> None:
    """0.10.0 brought --async-scheduling; the sheet of releases says so."""
    load = load_workload("chat").first(16)
    report = diagnose(
        read_subject(f"vllm serve {MODEL}", Evidence(), gpu="H100", version=version),
        Evidence(),
        workload=load,
    )
    knobs = {proof.proposal.knob for proof in report.alternatives} | {report.verdict.knob}
    assert ("async_scheduling" in knobs) <= has
    assert (
        has_knobs(
            read_subject(f"vllm serve {MODEL}", Evidence(), version=version), {"async_scheduling": True}
        )
        is has
    )


def test_this_engine_is_not_advised_to_do_what_it_cannot() -> None:
    subject = read_subject("h100-8b", Evidence())
    assert has_knobs(subject, {"max_num_seqs": 8})
    assert not has_knobs(subject, {"tensor_parallel_size": 2})
    assert not has_knobs(subject, {"api_server_count": 4})


def test_what_a_release_refuses_comes_with_a_next_step() -> None:
    verdict = _examined("--swap-space 4 --no-such-flag", version="0.33.0").verdict
    assert verdict.bottleneck == "refused"
    assert "check-flags" in verdict.advice
