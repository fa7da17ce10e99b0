"""`engine bench`: arguments are checked before anything is loaded."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from camshaft.cli.main import main
from camshaft.cli.output import print_columns
from camshaft.core.errors import EvidenceError
from camshaft.core.recording.replay import Replay
from camshaft.diagnostics.bench.overhead import Overhead
from camshaft.diagnostics.bench.render import COLUMNS
from camshaft.diagnostics.bench.url import Target


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", *arguments])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "one of --url URL and --offline CONFIG is needed"),
        (["--url", "http://x", "--offline", "cpu-demo"], "one of --url"),
        (["--url", "http://127.0.0.1:9", "--set", "port=1"], "--set changes a configuration"),
        (["--url", "http://127.0.0.1:9"], "no server answers"),
        (["--offline", "cpu-demo", "--model", "x"], "--model is for a server by its --url"),
        (["--offline", "cpu-demo", "--no-ignore-eos"], "--ignore-eos is for a server by its --url"),
        (["--offline", "cpu-dem"], "did you mean cpu-demo"),
        (["--offline", "cpu-demo", "--workload", "chatt"], "did you mean chat"),
        (["--offline", "cpu-demo", "--slo", "fast"], "ttft, tpot, itl or e2e"),
        (["--offline", "cpu-demo", "--rate", "1", "--concurrency", "2"], "exclude each other"),
        (["replay", __file__], "not a JSON line"),
        (["overhead", "--running", "many"], "whole numbers"),
        (["overhead", "--running", "4,0"], "--running 4,0: numbers from 1 are needed"),
        (["overhead", "--running", "4", "--policies", "fast"], "--policies: no policy 'fast'"),
        (["overhead", "--running", "4", "--policies", "naive"], "one request at a time"),
    ],
)
def test_a_mistake_is_told(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())


def test_overhead_gives_a_row_for_each_policy_and_number() -> None:
    rows = json.loads(run("overhead", "--running", "4,8", "--steps", "30", "--format", "json").stdout)
    assert [(row["running"], row["policy"]) for row in rows] == [
        (count, name) for count in (4, 8) for name in ("continuous-chunked", "latency", "fair")
    ]
    assert "running" in run("overhead", "--running", "4", "--steps", "30").stdout


def test_no_figure_of_the_overhead_is_cut_in_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Overhead(1024, "continuous-chunked", 30, 4321.0, 98765.0, 1234.0, 2345.0, 150.0)
    monkeypatch.setattr("camshaft.diagnostics.bench.overhead.measure", lambda *_: row)
    for columns in ("30", "45", "60", "100"):
        monkeypatch.setenv("COLUMNS", columns)
        shown = run("overhead", "--running", "1024", "--policies", "fair").stdout
        assert all(figure in shown for figure in ("1,024", "4321", "98765", "1234", "2345", "150"))
        assert "\u2026" not in shown


def test_a_policy_that_is_none_is_refused_before_any_runs() -> None:
    told = run("policies", "--policies", "naive,foo")
    assert told.exit_code == 2
    assert "--policies: no policy 'foo'" in told.output
    assert "requests" not in told.output


def test_what_has_run_is_written_before_the_next_policy_runs(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    config, output = tmp_path / "c.yaml", tmp_path / "result.json"
    config.write_text(
        f"model: {tiny_llama}\ndevice: cpu\nmax_model_len: 256\nkv_cache_memory_bytes: 64M\nmax_num_seqs: 4\n"
    )
    seen: list[list[str]] = []

    def say(_: object, text: str) -> None:
        if not text.startswith("compiling"):  # said where no machine code is kept yet
            seen.append(list(json.loads(output.read_text())["policies"]) if output.exists() else [])

    monkeypatch.setattr("camshaft.cli.progress.Lines.say", say)
    monkeypatch.setattr("camshaft.cli.progress.EVERY_S", float("inf"))  # a busy machine takes longer
    result = run(
        "policies", "--config", str(config), "--workload", small_load(tmp_path), "--output", str(output),
        "--policies", "naive,continuous",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert seen == [[], ["naive"], ["naive"], ["naive", "continuous"]]
    assert result.stdout.count("    TTFT p99: ") == 2  # too wide for a column, and not cut
    assert "\u2026" not in result.stdout


def test_a_comparison_has_a_line_a_policy_in_a_usual_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    row = ("continuous-chunked", "24", "280.1", "17,422", "19,845", "152", "43", "1,307")
    print_columns(COLUMNS, [row], figures=True)
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize(
    ("keys", "sent"),
    [
        ({"OPENAI_API_KEY": "theirs"}, "theirs"),
        ({"OPENAI_API_KEY": "theirs", "CAMSHAFT_API_KEY": "ours"}, "ours"),
        ({}, None),
    ],
)
def test_a_url_is_sent_the_key_at_hand_and_new_contents(
    keys: dict[str, str], sent: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str | None, int | None]] = []

    def drive(target: Target, _: object, *, seed: int | None, **__: object) -> None:
        asked.append((target.api_key, seed))
        raise EvidenceError("enough")

    monkeypatch.setattr("camshaft.diagnostics.bench.url.drive_url", drive)
    for name in ("OPENAI_API_KEY", "CAMSHAFT_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name, key in keys.items():
        monkeypatch.setenv(name, key)
    for arguments in ([], ["--seed", "7"], ["--api-key", "told"]):
        run("--url", "http://127.0.0.1:9", *arguments)
    assert asked == [(sent, None), (sent, 7), ("told", None)]


def test_a_recording_without_a_step_is_not_called_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Replay(steps=0, requests=0, first_difference=None, cut_short=True)
    monkeypatch.setattr("camshaft.core.recording.replay.replay", lambda _: played)
    told = run("replay", __file__)
    assert told.exit_code == 0
    assert "0 steps of 0 requests: no plan to compare; the recording was cut short there" in told.output


def small_load(folder: Path, concurrency: int = 3) -> str:
    file = folder / "w.yaml"
    file.write_text(
        f"arrival: {{kind: closed, concurrency: {concurrency}, requests: 6}}\n"
        "input_tokens: {uniform: [5, 60]}\noutput_tokens: {uniform: [2, 6]}\n"
    )
    return str(file)


def test_an_engine_is_measured_in_process(tiny_llama: Path, tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(
        f"model: {tiny_llama}\ndevice: cpu\nmax_model_len: 256\nkv_cache_memory_bytes: 64M\nmax_num_seqs: 4\n"
    )
    arguments = [
        "--offline",
        str(config),
        "--workload",
        small_load(tmp_path),
        "--warmup",
        "1",
        "--slo",
        "ttft=60s",
    ]
    output = tmp_path / "result.json"
    shown = json.loads(run(*arguments, "--format", "json", "--output", str(output)).stdout)
    assert shown == json.loads(output.read_text())
    assert (shown["completed"], shown["failed"]) == (6, 0)
    assert shown["goodput_requests_per_s"] == shown["throughput_requests_per_s"] > 0
    assert set(shown["ttft_ms"]) == {"mean", "p50", "p90", "p99", "max"}
    assert shown["kv"]["peak_used"] > 0
    assert shown["policy"] == "continuous-chunked"
    text = run(*arguments).stdout
    assert "output tok/s" in text
    assert "goodput (ttft 60000 ms)" in text

    result = run(
        "policies", "--config", str(config), "--workload", small_load(tmp_path), "--format", "json",
        "--output", str(output),
    )  # fmt: skip
    compared = json.loads(result.stdout)
    assert compared == json.loads(output.read_text())
    assert list(compared["policies"]) == ["naive", "static", "continuous", "continuous-chunked"]
    assert all(row["completed"] == 6 for row in compared["policies"].values())
    assert compared["floor_tokens_per_s"] > 0
    said = result.stderr.splitlines()
    assert said[0] == "naive: 6 requests ..."
    assert [line.split(" in ")[0] for line in said[1::2]] == [
        f"{policy}: 6 requests" for policy in compared["policies"]
    ]

    result = run("--offline", str(config), "--workload", "mixed")
    assert result.exit_code == 2
    assert "this engine holds 256" in result.output

    recorded = str(tmp_path / "r.jsonl")
    run(*arguments, "--set", f"record={recorded}")
    assert run("replay", recorded).stdout.endswith("every plan is the same\n")
    whole = Path(recorded).read_bytes()
    Path(recorded).write_bytes(whole[: len(whole) // 2])
    assert run("replay", recorded).stdout.endswith("; the recording was cut short there\n")
    Path(recorded).write_bytes(whole)
    lines = Path(recorded).read_text().splitlines()
    step = next(number for number, line in enumerate(lines) if '"type":"step"' in line)
    lines[step] = re.sub('"digest":"[0-9a-f]+"', '"digest":"0000000000000000"', lines[step])
    Path(recorded).write_text("\n".join(lines) + "\n")
    result = run("replay", recorded)
    assert result.exit_code == 1
    assert "is planned otherwise now" in result.output
