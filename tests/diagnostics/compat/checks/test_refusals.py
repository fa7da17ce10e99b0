"""What a release's own objects refuse, by the conditions harvested from its source."""

from __future__ import annotations

import pytest

from camshaft.diagnostics.compat.checks.findings import Result
from camshaft.diagnostics.compat.harvest.settings import OF_MODEL
from camshaft.diagnostics.compat.inputs.read import read_command
from camshaft.diagnostics.compat.releases.table import load
from camshaft.diagnostics.compat.releases.versions import Version, parse, versions
from camshaft.diagnostics.compat.rules.conditions import evaluate, names, plain
from camshaft.diagnostics.compat.rules.records import load as load_rules
from camshaft.diagnostics.compat.rules.resolvers import parser_defaults
from camshaft.diagnostics.compat.rules.scope import Facts, Scope
from camshaft.diagnostics.compat.run import check_all


def judged(command: str, target: str, **model: object) -> Result:
    (result,) = check_all(read_command(command), targets=[target], model=model)
    return result


@pytest.mark.parametrize(
    ("options", "target", "option"),
    [
        ("--cpu-offload-gb -1", "0.9.2", "--cpu-offload-gb"),
        ("--enable-lora --lora-extra-vocab-size 100", "0.9.2", "--lora-extra-vocab-size"),
        ("--enable-lora --max-loras 0", "0.9.2", "--max-loras"),
        ("--offload-group-size 8 --offload-prefetch-step 0", "0.18.0", "--offload-prefetch-step"),
        (
            "--speculative-config.method suffix --speculative-config.suffix_decoding_max_tree_depth 0",
            "0.18.0",
            "",
        ),
        ("--profiler-config.profiler cuda --profiler-config.capture_torch_profiler true", "0.28.0", ""),
        ("--numa-bind --numa-bind-cpus zero", "0.20.0", "--numa-bind-cpus"),
        ("--numa-bind --numa-bind-cpus 0-3 7-5", "0.28.0", "--numa-bind-cpus"),
        ("--device-ids 0,0", "0.24.0", "--device-ids"),
        ("--device-ids 0,GPU-1a2b", "0.33.0", "--device-ids"),
        ("-cc.custom_ops+ rms_norm", "0.24.0", "--compilation-config"),
        ("-cc.custom_ops+ +rms_norm,-rms_norm", "0.33.0", "--compilation-config"),
        ("-cc.encoder_cudagraph_token_budgets [0,1024]", "0.24.0", "--compilation-config"),
        ("--grpc --grpc-port 50051", "0.33.0", "--grpc-port"),
        ("--enable-hc-sp -tp 2 -pp 2", "0.33.0", "--enable-hc-sp"),  # of an object that another one holds
        ("--sse-keep-alive-interval -1", "0.33.0", "--sse-keep-alive-interval"),
        ("""--reasoning-effort-map '{"turbo": "high"}'""", "0.33.0", "--reasoning-effort-map"),
        (
            "--enable-dbo --dbo-decode-token-threshold 1 --all2all-backend deepep_low_latency",
            "0.33.0",
            "--enable-dbo",
        ),
        ("""--pooler-config '{"logit_bias": 0.1, "logit_mean": 0.1}'""", "0.20.0", "--pooler-config"),
        (
            "--use-replayssm --mamba-backend flashinfer --replayssm-buffer-len 32",
            "0.33.0",
            "--replayssm-buffer-len",
        ),
        (
            """--speculative-config '{"method": "eagle3", "model": "a/b", "num_speculative_tokens": 2,
            "rejection_sample_method": "synthetic", "synthetic_acceptance_length": 4.5}'""",
            "0.24.0",
            "--speculative-config",
        ),
    ],
)
def test_values_that_do_not_go_together(options: str, target: str, option: str) -> None:
    result = judged(f"vllm serve m {options}", target)
    (finding,) = [f for f in result.findings if f.severity == "error"]
    assert (finding.code, result.starts) == ("FL-22", False)
    assert option in " ".join(finding.flags)
    assert finding.evidence is not None
    assert ".py:" in finding.evidence


@pytest.mark.parametrize(
    ("options", "target"),
    [
        ("--lora-extra-vocab-size 100", "0.9.2"),  # no LoRA, no object that refuses it
        ("--enable-lora --lora-extra-vocab-size 512", "0.9.2"),
        ("--speculative-config.method mtp --speculative-config.suffix_decoding_max_tree_depth 0", "0.18.0"),
        ("--profiler-config.profiler torch --profiler-config.capture_torch_profiler true", "0.28.0"),
        ("--profiler-config.profiler cuda --profiler-config.capture_torch_profiler true", "0.25.0"),
        ("--enable-lora --max-loras $N", "0.9.2"),
        ("--numa-bind --numa-bind-cpus 0-3,8 4-7", "0.28.0"),
        ("--device-ids 0,1", "0.33.0"),
        ("--device-ids GPU-1a2b,GPU-3c4d", "0.33.0"),
        ("--enable-lora --moe-backend Flashinfer-CUTLASS", "0.33.0"),
        ("-cc.custom_ops+ none,+rms_norm,-silu_and_mul", "0.33.0"),
        ("--grpc-port 50051", "0.33.0"),  # who knows what the environment has
        ("--enable-dbo --all2all-backend deepep_low_latency", "0.33.0"),
        ("--no-enable-lora --moe-backend deep_gemm_mega_moe", "0.33.0"),
        ("""--speculative-config '{"method": "deepseek_mtp", "num_speculative_tokens": 1}'""", "0.11.0"),
        ("""--speculative-config '{"method": "deepseek_mtp", "num_speculative_tokens": 1}'""", "0.18.0"),
        (
            """--speculative-config '{"method": "qwen3_next_mtp", "num_speculative_tokens": 2,
            "index_share_for_mtp_iteration": true}'""",
            "0.33.0",
        ),
    ],
)
def test_values_that_no_object_refuses(options: str, target: str) -> None:
    assert "FL-22" not in {finding.code for finding in judged(f"vllm serve m {options}", target).findings}


def test_a_rule_for_the_same_lines_is_told_once() -> None:
    result = judged("vllm serve m --enable-eplb -tp 2", "0.18.0", num_experts=64)
    assert [finding.code for finding in result.findings if finding.stops] == ["VLLM-PA-04"]


@pytest.mark.parametrize("release", versions("vllm"), ids=str)
def test_every_condition_reads_options_of_its_release(release: Version) -> None:
    table = load("vllm", release)
    for refusal in table.refusals.values():
        for name in map(plain, names(refusal.when)):
            option, _, key = name.partition(".")
            if option in ("model", "env"):
                assert option == "env" or key in OF_MODEL.values(), name
                continue
            flag = table.find("--" + option.replace("_", "-"))
            assert flag is not None, name
            assert not key or key in flag.nested, name


def test_what_holds_without_any_option_refuses_nothing() -> None:
    """A harvested condition that a release's own defaults meet is misread; the check leaves it out."""
    release = parse("0.28.0")
    scope = Scope(load_rules("vllm"), release, Facts(defaults=parser_defaults("vllm", release)))
    misread = {
        n
        for r in load("vllm", release).refusals.values()
        if evaluate(r.when, scope) is True
        for n in map(plain, names(r.when))
    }
    assert misread == {"enable_flashinfer_autotune", "kernel_config.enable_flashinfer_autotune"}
    result = judged("vllm serve m --kernel-config.enable_flashinfer_autotune null", "0.28.0")
    assert "FL-22" not in {finding.code for finding in result.findings}
