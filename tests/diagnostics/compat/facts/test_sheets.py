"""Models by name and by sheet: their facts decide the rules, as far as the name vouches for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from camshaft.core.arithmetic.model_sheets import FOLDER
from camshaft.core.errors import ConfigError
from camshaft.diagnostics.compat.checks.findings import Result
from camshaft.diagnostics.compat.facts.model_input import read_model
from camshaft.diagnostics.compat.facts.sheets import ARITHMETIC, sheet_facts, with_sheet
from camshaft.diagnostics.compat.inputs.read import read_command
from camshaft.diagnostics.compat.run import check_all
from camshaft.diagnostics.cost.devices import find_device


def judged(
    command: str, target: str = "0.33.0", gpu: str | None = None, model: dict[str, Any] | None = None
) -> Result:
    device = find_device(gpu) if gpu else None
    (result,) = check_all(read_command(f"vllm serve {command}"), targets=[target], model=model, device=device)
    return result


def codes(result: Result) -> set[str]:
    return {finding.code for finding in result.findings}


def test_weights_that_do_not_fit_are_said() -> None:
    result = judged("meta-llama/Llama-3.3-70B-Instruct", gpu="H100")
    assert result.starts is False
    assert codes(result) == {"VLLM-ME-02"}
    assert "131.4 GiB a GPU" in result.findings[0].message
    assert judged("meta-llama/Llama-3.3-70B-Instruct -tp 4 --max-model-len 8192", gpu="H100").findings == ()


def test_an_estimate_within_its_error_only_warns() -> None:
    result = judged("openai/gpt-oss-120b", "0.11.0", gpu="H100")
    assert result.starts is True
    assert codes(result) == {"VLLM-ME-08"}


def test_memory_of_an_unknown_model_is_not_looked_at() -> None:
    result = judged("acme/secret-7b", gpu="H100")
    (finding,) = result.findings
    assert (finding.code, finding.severity) == ("IN-02", "info")
    assert finding.message.startswith("Memory not looked at: the model acme/secret-7b has no sheet")
    assert judged("acme/secret-7b").findings == ()


@pytest.mark.parametrize("given", [str(FOLDER / "llama-3.1-8b.yaml"), "llama-3.1-8b", None])
def test_a_sheet_is_read_wherever_it_comes_from(given: str | None) -> None:
    name = "acme/finetune" if given else "meta-llama/Llama-3.1-8B-Instruct"
    model = read_model(given) if given else None
    result = judged(f"{name} -tp 3 --max-model-len 262144", model=model)
    assert codes(result) == {"VLLM-PA-01", "VLLM-LN-01"}


def test_a_relative_shares_sizes_and_not_the_context() -> None:
    facts = sheet_facts("acme/Qwen3-30B-A3B-Instruct")
    assert facts["num_attention_heads"] == 32
    assert "max_position_embeddings" not in facts
    assert judged("acme/Qwen3-30B-A3B-Instruct --max-model-len 262144").starts is True
    assert judged("Qwen/Qwen3-30B-A3B --max-model-len 262144").starts is False


def test_given_facts_win_over_the_sheet() -> None:
    known = with_sheet({"quantization": "awq"}, "Qwen/Qwen3-32B-FP8")
    assert known["quantization"] == "awq"
    assert known[ARITHMETIC]["quantization_config"] == {"quant_method": "awq"}
    whole = {"num_hidden_layers": 2, "hidden_size": 64}
    assert with_sheet(whole, "Qwen/Qwen3-32B") == whole


def test_a_name_that_is_no_text_and_one_without_sheet_tell_nothing(tmp_path: Path) -> None:
    assert with_sheet({"a": 1}, None) == {"a": 1}
    assert sheet_facts(str(tmp_path)) == {}


@pytest.mark.parametrize(
    ("options", "target", "starts"),
    [
        ("-tp 8", "0.28.0", False),
        ("-tp 8", "0.29.0", True),  # scales are refined to blocks of 32
        ("-tp 8 --enable-expert-parallel", "0.28.0", True),
        ("-tp 2", "0.28.0", True),
        ("-tp 16", "0.28.0", False),
        ("-tp 16", "0.29.0", False),  # 48 columns: no block of 32 divides them
    ],
)
def test_expert_slices_of_block_scaled_weights(options: str, target: str, starts: bool) -> None:
    result = judged(f"Qwen/Qwen3-30B-A3B-FP8 {options}", target)
    assert result.starts is starts
    assert ("VLLM-QU-10" in codes(result)) is not starts


@pytest.mark.parametrize(
    ("command", "gpu", "starts"),
    [
        ("deepseek-ai/DeepSeek-V3 -dp 8 --enable-expert-parallel", "H200", True),
        ("deepseek-ai/DeepSeek-V3 -dp 8 --enable-expert-parallel", "H100", False),
        ("openai/gpt-oss-120b", "H100", True),  # published for one; the estimate only warns
        ("openai/gpt-oss-120b", "A100 40GB", False),
    ],
)
def test_experts_are_shared_out_and_published_set_ups_start(command: str, gpu: str, starts: bool) -> None:
    assert judged(command, gpu=gpu).starts is starts


def test_a_format_in_the_name_counts_before_the_sheets_own() -> None:
    """nvidia/DeepSeek-R1-FP4 is stored in 4 bits, though its model comes in FP8."""
    (four,) = [
        f
        for f in judged("nvidia/DeepSeek-R1-FP4 -dp 4 --enable-expert-parallel", gpu="H100").findings
        if f.code == "VLLM-ME-02"
    ]
    (eight,) = [
        f
        for f in judged("deepseek-ai/DeepSeek-R1 -dp 4 --enable-expert-parallel", gpu="H100").findings
        if f.code == "VLLM-ME-02"
    ]
    weights = [float(f.message.split("weights (")[1].split(" ")[0]) for f in (four, eight)]
    assert weights[0] < 0.65 * weights[1]


def test_glm_checkpoints_in_fp8_are_scaled_by_channel() -> None:
    assert codes(judged("zai-org/GLM-4.5-FP8 -tp 8", target="0.27.1")) == set()
    assert codes(judged("MiniMaxAI/MiniMax-M2 -tp 8", target="0.27.1")) == {"VLLM-QU-10"}


@pytest.mark.parametrize("text", ["a: 2024-99-99", "a: &a {b: *a}", "- 1", "a: [", "a: \x00"])
def test_a_file_that_holds_no_facts_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "facts.yaml").write_text(text)
    with pytest.raises(ConfigError, match="facts"):
        read_model(str(tmp_path / "facts.yaml"))
