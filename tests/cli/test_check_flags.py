"""The command as people and CI call it: exit status, formats, several inputs and targets, fixes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from camshaft.cli.check_flags import check_flags
from camshaft.diagnostics.compat.checks.codes import all_codes

CLEAN = "model: Qwen/Qwen3-8B\nmax-num-seqs: 64\n"
BROKEN = "model: Qwen/Qwen3-8B\nswap-space: 6\n"


def run(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(check_flags, list(arguments), input=text)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "clean.yaml").write_text(CLEAN)
    (tmp_path / "broken.yaml").write_text(BROKEN)
    (tmp_path / "bad.yaml").write_text("a: [")
    return tmp_path


def test_no_input_prints_usage() -> None:
    result = run()
    assert "Usage:" in result.output
    assert result.exit_code == 2


@pytest.mark.parametrize(
    ("name", "options", "status"),
    [
        ("clean.yaml", ["--to", "0.18.0"], 0),
        ("broken.yaml", ["--to", "0.17.0"], 0),
        ("broken.yaml", ["--to", "0.18.0"], 1),
        ("broken.yaml", ["--to", "0.18.0", "--fail-on", "never"], 0),
        ("bad.yaml", ["--to", "0.18.0"], 2),
        ("missing.yaml", ["--to", "0.18.0"], 2),
        ("clean.yaml", ["--to", "latest"], 0),
        ("clean.yaml", ["--to", "0.99.0"], 2),
        ("clean.yaml", ["--to", "nonsense"], 2),
        ("clean.yaml", ["--from", "1.x"], 2),
        ("clean.yaml", ["--gpu", "Commodore 64"], 2),
        ("clean.yaml", ["--model", "no-such-file"], 2),
    ],
)
def test_exit_status(files: Path, name: str, options: list[str], status: int) -> None:
    assert run(str(files / name), *options).exit_code == status


def test_fail_on_lower_severities() -> None:
    command = "vllm serve m --disable-log-requests"
    assert run("--command", command, "--to", "0.16.0").exit_code == 0
    assert run("--command", command, "--to", "0.16.0", "--fail-on", "warning").exit_code == 1


def test_one_unreadable_input_does_not_hide_the_others(files: Path) -> None:
    result = run(str(files / "bad.yaml"), str(files / "broken.yaml"), "--to", "0.18.0")
    assert result.exit_code == 2
    assert "bad.yaml" in result.stderr
    assert "--swap-space" in result.stdout


def test_what_starts_no_server_is_skipped_beside_what_does(files: Path) -> None:
    service = files / "svc.yaml"
    service.write_text("apiVersion: v1\nkind: Service\nmetadata: {name: vllm}\n")
    both = run(str(service), str(files / "clean.yaml"))
    assert both.exit_code == 0
    assert f"skipped: {service} starts no server" in both.output
    assert "1 configuration, 1 verdict" in both.output
    assert run(str(service), str(files / "broken.yaml")).exit_code == 1
    alone = run(str(service))
    assert (alone.exit_code, alone.output.startswith("Error: ")) == (2, True)


def test_several_commands_are_told_apart() -> None:
    result = run("--command", "vllm serve m", "--command", "vllm serve n", "--to", "0.18.0", "--to", "0.33.0")
    assert "command line 2  vllm 0.33.0: starts" in result.output
    assert "2 configurations, 4 verdicts" in result.output
    result = run("--command", "vllm serve m & vllm serve n")
    assert "2 configurations, 2 verdicts" in result.output


def test_an_image_of_another_release_than_told_is_named() -> None:
    command = "docker run vllm/vllm-openai:v0.8.5 --model m"
    said = "the tag of its image says 0.8.5; compared with 0.18.0, as told"
    assert said in run("--command", command, "--from", "0.18.0").output.replace("\n  ", " ")
    assert "tag" not in run("--command", command, "--from", "0.8.5").output


def test_json_has_the_published_shape(files: Path) -> None:
    result = run(
        str(files / "broken.yaml"), "--from", "0.16.0", "--to", "0.17.0", "--to", "0.18.0", "--format", "json"
    )
    results = json.loads(result.stdout)["results"]
    assert [(r["engine"], r["from"], r["to"], r["starts"]) for r in results] == [
        ("vllm", "0.16.0", "0.17.0", True),
        ("vllm", "0.16.0", "0.18.0", False),
    ]
    assert all(r["input"] == str(files / "broken.yaml") for r in results)
    (finding,) = [f for f in results[1]["findings"] if f["severity"] == "error"]
    assert set(finding) == {
        "code", "severity", "change", "flags", "env", "place", "message", "fix", "evidence", "depends_on",
    }  # fmt: skip
    assert finding["flags"] == ["--swap-space"]
    assert finding["place"] == {"file": str(files / "broken.yaml"), "line": 2, "column": 1}


def test_undecided_verdict_names_what_it_depends_on() -> None:
    result = run("--command", "vllm serve m --seed 1 $EXTRA_ARGS", "--to", "0.33.0", "--format", "json")
    (verdict,) = json.loads(result.stdout)["results"]
    assert verdict["starts"] is None
    assert verdict["depends_on"] == ["$EXTRA_ARGS"]
    assert result.exit_code == 0


def test_a_rule_without_its_fact_says_so_and_the_fact_settles_it() -> None:
    command = ["--command", "vllm serve m --dtype bfloat16", "--to", "0.33.0", "--format", "json"]
    (asked,) = json.loads(run(*command).stdout)["results"][0]["findings"]
    assert (asked["severity"], asked["depends_on"]) == ("info", ["device"])
    (left,) = json.loads(run(*command, "--gpu", "H100-80GB").stdout)["results"][0]["findings"]
    assert (left["code"], left["severity"]) == ("IN-02", "info")  # nobody told which model it is
    assert json.loads(run(*command, "--gpu", "Tesla T4").stdout)["results"][0]["starts"] is False


def test_sarif_places_and_rules(files: Path) -> None:
    result = run(str(files / "broken.yaml"), "--to", "0.18.0", "--format", "sarif")
    document = json.loads(result.stdout)
    assert document["version"] == "2.1.0"
    (only,) = document["runs"]
    (found,) = only["results"]
    assert found["locations"][0]["physicalLocation"]["region"] == {"startLine": 2, "startColumn": 1}
    assert only["tool"]["driver"]["rules"][found["ruleIndex"]]["id"] == found["ruleId"] == "FL-02"


def test_github_annotations_escape_what_github_reserves(files: Path) -> None:
    result = run(str(files / "broken.yaml"), "--to", "0.18.0", "--format", "github")
    (line,) = result.stdout.strip().splitlines()
    assert line.startswith("::error file=")
    assert ",line=2,col=1,title=FL-02 vllm 0.18.0::" in line


def test_markdown_table(files: Path) -> None:
    result = run(str(files / "broken.yaml"), "--to", "0.18.0", "--format", "markdown")
    assert "| error | FL-02 removed | `--swap-space` |" in result.stdout


def test_unlisted_patch_says_which_table_answers(files: Path) -> None:
    result = run(str(files / "clean.yaml"), "--to", "0.18.9", "--format", "json")
    (verdict,) = json.loads(result.stdout)["results"]
    assert verdict["to"] == "0.18.1"
    assert any("0.18.9" in note for note in verdict["notes"])


def test_standard_input() -> None:
    result = run("-", "--to", "0.18.0", text=BROKEN)
    assert result.exit_code == 1
    assert "standard input:2:1" in result.stdout


def test_fix_shows_a_diff_and_writes(files: Path) -> None:
    path = files / "broken.yaml"
    shown = run(str(path), "--to", "0.18.0", "--diff")
    assert "-swap-space: 6" in shown.stdout
    assert path.read_text() == BROKEN
    run(str(path), "--to", "0.18.0", "--fix")
    assert path.read_text() == "model: Qwen/Qwen3-8B\n"
    assert run(str(path), "--to", "0.18.0").exit_code == 0


def test_explain_knows_every_code() -> None:
    for code in all_codes():
        result = run("--explain", code.lower())
        assert result.exit_code == 0
        assert result.stdout.startswith(f"# {code}: ")
    assert run("--explain", "XX-99").exit_code == 2


def test_pages_are_written_for_every_code(tmp_path: Path) -> None:
    run("--write-pages", str(tmp_path / "pages"))
    names = {path.stem for path in (tmp_path / "pages").glob("*.md")}
    assert names == {*all_codes(), "index"}


def test_this_engines_own_file(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text("model: m\nmax_num_seqs: 4\nenable_prefix_caching: false\nmax_model_len: null\n")
    assert run(str(path), "--engine", "camshaft").exit_code == 0
    path.write_text("model: m\nmax_num_sequences: 4\n")
    result = run(str(path), "--engine", "camshaft", "--format", "json")
    (finding,) = json.loads(result.stdout)["results"][0]["findings"]
    assert (finding["code"], finding["place"]["line"]) == ("FL-01", 2)
    assert "--max-num-seqs" in finding["fix"]


def test_whose_file_it_is_is_found(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text("model: m\npolicy: continuous\nkv_cache_memory_bytes: 1G\n")
    assert json.loads(run(str(path), "--format", "json").stdout)["results"][0]["engine"] == "camshaft"
    assert (
        json.loads(run(str(path), "--to", "0.18.0", "--format", "json").stdout)["results"][0]["engine"]
        == "vllm"
    )


def test_a_fix_says_what_it_did_and_exits_by_what_is_left(tmp_path: Path) -> None:
    path = tmp_path / "start.sh"
    path.write_text("vllm serve m --swap-space 4\n")
    result = run(str(path), "--to", "0.33.0", "--fix")
    assert (result.exit_code, path.read_text()) == (0, "vllm serve m\n")
    assert "fixed 1; now starts at 0.33.0" in result.stderr
    path.write_text("vllm serve m --swap-space 4 --no-such-option\n")
    result = run(str(path), "--to", "0.33.0", "--fix")
    assert result.exit_code == 1
    assert "fixed 1; still does not start at 0.33.0 (1 error" in result.stderr


def test_what_cannot_be_fixed_is_said_and_exits_with_1(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(
        "if x; then A=(--guided-decoding-backend xgrammar); else A=(--guided-decoding-backend guidance); fi\n"
        'vllm serve m "${A[@]}"\nvllm serve n --swap-space 4\n'
    )
    result = run(str(path), "--to", "0.33.0")
    assert '{"backend": "xgrammar"}' in result.stdout
    assert '{"backend": "guidance"}' in result.stdout
    result = run(str(path), "--to", "0.33.0", "--fix", "--fail-on", "never")
    assert result.exit_code == 1
    assert "edit it by hand" in result.stderr
    assert path.read_text().endswith("vllm serve n\n")


def test_each_server_of_a_script_is_named_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("from vllm import LLM\nLLM('m', swap_space=4)\nLLM('n', dtype='x')\n")
    result = run(str(path), "--to", "0.33.0", "--fix")
    assert f"fixed 1; {path}:2 now starts at 0.33.0; {path}:3 still does not start" in result.stderr
    assert path.read_text().count("LLM('m')") == 1


def test_what_several_servers_rely_on_is_told_once(tmp_path: Path) -> None:
    for name, words in (("a", "--swap-space 4"), ("b", "--port 1"), ("c", "--seed 3")):
        (tmp_path / f"{name}.sh").write_text(f"vllm serve m {words}\n")
    paths = [str(tmp_path / f"{name}.sh") for name in "abc"]
    result = run(*paths, "--from", "0.11.0", "--to", "0.33.0")
    told = result.stdout
    assert told.count("--seed is not set") == told.count("--async-scheduling is not set") == 1
    seed = told[told.index("--seed is not set") :]
    assert f"of all but {paths[2]}" in " ".join(seed.split())
    assert "of all 3" in told
    ends = [line for line in told.splitlines() if line.startswith(tuple(paths))][-3:]
    assert [line.partition(" (")[0] for line in ends] == [
        f"{paths[0]} 0.33.0: does not start",
        f"{paths[1]} 0.33.0: starts",
        f"{paths[2]} 0.33.0: starts",
    ]
    alone = run(paths[0], "--from", "0.11.0", "--to", "0.33.0").stdout
    assert "told below" not in alone
    assert alone.count(paths[0] + "  vllm") == 1
    data = json.loads(run(*paths, "--from", "0.11.0", "--to", "0.33.0", "--format", "json").stdout)
    assert sum("--seed" in finding["flags"] for item in data["results"] for finding in item["findings"]) == 2


def test_what_is_ignored_fails_nothing_but_a_release_that_does_not_start(tmp_path: Path) -> None:
    path = tmp_path / "a.sh"
    path.write_text("export VLLM_CORP_X=1 VLLM_CORP_Y=1\nvllm serve m\n")
    asked = (str(path), "--to", "0.33.0", "--fail-on", "warning")
    assert run(*asked).exit_code == 1
    one = run(*asked, "--ignore", "EN-04:VLLM_CORP_X")
    assert one.exit_code == 1
    assert "VLLM_CORP_X" not in one.stdout
    both = run(*asked, "--ignore", "EN-04")
    assert both.exit_code == 0
    assert "ignored, as asked: 2" in both.stdout
    path.write_text("vllm serve m --swap-space 4\n")
    assert run(*asked, "--ignore", "FL-02").exit_code == 1
    assert run(*asked, "--ignore", "XX-99").exit_code == 2


def test_a_fix_says_that_the_release_moves_with_it(tmp_path: Path) -> None:
    path = tmp_path / "start.sh"
    path.write_text("docker run vllm/vllm-openai:v0.8.5 --model m --swap-space 4\n")
    assert "move from 0.8.5 in the same change" in run(str(path), "--to", "0.33.0", "--diff").stderr
    path.write_text("vllm serve m --swap-space 4\n")
    assert "in the same change" not in run(str(path), "--to", "0.33.0", "--diff").stderr


def test_a_diff_changes_nothing_and_exits_by_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "start.sh"
    path.write_text("vllm serve m --swap-space 4\n")
    result = run(str(path), "--to", "0.33.0", "--diff")
    assert (result.exit_code, path.read_text()) == (1, "vllm serve m --swap-space 4\n")
    assert "would fix 1; then starts" in result.stderr


def test_every_server_of_a_script_is_fixed(tmp_path: Path) -> None:
    path = tmp_path / "start.sh"
    path.write_text(
        "export VLLM_ATTENTION_BACKEND=FLASHINFER\nvllm serve a --port 1\nvllm serve b --port 2 --swap-space 4\n"
    )
    assert run(str(path), "--to", "0.33.0", "--fix").exit_code == 0
    assert path.read_text() == (
        "vllm serve a --port 1 --attention-backend FLASHINFER\n"
        "vllm serve b --port 2 --attention-backend FLASHINFER\n"
    )


def test_no_color_is_heeded_on_a_terminal() -> None:
    arguments = ["--command", "vllm serve m --swap-space 4", "--to", "0.33.0"]

    def shown(value: str) -> str:
        return CliRunner().invoke(check_flags, arguments, color=True, env={"NO_COLOR": value}).output

    assert "\x1b[" in shown("")
    assert "\x1b[" not in shown("1")
