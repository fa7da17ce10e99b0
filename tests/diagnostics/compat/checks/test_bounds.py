from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, ValidationError, create_model

from camshaft.diagnostics.compat.checks.bounds import outside
from camshaft.diagnostics.compat.checks.findings import Result
from camshaft.diagnostics.compat.inputs.read import read_command, read_text
from camshaft.diagnostics.compat.run import check_all

NUMBERS = st.integers(-3, 3) | st.sampled_from([-0.5, 0.0, 0.5, 1.5])


def judged(command: str, target: str) -> Result:
    (result,) = check_all(read_command(command), targets=[target])
    return result


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(["ge", "gt", "le", "lt"]), st.integers(-2, 2), min_size=1), NUMBERS)
def test_a_number_is_out_of_bounds_where_pydantic_refuses_it(bounds: dict[str, float], value: float) -> None:
    limits: dict[str, Any] = {**bounds}
    fields: dict[str, Any] = {"number": (float, Field(**limits))}
    model: type[BaseModel] = create_model("Model", **fields)
    try:
        model(number=value)
    except ValidationError:
        assert outside(bounds, value) is not None
    else:
        assert outside(bounds, value) is None


@pytest.mark.parametrize("value", [None, "auto", True, [0]])
def test_what_is_no_number_has_no_bounds(value: object) -> None:
    assert outside({"gt": 5}, value) is None


@pytest.mark.parametrize(
    ("option", "wanted"),
    [
        ("--max-num-seqs 0", "at least 1"),
        ("--block-size 0", "above 0"),
        ("--gpu-memory-utilization 0", "above 0 and at most 1"),
        ("--gpu-memory-utilization 1.5", "above 0 and at most 1"),
        ("--tensor-parallel-size 0", "at least 1"),
        ("--cpu-offload-gb -1", "at least 0"),
        ("""--speculative-config '{"method": "ngram", "num_speculative_tokens": 0}'""", "above 0"),
        ("--speculative-config.num_speculative_tokens 0 --speculative-config.method ngram", "above 0"),
    ],
)
def test_a_number_out_of_bounds_stops_the_start(option: str, wanted: str) -> None:
    result = judged(f"vllm serve Qwen/Qwen3-8B {option}", "0.33.0")
    assert result.starts is False
    (finding,) = [finding for finding in result.findings if finding.severity == "error"]
    assert finding.code == "FL-21"
    assert wanted in finding.message
    assert finding.flags == (option.split(" ")[0].split(".")[0],)


def test_numbers_at_their_bounds_are_kept() -> None:
    command = (
        "vllm serve Qwen/Qwen3-8B --max-num-seqs 1 --gpu-memory-utilization 1 --max-num-batched-tokens 4096"
    )
    assert all(finding.code != "FL-21" for finding in judged(command, "0.33.0").findings)


def test_only_the_last_of_several_numbers_counts() -> None:
    result = judged("vllm serve Qwen/Qwen3-8B --max-num-seqs 0 --max-num-seqs 8", "0.33.0")
    assert result.starts is True


def test_a_release_without_bounds_is_not_held_to_them() -> None:
    assert all(f.code != "FL-21" for f in judged("vllm serve m --max-num-seqs 0", "0.10.0").findings)
    (found,) = [f for f in judged("vllm serve m --gpu-memory-utilization 90", "0.10.0").findings if f.stops]
    assert found.code == "VLLM-ME-07"


def test_this_engine_s_bounds_are_known() -> None:
    (configuration,) = read_text("model: m\nmax_num_seqs: 0\n", "serve.yaml", engine="camshaft")
    (result,) = check_all([configuration], engine="camshaft")
    assert result.starts is False
    assert [finding.code for finding in result.findings if finding.stops] == ["FL-21"]
