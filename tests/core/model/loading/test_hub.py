import os
from pathlib import Path

import pytest

from camshaft.core.errors import ModelError
from camshaft.core.json_files import read_json
from camshaft.core.model.loading import hub
from camshaft.kernels.cache_folder import cache_root


def test_a_folder_is_itself(tiny_llama: Path) -> None:
    assert hub.locate(tiny_llama) == tiny_llama
    assert hub.locate(str(tiny_llama)) == tiny_llama


def test_a_hub_id_is_found_in_the_hub_cache(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants

    repository = tmp_path / "models--owner--name"
    snapshot = repository / "snapshots" / "0123456789abcdef0123456789abcdef01234567"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(snapshot.name)
    for file in tiny_llama.iterdir():
        (snapshot / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    assert hub.locate("owner/name", allow_download=False) == snapshot
    with pytest.raises(
        ModelError, match="owner/other: not in the local hub cache, and downloading is not allowed"
    ):
        hub.locate("owner/other", allow_download=False)


def test_an_unreachable_hub_is_an_error_of_one_line() -> None:
    with pytest.raises(
        ModelError, match="owner/absent: not in the local hub cache, and the hub cannot be reached"
    ) as e:
        hub.locate("owner/absent")
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smollm2-135m-instrukt", "did you mean smollm2-135m-instruct?"),
        ("gpt-9", "demo models: smollm2-135m-instruct"),
        ("/no/such/folder", "no such folder or file"),
        ("", "no config.json"),
    ],
)
def test_a_name_that_is_nothing(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=message):
        hub.locate(name)


def test_folders_that_hold_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json and no \.gguf"):
        hub.locate(tmp_path)
    (tmp_path / "note.txt").write_text("")
    with pytest.raises(ModelError, match=r"neither a model folder nor a \.gguf file"):
        hub.locate(tmp_path / "note.txt")
    os.mkfifo(tmp_path / "pipe.gguf")  # opening it would wait for ever
    with pytest.raises(ModelError, match=r"no config\.json and no \.gguf"):
        hub.locate(tmp_path)
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_text("")
    with pytest.raises(ModelError, match=r"several GGUF files \(a\.gguf, b\.gguf\); name the one"):
        hub.locate(tmp_path)


def test_the_cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CAMSHAFT_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_root() == tmp_path / ".cache" / "camshaft"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_root() == tmp_path / ".cache" / "camshaft"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_root() == Path("/xdg/camshaft")
    monkeypatch.setenv("CAMSHAFT_CACHE", "~/own")
    assert cache_root() == tmp_path / "own"


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"a": NaN}', '{"a": -Infinity}', "\xff", "[" * 100_000])
def test_json_is_read_strictly(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelError, match=r"config\.json: "):
        read_json(file)
