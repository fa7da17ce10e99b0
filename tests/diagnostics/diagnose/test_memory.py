"""Servers that do not start: the verdict is arithmetic, from the message's own numbers or the budget."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from camshaft.diagnostics.diagnose import Report, diagnose, read_subject
from camshaft.diagnostics.evidence import Evidence

Examine = Callable[..., Report]

MISSING = (
    "ValueError: To serve at least one request with the models's max seq len ({length}), ({needed} GiB KV cache is needed, "
    "which is larger than the available KV cache memory ({left} GiB)."
)


def test_utilisation_grows_by_the_missing_share(examine: Examine) -> None:
    line = MISSING.format(length=32768, needed=4.0, left=2.0)
    verdict = examine({"gpu_memory_utilization": 0.85}, {"hardware": {"gpu": "A100-80GB"}}, [line]).verdict
    # 2 GiB of 79.3 are 0.025
    assert (verdict.bottleneck, verdict.knob, verdict.after) == (
        "kv_does_not_fit",
        "gpu_memory_utilization",
        0.88,
    )
    assert "2.00 GiB are missing" in verdict.why
    assert "0.025" in verdict.why


def test_a_shorter_context_where_no_utilisation_is_enough(examine: Examine) -> None:
    line = MISSING.format(length=131072, needed=16.0, left=4.0)
    verdict = examine({"gpu_memory_utilization": 0.9}, {"hardware": {"gpu": "RTX 3090"}}, [line]).verdict
    assert (verdict.knob, verdict.after, verdict.direction) == ("max_model_len", 32768, "lower")
    change = verdict.predicted["kv_needed_gib"]
    assert (change.before, change.after) == (16.0, 4.0)
    assert "--max-model-len" not in verdict.advice  # that is the verdict, and no other way
    assert "--kv-cache-dtype fp8, with which twice that length fits" in verdict.advice


def test_without_a_device_the_length_is_named_and_the_gpu_asked_for(examine: Examine) -> None:
    verdict = examine({}, {}, [MISSING.format(length=8192, needed=2.0, left=1.0)]).verdict
    assert (verdict.knob, verdict.after) == ("max_model_len", 4096)
    assert "--gpu" in verdict.advice


def test_older_messages_in_tokens(examine: Examine) -> None:
    line = (
        "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that can be stored in "
        "KV cache (20480). Try increasing `gpu_memory_utilization`"
    )
    verdict = examine({}, {}, [line]).verdict
    assert (verdict.bottleneck, verdict.knob, verdict.after) == ("kv_does_not_fit", "max_model_len", 20480)


@pytest.mark.parametrize("length", [16000])
def test_70b_in_fp8_is_refused_on_one_h100_with_the_subtraction(examine: Examine, length: int) -> None:
    config = {
        "model": "meta-llama/Llama-3.3-70B-Instruct", "quantization": "fp8", "max_model_len": length,
        "gpu_memory_utilization": 0.9,
    }  # fmt: skip
    report = examine(config, {"hardware": {"gpu": "H100"}}, version="0.12.0")
    assert report.verdict.bottleneck == "kv_does_not_fit"
    assert report.memory["rows_gib"]["KV cache"] == pytest.approx(-1.44, abs=0.15)
    assert "weights 67." in report.verdict.why


def test_weights_larger_than_the_device_need_more_devices(examine: Examine) -> None:
    line = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"
    verdict = examine(
        {"model": "Qwen/Qwen2.5-32B-Instruct"}, {"hardware": {"gpu": "RTX 4090"}}, [line]
    ).verdict
    assert (verdict.bottleneck, verdict.knob, verdict.after) == (
        "weights_do_not_fit",
        "tensor_parallel_size",
        4,
    )


def test_a_sampler_that_runs_out_of_memory_needs_fewer_sequences(examine: Examine) -> None:
    line = (
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please try lowering "
        "`max_num_seqs` or `gpu_memory_utilization` when initializing the engine."
    )
    verdict = examine({}, {"hardware": {"gpu": "RTX 4090"}}, [line]).verdict
    assert (verdict.knob, verdict.before, verdict.after) == ("max_num_seqs", 1024, 256)


@pytest.mark.parametrize(("engine", "knob"), [("camshaft", None), ("vllm", "tensor_parallel_size")])
def test_weights_alone_do_not_fit(engine: str, knob: str | None) -> None:
    nothing = Evidence()
    verdict = diagnose(read_subject("llama-3.1-70b", nothing, gpu="H100", engine=engine), nothing).verdict
    assert (verdict.bottleneck, verdict.knob) == ("weights_do_not_fit", knob)
    assert verdict.to_dict()["default_at_fault"] == "none"
    assert "--quantization fp8 --kv-cache-dtype fp8" in verdict.advice  # beside more devices, too


def test_a_utilisation_below_the_release_s_own_is_raised_to_that_and_the_least_is_told() -> None:
    command = (
        "vllm serve mistralai/Mistral-7B-Instruct-v0.3 --max-model-len 8192 --gpu-memory-utilization 0.5"
    )
    verdict = diagnose(read_subject(command, Evidence(), gpu="A10G"), Evidence()).verdict
    assert (verdict.knob, verdict.after) == ("gpu_memory_utilization", 0.92)
    assert "--gpu-memory-utilization 0.72 is the least with which it starts" in verdict.advice


@pytest.mark.parametrize(("version", "usual"), [("0.19.0", 0.9), ("0.20.0", 0.92), (None, 0.92)])
def test_the_utilisation_that_nobody_gives_is_the_release_s_own(
    examine: Examine, version: str | None, usual: float
) -> None:
    line = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"
    verdict = examine({}, {}, [line], version=version).verdict  # nobody names the device either
    assert (verdict.knob, verdict.before) == ("gpu_memory_utilization", usual)


def test_what_fits_on_the_devices_at_hand_is_told_beside_more_of_them() -> None:
    verdict = diagnose(
        read_subject("vllm serve Qwen/Qwen3-14B", Evidence(), gpu="RTX 4090"), Evidence()
    ).verdict
    assert verdict.knob == "tensor_parallel_size"
    assert "On as many devices as now, these together make it fit: --quantization fp8" in verdict.advice


def test_a_refusal_within_the_error_of_the_arithmetic_is_no_proof() -> None:
    report = diagnose(read_subject("vllm serve openai/gpt-oss-120b", Evidence(), gpu="H100"), Evidence())
    assert report.verdict.within_error
    assert "within the error of this arithmetic" in report.verdict.why
    far = diagnose(read_subject("vllm serve Qwen/Qwen3-32B", Evidence(), gpu="L40S"), Evidence())
    assert not far.verdict.within_error


def test_beyond_a_harmless_utilisation_fewer_sequences_go_first() -> None:
    """Two 3090 hold a 32B in INT8 with 0.96 of their memory, or with a fourth of the sampler's rows."""
    command = "vllm serve Qwen/Qwen2.5-32B-Instruct-INT8-W8A16 -tp 2 --max-model-len 4096 --enforce-eager"
    verdict = diagnose(read_subject(command, Evidence(), gpu="RTX 3090", version="0.8.1"), Evidence()).verdict
    assert (verdict.knob, verdict.after) == ("max_num_seqs", 256)
    assert "--gpu-memory-utilization 0.96" in verdict.advice


@pytest.mark.parametrize(("length", "fits"), [(32000, True), (65536, False)])
def test_a_server_seen_at_work_is_not_refused_by_an_arithmetic_that_hardly_forbids_it(
    examine: Examine, length: int, fits: bool
) -> None:
    config = {
        "model": "Qwen/Qwen3-32B", "quantization": "fp8", "max_num_seqs": 20, "gpu_memory_utilization": 0.95,
        "max_model_len": length, "hf_overrides": {"max_position_embeddings": 65536},
    }  # fmt: skip
    seen = {"running": 2, "waiting": 3, "kv_usage": "100%"}
    report = examine(config, seen, gpu="L40", version="0.7.3")
    assert (report.verdict.bottleneck == "kv_capacity") is fits
    assert (
        any("was seen to run: its cache is taken to hold just that one" in a for a in report.assumptions)
        is fits
    )


def test_a_load_that_is_told_is_no_server_that_was_seen(examine: Examine) -> None:
    """Only who saw it at work may doubt a refusal by the release's rules."""
    config = {"model": "Qwen/Qwen3-32B", "max_model_len": 131072, "tensor_parallel_size": 4}
    planned = examine(config, {"input_tokens": 9000, "output_tokens": 40}, gpu="H100").verdict
    seen = examine(config, {"input_tokens": 9000, "output_tokens": 40, "running": 2}, gpu="H100").verdict
    assert planned.bottleneck == "refused"
    assert seen.bottleneck != "refused"
    assert "a server was seen to run" in seen.why
