from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from camshaft.cli.matrix import matrix

PARSERS = Path(__file__).parents[1] / "diagnostics" / "compat" / "harvest" / "parsers"


def run(*args: str, code: int = 0) -> str:
    result = CliRunner().invoke(matrix, list(args))
    assert result.exit_code == code, result.output
    return result.output


def test_show_as_json_has_the_documented_form() -> None:
    shown = json.loads(run("show", "0.18.0", "--format", "json"))
    assert shown["version"] == "0.18.0"
    assert len(shown["flags"]) == 226
    for flag in shown["flags"].values():
        assert {"aliases", "type", "default", "choices", "deprecated", "field", "group"} <= flag.keys()
    utilization = shown["flags"]["--gpu-memory-utilization"]
    assert (utilization["default"], utilization["group"]) == (0.9, "CacheConfig")
    sequences = shown["flags"]["--max-num-seqs"]
    assert (sequences["default"], sequences["resolver"]) == (None, "max_num_seqs")


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_show_names_every_flag(form: str) -> None:
    text = run("show", "0.33.0", "--format", form)
    assert text.count("\n") > 300
    assert "--max-num-seqs" in text
    assert "computed (max_num_seqs)" in text


def test_show_one_flag_with_its_keys_and_places() -> None:
    text = run("show", "0.33.0", "--flag", "-cc")
    assert "--compilation-config.pass_config.eliminate_noops" in text
    assert "vllm/engine/arg_utils.py:" in text


def test_show_environment_variables() -> None:
    assert "VLLM_USE_V2_MODEL_RUNNER" in run("show", "0.33.0", "--env")
    shown = json.loads(run("show", "0.18.0", "--env", "--format", "json"))
    assert shown["env"]["VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"]["default"] is False


def test_an_unlisted_patch_is_answered_with_a_note() -> None:
    assert "nearest lower release" in run("show", "0.18.9", "--flag", "--port")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("show", "0.99.0"), "harvest"),
        (("show", "banana"), "not a version"),
        (("show", "0.18.0", "--flag", "--max-num-seq"), "did you mean max-num-seqs?"),
        (("show", "0.18.0", "--flag", "bogus"), "has no bogus\n"),
        (("diff", "0.18.0", "0.99.0"), "harvest"),
        (("rules", "0.99.0"), "harvest"),
        (("harvest",), "name the release"),
        (("harvest", "not-a-version"), "not a version"),
    ],
)
def test_a_mistake_is_one_line_and_exit_status_2(args: tuple[str, ...], said: str) -> None:
    text = run(*args, code=2)
    assert said in text
    assert "Traceback" not in text


def test_diff_lists_what_a_move_changes() -> None:
    text = run("diff", "0.17.1", "0.18.0")
    assert "- --swap-space" in text
    assert "* --disable-cascade-attn: default false -> true" in text
    assert "+float16" in text
    found = json.loads(run("diff", "0.19.1", "0.20.0", "--format", "json"))
    assert (found["from"], found["to"]) == ("0.19.1", "0.20.0")
    assert {"what": "default", "before": 0.9, "after": 0.92} in found["flags"]["changed"][
        "--gpu-memory-utilization"
    ]


def test_diff_of_equal_releases_says_so() -> None:
    assert "accepts what" in run("diff", "0.22.0", "0.22.0")


def test_releases_are_the_same_as_json() -> None:
    assert json.loads(run("releases", "--format", "json")) == {
        "engine": "vllm",
        "releases": run("releases").split(),
    }


def test_releases_lists_them_in_order() -> None:
    known = run("releases").split()
    assert (known[0], known[-1]) == ("0.6.0", "0.33.0")


def test_compare_agrees_with_a_real_parser_and_tells_where_not(tmp_path: Path) -> None:
    dump = json.loads(gzip.decompress((PARSERS / "vllm-0.32.0.json.gz").read_bytes()))
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(dump))
    assert "316 options of vllm 0.32.0: 0 differences" in run("compare", str(path))
    dump["flags"]["--port"]["default"] = 9000
    path.write_text(json.dumps(dump))
    assert "--port: default 8000" in run("compare", str(path), code=1)
    path.write_text("[]")
    assert "no dump" in run("compare", str(path), code=2)


def test_harvest_from_a_folder_stores_nothing_on_a_dry_run(tmp_path: Path) -> None:
    text = run("harvest", "0.33.0", "--source", str(tmp_path), "--dry-run", code=2)
    assert "holds no vLLM" in text


def test_harvest_of_this_engine_is_current() -> None:
    assert "not stored" in run("harvest", "--engine", "camshaft", "--dry-run")


def test_rules_lists_what_a_release_refuses_or_overrides() -> None:
    found = json.loads(run("rules", "0.18.0", "--format", "json"))
    assert found["version"] == "0.18.0"
    assert len(found["rules"]) > 100
    for rule in found["rules"]:
        assert rule["severity"] in {"error", "warning", "info"}
        assert "vllm/" in rule["evidence"]
    told = run("rules", "0.18.0")
    refusals = [rule for rule in found["rules"] if rule["code"] == "FL-22"]
    assert any(rule["flags"] == ["--structured-outputs-config"] for rule in refusals)
    assert any("model.is_multimodal" in rule["title"] for rule in refusals)
    assert not any("--model" in rule["flags"] for rule in refusals)  # which is a fact of the model there
    assert all(told.count(rule["code"]) == 1 for rule in found["rules"] if rule not in refusals)


def test_verify_reports_on_every_rule_of_a_source_tree(tmp_path: Path) -> None:
    (tmp_path / "vllm" / "engine").mkdir(parents=True)
    (tmp_path / "vllm" / "engine" / "arg_utils.py").write_text("x = 1\n")
    text = run("verify", "0.33.0", "--source", str(tmp_path))
    assert "vanished: 0" not in text
    report = json.loads(run("verify", "0.33.0", "--source", str(tmp_path), "--format", "json"))
    assert {verdict["status"] for verdict in report["verdicts"]} == {"vanished"}


def test_diff_tells_many_new_negative_spellings_in_one_line() -> None:
    text = run("diff", "0.32.0", "0.33.0")
    assert "more are turned off by other spellings as well, such as" in text
    assert "* --enable-lora:" not in text
    assert "* --spec-method: choices +step5_mtp -medusa -mlp_speculator" in text
    assert "--enable-lora" in run("diff", "0.32.0", "0.33.0", "--format", "json")


def test_a_flag_of_other_releases_says_which() -> None:
    told = run("show", "0.33.0", "--flag", "swap-space", code=2)
    assert "has no swap-space: it was removed in 0.18.0; `engine matrix show 0.17.1` has it" in told
    assert "it exists from 0.13.0 on" in run("show", "0.12.0", "--flag", "attention_backend", code=2)
