"""The listening address: taken before anything is loaded, or refused with the reason."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
from serve_support import refuse_before_loading

from camshaft.core.config import ServeConfig
from camshaft.core.errors import ConfigError
from camshaft.core.serve import server
from camshaft.core.serve.server import bind


def test_a_taken_port_is_refused_before_loading() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        refuse_before_loading(ServeConfig(model="m", port=other.getsockname()[1]), "cannot listen")


def test_a_port_is_taken_before_anybody_listens_there() -> None:
    with bind(ServeConfig(model="m", port=0)) as first:
        refuse_before_loading(ServeConfig(model="m", port=first.getsockname()[1]), "cannot listen")


def test_a_unix_socket_left_behind_is_taken_over(tmp_path: Path) -> None:
    config = ServeConfig(model="m", uds=str(tmp_path / "engine.sock"))
    with bind(config):  # still loading: bound, and nobody answers
        refuse_before_loading(config, "cannot listen")
    bind(config).close()


@pytest.mark.parametrize(
    "where",
    [
        {"host": "a" * 64},
        {"host": "a\0b"},
        {"host": "no.such.name.invalid"},
        {"uds": "a" * 200},
        {"uds": "/"},
    ],
)
def test_a_place_where_nobody_can_listen_is_refused(where: dict[str, str]) -> None:
    refuse_before_loading(ServeConfig.model_validate({"model": "m", **where}), "cannot listen")


@pytest.mark.parametrize("where", ["host", "uds"])
def test_what_could_not_be_bound_is_closed(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[socket.socket] = []

    class Kept(socket.socket):
        def bind(self, address: object) -> None:
            made.append(self)
            super().bind(address)  # type: ignore[arg-type]

    monkeypatch.setattr(server, "socket", SimpleNamespace(**{**vars(socket), "socket": Kept}))
    config = ServeConfig.model_validate({"model": "m", where: "192.0.2.1" if where == "host" else "/"})
    with pytest.raises(ConfigError):
        bind(config)
    assert [one.fileno() for one in made] == [-1]


def test_a_file_that_is_no_socket_stays(tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    refuse_before_loading(ServeConfig(model="m", uds=str(notes)), "cannot listen")
    assert notes.read_text() == "mine"
