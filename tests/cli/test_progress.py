"""Progress: lines where nobody watches a terminal, and never on standard output."""

from __future__ import annotations

import numba
import pytest

from camshaft.cli.progress import EVERY_S, Bar, Lines, opening, running, stages


def test_a_log_file_gets_a_line_for_each_stage(capsys: pytest.CaptureFixture[str]) -> None:
    with stages() as progress:
        for done in range(3):
            progress("downloading", done, 0)
        progress("converting", 1, 2)
        progress("downloading", 3, 0)
    told = capsys.readouterr()
    assert told.err.splitlines() == ["downloading ...", "converting ..."]
    assert told.out == ""


def test_a_terminal_gets_a_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with stages() as progress:
        progress("converting", 1, 2)
    told = capsys.readouterr()
    assert "converting" in told.err
    assert "50%" in told.err
    assert told.out == ""


def test_a_line_comes_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now = 100.0
    lines = Lines(lambda: now).begin("static", 64)
    for ended in range(1, 9):
        now += EVERY_S / 4
        lines(ended, 10 * ended)
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [
        "static: 64 requests ...",
        "static: 4 of 64 requests, 40 tokens, 20 s",
        "static: 8 of 64 requests, 80 tokens, 40 s",
    ]


def test_there_is_a_bar_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as here:
        assert isinstance(here, Lines)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with running() as there:
        assert isinstance(there, Bar)
        there.begin("naive", 2)(1, 5)


def test_compiling_is_told_of_on_a_cpu_alone() -> None:
    told: list[str] = []
    with opening(told.append, on_cpu=False):
        numba.njit(lambda x: x + 1)(1)
    assert told == []
    with opening(told.append, on_cpu=True):
        numba.njit(lambda x: x + 2)(1)
    assert told == ["compiling kernels for this processor, once"]
