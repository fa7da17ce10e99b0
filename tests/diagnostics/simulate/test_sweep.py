"""Series of replays, the search for the highest rate, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from camshaft.cli.simulate import simulate
from camshaft.core.config import load_config
from camshaft.core.errors import ConfigError, EvidenceError
from camshaft.core.workload import load_workload
from camshaft.diagnostics.cost.hardware import load_hardware
from camshaft.diagnostics.results import Targets
from camshaft.diagnostics.simulate import Prepared, prepare
from camshaft.diagnostics.simulate.devices import device_for, named_by_its_file
from camshaft.diagnostics.simulate.lessons import fragmentation
from camshaft.diagnostics.simulate.sweep import knob, parse_sweep, policies, until_saturation

LOAD = load_workload(
    {
        "arrival": {"kind": "closed", "concurrency": 8, "requests": 32},
        "input_tokens": {"uniform": [200, 3000]},
        "output_tokens": {"uniform": [16, 96]},
    }
)
CONFIG = {"model": "meta-llama/Llama-3.2-3B-Instruct", "max_model_len": 4096}


def base(targets: Targets | None = None) -> Prepared:
    return prepare(load_config(CONFIG, purpose="inspect"), load_hardware("l4"), targets=targets)


def test_a_sweep_reports_each_value_and_what_cannot_run() -> None:
    rows = knob(base(), LOAD, "max_num_batched_tokens", [512, 2048])
    assert [row.value for row in rows] == [512, 2048]
    assert rows[0].result is not None
    assert rows[1].result is not None
    assert rows[0].result.itl_ms.max < rows[1].result.itl_ms.max  # type: ignore[union-attr]
    (failed,) = knob(base(), LOAD, "gpu_memory_utilization", [0.05])
    assert failed.result is None
    assert "does not fit" in failed.reason


def test_block_sizes_trade_waste() -> None:
    rows = knob(base(), LOAD, "block_size", [16, 256])
    waste = [row.result.kv.waste for row in rows]  # type: ignore[union-attr]
    assert waste[0] < waste[1]


def test_policies_side_by_side() -> None:
    rows = policies(base(), LOAD, ["naive", "continuous-chunked"])
    assert rows[0].result.requests == LOAD.count  # type: ignore[union-attr]
    assert (
        rows[0].result.throughput_output_tokens_per_s  # type: ignore[union-attr]
        < rows[1].result.throughput_output_tokens_per_s  # type: ignore[union-attr]
    )


@pytest.mark.slow
def test_names_of_no_knob_and_no_policy_are_refused_before_any_replay() -> None:
    with pytest.raises(ConfigError, match="did you mean max_num_seqs"):
        knob(base(), LOAD, "max_num_sqs", [1, 2])
    with pytest.raises(ConfigError, match="no policy 'foo'"):
        policies(base(), LOAD, ["naive", "foo"])


def test_the_highest_rate_keeps_its_targets_and_the_next_does_not() -> None:
    found = until_saturation(base(Targets(ttft_ms=2000)), LOAD)
    assert found.rate_per_s > 0
    assert found.capacity_per_s is not None
    above = min([found.capacity_per_s, *(row.value for row in found.tried if row.value > found.rate_per_s)])
    assert above / found.rate_per_s < 1.04
    assert found.result is not None
    assert found.result.goodput_requests_per_s >= 0.95 * found.result.throughput_requests_per_s
    assert found.range_per_s is not None
    slower, faster = found.range_per_s
    assert slower < found.rate_per_s * 1.03 < 1.1 * faster
    assert slower < faster


def test_a_full_server_s_rate_goes_as_its_steps_do() -> None:
    found = until_saturation(base(), LOAD)
    error = found.error_percent / 100
    assert error > 0
    assert found.range_per_s == pytest.approx(
        (found.rate_per_s / (1 + error), found.rate_per_s / (1 - error))
    )


@pytest.mark.parametrize("targets", [Targets(ttft_ms=2000), Targets()], ids=["targets", "none"])
def test_requests_that_are_refused_for_their_length_are_the_reason(targets: Targets) -> None:
    small = base(targets).turned(max_model_len=2048)
    found = until_saturation(small, LOAD)
    assert found.rate_per_s == 0
    assert "of the requests are refused whatever the rate: the prompt has" in found.reason
    assert "already misses" not in found.reason


@pytest.mark.parametrize("targets", [Targets(ttft_ms=2000), Targets()], ids=["targets", "none"])
def test_a_load_too_short_to_fill_the_server_has_no_highest_rate(targets: Targets, tmp_path: Path) -> None:
    trace = tmp_path / "few.csv"
    rows = "".join(f"2026-01-01 00:00:0{second},100,20\n" for second in range(9))
    trace.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}")
    found = until_saturation(base(targets), load_workload(str(trace)))
    assert found.rate_per_s == 0
    assert found.reason.startswith("no rate is too high for this load: its 9 requests")


def test_targets_below_physics_hold_at_no_rate() -> None:
    found = until_saturation(base(Targets(ttft_ms=0.01)), LOAD)
    assert found.rate_per_s == 0
    assert [row.label for row in found.tried] == ["one at a time"]  # and no fifteen rates below it
    assert "one request at a time already misses ttft 0.01 ms" in found.reason


@pytest.mark.parametrize("text", ["max_num_seqs", "=3", "max_num_seqs="])
def test_a_sweep_without_values_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_sweep(text)


def test_sweeps_are_parsed() -> None:
    assert parse_sweep("--max-num-seqs=8,16") == ("max_num_seqs", [8, 16])


def test_a_preset_says_its_device_and_others_need_one(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = tmp_path / "h100-mine.yaml"
    file.write_text("model: x\n")
    assert device_for(load_config(str(file), purpose="inspect"), None).name == "H100 SXM"
    assert device_for(load_config(str(file), purpose="inspect"), "T4").name == "Tesla T4"
    assert "H100 SXM" in named_by_its_file(load_config(str(file), purpose="inspect"), None)
    assert named_by_its_file(load_config(str(file), purpose="inspect"), "T4") == ""
    assert named_by_its_file(load_config("h100-8b", purpose="inspect"), None) == ""
    with pytest.raises(EvidenceError, match="--gpu"):
        device_for(load_config({"model": "x", "device": "cpu"}, purpose="inspect"), None)


def run(*arguments: str):
    return CliRunner().invoke(simulate, list(arguments))


def test_the_command_prints_json_of_the_stated_form(tmp_path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("model: llama-3.2-3b\nmax_model_len: 8192\n")
    told = run(str(file), "--gpu", "L4", "--requests", "8", "--format", "json", "--slo", "ttft=5s")
    assert told.exit_code == 0, told.output
    document = json.loads(told.stdout)
    assert document["ttft_ms"].keys() == {"mean", "p50", "p90", "p99", "max"}
    for name in (
        "throughput_output_tokens_per_s",
        "goodput_requests_per_s",
        "preemptions",
        "saturated",
        "error_band",
    ):
        assert name in document
    assert document["kv"].keys() >= {"blocks", "peak_used", "waste"}
    assert document["targets"]["ttft_ms"] == 5000
    assert any("efficiency curves" in text for text in document["assumptions"])


def test_the_command_explains_itself_in_text(tmp_path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("model: llama-3.2-3b\nmax_model_len: 8192\n")
    told = run(str(file), "--gpu", "L4", "--requests", "8")
    assert told.exit_code == 0, told.output
    for part in ("expected error", "step time", "leaves", "KV cache"):
        assert part in told.output


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["cpu-demo", "--gpu", "abacus"], 2, "unknown device"),
        (["cpu-demo", "--gpu", ""], 2, "a name is needed"),
        (["nothing.yaml", "--gpu", "H100"], 2, "no such file, preset or model"),
        (["llama-3.1-8bb", "--gpu", "H100"], 2, "nearest: llama-3.1-8b,"),
        ([], 2, "CONFIG is needed"),
        (["cpu-demo", "--gpu", "H100", "--set", "model=nobody/x"], 2, "no sheet"),
        (["cpu-demo", "--gpu", "H100", "--slo", "ttft=soon"], 2, "target"),
        (["llama-3.1-8b", "--gpu", "H100", "--set", "tensor_parallel_size=3"], 2, "do not divide by 3"),
        (["llama-3.1-8b", "--gpu", "H100", "--sweep", "tensor_parallel_size=3,5"], 2, "do not divide by 5"),
        (["llama-3.1-8b", "--gpu", "H100", "--sweep", "gpu_memory_utilization=0.05"], 1, "does not fit"),
        (["cpu-demo", "--gpu", "H100", "--engine", "vllm", "--version", "new"], 2, "0.18.0"),
        (
            ["llama-3.1-8b", "--gpu", "H100", "--engine", "vllm", "--version", "0.5.0"],
            2,
            "the oldest is 0.6.0",
        ),
        (["h100-8b", "--sweep", "max_num_seqs=x"], 2, "a whole number is needed"),
        (["h100-8b", "--lesson", "gap", "--rate", "3"], 2, "leave out CONFIG, --rate"),
        (["h100-8b", "--check-against", "points.csv"], 2, "leave out CONFIG"),
        (["h100-8b", "--policies", "fair", "--sweep", "max_num_seqs=1"], 2, "--policies and --sweep exclude"),
        (["h100-8b", "--until-saturation", "--concurrency", "4"], 2, "exclude each other"),
        (["h100-8b", "--until-saturation", "--rate", "4"], 2, "exclude each other"),
        (["h100-8b", "--until-saturation", "--requests", "4"], 2, "exclude each other"),
        (["h100-8b", "--repeats", "4"], 2, "--repeats goes with --check-against here"),
        (["--lesson", "gap", "--repeats", "4"], 2, "leave out --repeats"),
        (["h100-8b", "--check-against", "here", "--sweep", "max_num_seqs=1"], 2, "exclude each other"),
    ],
)
def test_mistakes_are_told_without_a_traceback(arguments: list[str], code: int, part: str) -> None:
    told = run(*arguments)
    assert told.exit_code == code
    assert part in told.output
    assert "Traceback" not in told.output


def test_a_configuration_that_its_release_refuses_is_said_not_to_start(tmp_path: Path) -> None:
    file = tmp_path / "vllm.yaml"
    file.write_text("model: Qwen/Qwen3-8B\nswap-space: 4\n")
    load = ["--gpu", "H100", "--workload", _small(tmp_path)]
    assert run(str(file), *load).stdout.startswith("it does not start: --swap-space was removed")
    document = json.loads(run(str(file), *load, "--format", "json").stdout)
    assert document["assumptions"][0].startswith("it does not start: --swap-space")
    assert "does not start" not in run(str(file), *load, "--version", "0.17.0").output


def test_what_cannot_run_here_is_refused_before_any_prediction() -> None:
    # tensor parallel serving is refused with a GPU and without one
    told = run("h100-8b", "--check-against", "here", "--set", "tensor_parallel_size=2")
    assert told.exit_code != 0
    assert "Traceback" not in told.output
    assert "predicted" not in told.output


def _small(tmp_path: Path) -> str:
    file = tmp_path / "load.yaml"
    file.write_text(
        "arrival: {kind: closed, concurrency: 4, requests: 8}\ninput_tokens: 64\noutput_tokens: 8\n"
    )
    return str(file)


def test_the_title_of_a_search_names_no_arrivals_that_are_not_played(tmp_path: Path) -> None:
    told = run("llama-3.1-8b", "--gpu", "H100", "--workload", _small(tmp_path), "--until-saturation")
    assert told.exit_code == 0, told.output
    assert "load: load: about 64 tokens in and 8 out, at each rate tried" in told.output
    assert "clients" not in told.output
    assert "with all steps 8 % slower or faster" in " ".join(told.output.split())


def test_a_search_without_targets_says_which_rate_its_result_is_of(tmp_path: Path) -> None:
    load = ["--workload", _small(tmp_path)]
    told = json.loads(
        run("llama-3.1-8b", "--gpu", "H100", *load, "--until-saturation", "--format", "json").stdout
    )
    assert told["result_at_rate_per_s"] == pytest.approx(0.9 * told["rate_per_s"])


def test_command_lines_manifests_and_models_are_taken_as_diagnose_takes_them(tmp_path: Path) -> None:
    manifest = tmp_path / "deployment.yaml"
    manifest.write_text(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: chat}\nspec: {template: {spec: {containers: [{name: vllm, "
        "image: 'vllm/vllm-openai:v0.18.0', args: ['--model', 'Qwen/Qwen3-8B', '--max-num-seqs', '8']}]}}}\n"
    )
    for source, engine in (
        ("vllm serve Qwen/Qwen3-8B --max-num-seqs 8", "vllm"),
        (str(manifest), "vllm"),
        ("Qwen/Qwen3-8B", "camshaft"),
    ):
        told = run(source, "--gpu", "H100", "--workload", _small(tmp_path), "--format", "json")
        assert told.exit_code == 0, told.output
        document = json.loads(told.stdout)
        assert document["model"] == "Qwen/Qwen3-8B"
        assert document["engine"].startswith(engine)
        assert ("read as vllm's" in told.stderr) == (engine == "vllm")


def test_every_row_says_how_many_requests_keep_the_targets_and_by_which_rule(tmp_path: Path) -> None:
    load = ["--workload", _small(tmp_path), "--slo", "ttft=1s,itl=40ms"]
    told = run("h100-8b", *load, "--sweep", "max_num_seqs=2,4")
    assert "100.0%" in told.output
    assert "99th percentile of its own gaps" in " ".join(told.output.split())
    document = json.loads(run("h100-8b", *load, "--format", "json").stdout)
    assert (document["good_share"], document["targets_kept"]) == (1.0, True)
    assert "95% of its requests" in document["rule"]
    assert "95 % of its requests" in " ".join(run("--help").output.split())


def test_no_column_is_cut_in_a_narrow_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    told = run("h100-8b", "--workload", _small(tmp_path), "--sweep", "max_num_seqs=2,4")
    for name in ("output tok/s: ", "ITL max: ", "KV waste: "):
        assert told.output.count(name) == 2
    monkeypatch.setenv("COLUMNS", "120")
    assert (
        "KV waste: "
        not in run("h100-8b", "--workload", _small(tmp_path), "--sweep", "max_num_seqs=2,4").output
    )


def test_what_arrivals_do_to_the_figures_is_said(tmp_path: Path) -> None:
    load = ["h100-8b", "--workload", _small(tmp_path)]
    assert "4 clients start all at once" in run(*load).output
    assert "first token after that: p50" in " ".join(run("h100-8b", "--requests", "96").output.split())
    targets = ("h100-8b", "--requests", "96", "--slo", "ttft=500ms")
    assert "100.0% keep the targets" in " ".join(run(*targets).output.split())
    later = json.loads(run(*targets, "--format", "json").stdout)["after_start"]
    assert later["targets_kept"]
    assert later["ttft_ms"]["p99"] < 500
    assert "the server still filling" in " ".join(run(*load, "--rate", "3").output.split())


@pytest.mark.slow
def test_the_lesson_of_the_gap_shows_what_it_says() -> None:
    told = run("--lesson", "gap", "--format", "json")
    document = json.loads(told.stdout)
    rows = {row[0]: row[1:] for row in document["rows"]}
    static, continuous, lost = rows["all"]
    assert static > 1.3 * continuous
    assert lost == pytest.approx(static - continuous, abs=0.05)
    assert max(("prefill", "full decode", "tail"), key=lambda part: rows[part][2]) == "tail"


def test_the_lesson_of_fragmentation_shows_what_reserving_wastes() -> None:
    """Slots for 8,192 tokens that hold 32 and up to 1,500: four fifths and more are empty; of a page, half at most."""
    told = fragmentation(requests=300)
    waste = {row[0]: float(row[2].rstrip("%")) for row in told.rows}
    rate = {row[0]: row[4] for row in told.rows}
    assert waste["reserved at 8,192"] > 80
    assert waste["paged by 16"] < 2
    assert waste["paged by 1"] <= waste["paged by 16"] < waste["paged by 256"] < waste["reserved at 8,192"]
    assert rate["paged by 16"] > 2 * rate["reserved at 8,192"]
    assert "reserving wastes" in told.conclusions[0]


def test_policies_are_said_to_be_none_of_vllm_s() -> None:
    told = run(
        "llama-3.2-3b", "--gpu", "L4", "--engine", "vllm", "--policies", "continuous-chunked", "--requests", "4", "--set",
        "max_model_len=8192",
    )  # fmt: skip
    assert told.exit_code == 0, told.output
    assert "--policies: vllm has none of these; this engine's scheduler with vllm's defaults" in told.output


def test_a_model_alone_is_said_to_be_judged_as_this_engine_s() -> None:
    alone = ("llama-3.2-3b", "--gpu", "L4", "--requests", "4", "--set", "max_model_len=8192")
    assert "--engine vllm predicts vLLM's" in run(*alone).output
    assert "--engine vllm predicts" not in run(*alone, "--engine", "camshaft").output


def test_the_counts_of_copies_are_those_of_the_whole_load() -> None:
    seen = base().turned(data_parallel_size=2).replay(LOAD)
    assert seen.result.requests == LOAD.count // 2
    assert seen.whole.requests == seen.whole.completed == LOAD.count
    assert seen.whole.output_tokens == 2 * seen.result.output_tokens


def test_a_release_is_not_taken_for_this_engine_s(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("preset: h100-8b\n")
    told = run(str(file), "--gpu", "H100", "--version", "0.18.0")
    assert told.exit_code == 2
    assert "--version is a release of vLLM" in told.stderr


def test_a_target_below_one_sequence_s_step_is_out_of_reach(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("model: llama-3.2-3b\nmax_model_len: 8192\n")
    floor = "out of reach: 1 ms a token; one sequence alone takes"
    said = [
        run(str(file), "--gpu", "L4", "--requests", "2", "--slo", slo).output
        for slo in ("tpot=1ms", "tpot=9s")
    ]
    assert [floor in text for text in said] == [True, False]
