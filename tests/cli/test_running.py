"""Progress of a run where nobody watches a terminal."""

from __future__ import annotations

import pytest

from camshaft.cli.running import EVERY_S, Bar, Lines, running


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
