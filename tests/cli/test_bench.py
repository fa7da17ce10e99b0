"""`engine bench`: arguments are checked before anything is loaded."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from camshaft.cli.main import main


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", *arguments])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "one of --url URL and --offline CONFIG is needed"),
        (["--url", "http://x", "--offline", "cpu-demo"], "one of --url"),
        (["--url", "http://127.0.0.1:9", "--set", "port=1"], "--set changes a configuration"),
        (["--url", "http://127.0.0.1:9"], "no server answers"),
        (["--offline", "cpu-dem"], "did you mean cpu-demo"),
        (["--offline", "cpu-demo", "--workload", "chatt"], "did you mean chat"),
        (["--offline", "cpu-demo", "--slo", "fast"], "ttft, tpot, itl or e2e"),
        (["--offline", "cpu-demo", "--rate", "1", "--concurrency", "2"], "exclude each other"),
        (["overhead", "--running", "many"], "whole numbers"),
        (["overhead", "--running", "4", "--policies", "naive"], "one request at a time"),
    ],
)
def test_a_mistake_is_told(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code in (1, 2)
    assert message in " ".join(result.output.replace("│", " ").split())


def test_overhead_gives_a_row_for_each_policy_and_number() -> None:
    rows = json.loads(run("overhead", "--running", "4,8", "--steps", "30", "--format", "json").stdout)
    assert [(row["running"], row["policy"]) for row in rows] == [
        (count, name) for count in (4, 8) for name in ("continuous-chunked", "latency", "fair")
    ]
    assert "running" in run("overhead", "--running", "4", "--steps", "30").stdout
