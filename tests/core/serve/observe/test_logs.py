"""Log lines: one event a line, parseable, and no client can forge one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from camshaft.core.messages import Stats
from camshaft.core.serve.observe.logs import ConsoleForm
from camshaft.core.serve.observe.statslog import stats_line

# The prefix that readers of vLLM's logs know.
PREFIX = re.compile(
    r"^(?:.*?\((?P<proc>[\w-]+) pid=(?P<pid>\d+)\) )?(?P<lvl>INFO|WARNING|ERROR|DEBUG) "
    r"(?P<ts>\d\d-\d\d \d\d:\d\d:\d\d) \[?(?P<file>[\w./]+):(?P<line>\d+)\] (?P<msg>.*)$"
)


def emitting(form: str, folder: Path) -> list[str]:
    """A command that logs a few lines."""
    code = (
        "import logging, structlog\n"
        "from camshaft.core.serve.observe.logs import configure_logs\n"
        f"configure_logs('info', {form!r}, process='APIServer')\n"
        "structlog.get_logger().debug('hidden')\n"
        "with structlog.contextvars.bound_contextvars(request_id='r1'):\n"
        "    structlog.get_logger().info('hello', path='a b\\nINFO forged', n=3)\n"
        "logging.getLogger('uvicorn.error').warning('from %s', 'uvicorn')\n"
    )
    script = folder / "emit.py"
    script.write_text(code)
    return [sys.executable, str(script)]


def logged(form: str, folder: Path) -> str:
    return subprocess.run(emitting(form, folder), capture_output=True, text=True, check=True).stderr


@pytest.mark.parametrize("gone", [True, False])
def test_a_log_that_nobody_takes_stops_nothing(tmp_path: Path, gone: bool) -> None:
    """Its reader has gone, or its disk is full."""
    if gone:
        reader, writer = os.pipe()
        os.close(reader)
    else:
        writer = os.open("/dev/full", os.O_WRONLY)
    command = emitting("console", tmp_path)
    with open(command[1], "a") as script:
        script.write("import os; print('went on', flush=True); os._exit(0)\n")
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=writer, text=True, check=True)
    finally:
        os.close(writer)
    assert done.stdout == "went on\n"


def test_console_form(tmp_path: Path) -> None:
    lines = logged("console", tmp_path).splitlines()
    assert len(lines) == 2
    first, second = (PREFIX.match(line) for line in lines)
    assert first is not None
    assert second is not None
    assert (first["proc"], first["lvl"]) == ("APIServer", "INFO")
    assert first["msg"] == r"hello path='a b\nINFO forged' n=3 request_id=r1"
    assert (second["lvl"], second["msg"]) == ("WARNING", "from uvicorn source=uvicorn.error")


def test_json_form(tmp_path: Path) -> None:
    first, second = map(json.loads, logged("json", tmp_path).splitlines())
    assert (first["event"], first["request_id"], first["level"]) == ("hello", "r1", "info")
    assert first["path"] == "a b\nINFO forged"
    assert (second["event"], second["process"]) == ("from uvicorn", "APIServer")


@pytest.mark.parametrize("event", ["two\nlines", "bell\x07", "esc\x1b[31m"])
def test_an_event_stays_on_its_line(event: str) -> None:
    line = ConsoleForm("")(None, "", {"event": event, "level": "info"})
    assert line.isprintable()


def stats(**values: float) -> Stats:
    zeros = dict.fromkeys(Stats.__struct_fields__[:12], 0)
    return Stats(**{**zeros, "total_blocks": 100, **values})  # type: ignore[arg-type]


def test_stats_line() -> None:
    now = stats(
        running=3,
        waiting=2,
        used_blocks=25,
        prompt_tokens=600,
        generation_tokens=150,
        preemptions=4,
        prefix_queries=200,
        prefix_hits=50,
    )
    before = stats(prompt_tokens=100, generation_tokens=50, preemptions=4, prefix_queries=100)
    line = stats_line(before, now, 10.0, "CPU")
    assert line == (
        "Engine 000: Avg prompt throughput: 50.0 tokens/s, Avg generation throughput: 10.0 tokens/s, "
        "Running: 3 reqs, Waiting: 2 reqs, CPU KV cache usage: 25.0%, Prefix cache hit rate: 50.0%"
    )
    assert "Waiting: 2 reqs, Preemptions: 4, GPU KV" in (stats_line(None, now, 10.0, "GPU") or "")


def test_an_idle_engine_says_nothing() -> None:
    idle = stats(prompt_tokens=5)
    assert stats_line(idle, idle, 10.0, "CPU") is None
