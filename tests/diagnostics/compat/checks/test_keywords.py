"""Keywords of the engine's classes: names that only the command line takes are refused there."""

from __future__ import annotations

import pytest

from camshaft.diagnostics.compat.fix.files import fix_all
from camshaft.diagnostics.compat.inputs.read import read_command, read_text
from camshaft.diagnostics.compat.run import check_all

SCRIPT = "from vllm import AsyncEngineArgs\nAsyncEngineArgs(model='m', {}={})\n"


@pytest.mark.parametrize(
    ("name", "value", "target", "starts"),
    [
        ("enable_log_requests", "True", "0.33.0", True),
        ("disable_log_requests", "True", "0.33.0", False),
        ("disable_log_requests", "'true'", "0.33.0", False),
        ("disable_log_requests", "'true'", "0.9.2", True),
        ("no_enable_prefix_caching", "True", "0.18.0", False),
        ("enable_prefix_caching", "False", "0.18.0", True),
        ("tensor_parallel", "2", "0.33.0", False),
        ("enforce_eager", "'yes'", "0.33.0", True),
    ],
)
def test_keywords(name: str, value: str, target: str, starts: bool) -> None:
    (result,) = check_all(read_text(SCRIPT.format(name, value), "serve.py"), targets=[target])
    assert result.starts is starts, result.findings


def test_the_command_line_takes_the_other_spellings() -> None:
    text = "vllm serve m --disable-log-requests --no-enable-prefix-caching --tensor-parallel 2"
    (result,) = check_all(read_command(text), targets=["0.33.0"])
    assert result.starts


@pytest.mark.parametrize(
    ("words", "starts"),
    [("", False), (" $EXTRA", None), (" --data-parallel-size-local 1", True), (" --seed $SEED", False)],
)
def test_what_a_variable_may_give_is_not_missing(words: str, starts: bool | None) -> None:
    text = f"vllm serve m --data-parallel-size 4 --data-parallel-hybrid-lb{words}"
    (result,) = check_all(read_command(text), targets=["0.33.0"])
    assert result.starts is starts, result.findings
    assert result.depends_on == (("$EXTRA",) if starts is None else ())


@pytest.mark.parametrize(
    ("name", "target", "code", "told"),
    [
        ("host", "0.33.0", "FL-01", "have no argument host at 0.33.0: it sets the HTTP server"),
        (
            "tensor_parallel",
            "0.33.0",
            "FL-01",
            "have no argument tensor_parallel at 0.33.0: only the command line",
        ),
        ("disable_log_requests", "0.11.0", "FL-02", "take disable_log_requests no more from "),
    ],
)
def test_a_refused_keyword_says_whose_it_is(name: str, target: str, code: str, told: str) -> None:
    (result,) = check_all(read_text(SCRIPT.format(name, "'x'"), "serve.py"), targets=[target])
    (finding,) = [finding for finding in result.findings if finding.stops]
    assert (finding.code, finding.severity, finding.place.line) == (code, "error", 2)
    assert told in finding.message
    assert finding.evidence


@pytest.mark.parametrize("release", ["0.6.0", "0.8.5", "0.9.2", "0.10.0", "0.11.0", "0.16.0"])
@pytest.mark.parametrize(
    ("argument", "command"),
    [("block_size=2048", "--block-size 2048"), ('device="cuda:1"', "--device cuda:1")],
)
def test_choices_that_only_the_commands_parser_holds_are_none_in_python(
    release: str, argument: str, command: str
) -> None:
    script = read_text(f'from vllm import LLM\nLLM("m", {argument})\n', "a.py")
    served = read_command(f"vllm serve m {command}")
    codes = [[f.code for f in check_all(found, targets=[release])[0].findings] for found in (script, served)]
    assert "FL-09" not in codes[0]
    assert "FL-09" in codes[1] or "FL-02" in codes[1]


@pytest.mark.parametrize(("value", "in_yaml"), [("None", "null"), ("False", "false")])
@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("engine_use_ray", "0.6.2"),
        ("speculative_model", "0.18.0"),
        ("rope_scaling", "0.33.0"),
        ("disable_log_requests", "0.33.0"),
        ("no_such_argument", "0.33.0"),
    ],
)
def test_python_refuses_a_name_that_it_does_not_know_with_any_value(
    name: str, target: str, value: str, in_yaml: str
) -> None:
    text = f"from vllm import LLM\nLLM('m', seed=1, {name}={value})\n"
    found = read_text(text, "serve.py")
    (result,) = check_all(found, targets=[target])
    assert (result.starts, [f.code[:2] for f in result.findings]) == (False, ["FL"])
    key = name.replace("_", "-")
    chart = f"modelSpec: [{{modelURL: m, vllmConfig: {{{key}: {in_yaml}}}}}]\n"
    assert check_all(read_text(chart, "values.yaml"), targets=[target])[0].findings == ()


def test_an_argument_that_is_gone_and_says_nothing_is_only_taken_out() -> None:
    text = "from vllm import LLM\nLLM('m', speculative_model=None, rope_scaling=None, num_speculative_tokens=None)\n"
    (fixed,) = fix_all(read_text(text, "a.py"), lambda c: check_all([c], targets=["0.33.0"])[0])
    assert fixed.plan.texts["a.py"][1] == "from vllm import LLM\nLLM('m')\n"


@pytest.mark.parametrize(
    ("argument", "starts"),
    [("swap_space: null", False), ("tensor_parallel: 2", False), ("enforce_eager: false", True)],
)
def test_rays_engine_kwargs_are_keywords_of_python(argument: str, starts: bool) -> None:
    text = f"applications:\n- args:\n    llm_configs:\n    - engine_kwargs: {{{argument}, seed: 1}}\n"
    (result,) = check_all(read_text(text, "serve.yaml"), targets=["0.33.0"])
    assert result.starts is starts, result.findings
