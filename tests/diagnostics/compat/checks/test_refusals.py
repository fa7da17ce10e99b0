"""What a release's own objects refuse, by the conditions harvested from its source."""

from __future__ import annotations

import pytest

from camshaft.diagnostics.compat.checks.findings import Result
from camshaft.diagnostics.compat.inputs.read import read_command
from camshaft.diagnostics.compat.releases.table import load
from camshaft.diagnostics.compat.releases.versions import Version, parse, versions
from camshaft.diagnostics.compat.rules.conditions import evaluate, names
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
        for name in names(refusal.when) - {"model.is_multimodal"}:
            option, _, key = name.removeprefix("kept.").partition(".")
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
        for n in names(r.when)
    }
    assert misread == {"kernel_config.enable_flashinfer_autotune"}
    result = judged("vllm serve m --kernel-config.enable_flashinfer_autotune null", "0.28.0")
    assert "FL-22" not in {finding.code for finding in result.findings}
