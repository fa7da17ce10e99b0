"""Progress: a line a stage where nobody watches, and never on standard output."""

from __future__ import annotations

import pytest

from camshaft.cli.progress import stages


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
