import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from camshaft.core.errors import ModelError
from camshaft.core.model.loading import open_weights

A = {"a.weight": torch.arange(12.0).reshape(3, 4), "b.weight": torch.ones(5, dtype=torch.bfloat16)}
B = {"c.weight": torch.arange(6, dtype=torch.float16)}


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    save_file(A, tmp_path / "model-00001-of-00002.safetensors")
    save_file(B, tmp_path / "model-00002-of-00002.safetensors")
    names = {name: f"model-0000{i}-of-00002.safetensors" for i, part in ((1, A), (2, B)) for name in part}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    return tmp_path


def _map(folder: Path, change) -> None:
    file = folder / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    change(index["weight_map"])
    file.write_text(json.dumps(index))


def test_shards_come_together_in_their_own_dtypes(sharded: Path) -> None:
    weights = open_weights(sharded)
    assert set(weights.names()) == {*A, *B}
    for name, expected in {**A, **B}.items():
        got = weights.get(name)
        assert got.dtype == expected.dtype
        assert torch.equal(got, expected)


def test_single_file_without_index(tmp_path: Path) -> None:
    save_file(A, tmp_path / "model.safetensors")
    assert torch.equal(open_weights(tmp_path).get("a.weight"), A["a.weight"])


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="is no file"):
        open_weights(tmp_path)


def test_a_header_nested_without_end(tmp_path: Path) -> None:
    header = b"[" * 50_000
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ModelError, match="not a usable safetensors file"):
        open_weights(tmp_path)


def test_tensors_lie_on_the_mapping(demo_model: Path) -> None:
    """Opening and taking every tensor must not read the file into private memory."""
    weights = open_weights(demo_model)

    def private_kib() -> int:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty"))

    before = private_kib()
    held = [weights.get(name) for name in weights.names()]
    total = sum(tensor.sum().item() for tensor in held)  # touches every page
    assert total == total
    size_kib = sum(tensor.nbytes for tensor in held) // 1024
    assert size_kib > 500_000
    assert private_kib() - before < size_kib // 10


def test_missing_shard_is_named(sharded: Path) -> None:
    (sharded / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match=r"1 of 2 shards missing: model-00002-of-00002.*'c\.weight'"):
        open_weights(sharded)


@pytest.mark.parametrize("keep", [4, 40, 180])
def test_truncated_shard_is_named(sharded: Path, keep: int) -> None:
    file = sharded / "model-00001-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ModelError, match="model-00001-of-00002") as caught:
        open_weights(sharded)
    assert "truncated" in str(caught.value)


def test_truncation_names_the_first_tensor_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file(A, file)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(
        ModelError, match=r"model\.safetensors: truncated: \d+ of \d+ bytes; tensor 'b\.weight'"
    ):
        open_weights(tmp_path)


def test_garbage_and_empty_files(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    for content in (b"", b"\x08\0\0\0\0\0\0\0notjson!", b"x" * 4096):
        file.write_bytes(content)
        with pytest.raises(ModelError, match=r"model\.safetensors"):
            open_weights(tmp_path)


def test_index_that_lies_about_a_tensor(sharded: Path) -> None:
    _map(sharded, lambda names: names.update({"c.weight": "model-00001-of-00002.safetensors"}))
    with pytest.raises(ModelError, match=r"model-00001-of-00002.safetensors: tensor 'c\.weight' is missing"):
        open_weights(sharded)


def test_index_must_stay_in_its_folder(sharded: Path) -> None:
    _map(sharded, lambda names: names.update({"c.weight": "../elsewhere.safetensors"}))
    with pytest.raises(ModelError, match="unusable file"):
        open_weights(sharded)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"weight_map": {}}', '{"weight_map": []}', '{"metadata": {"total_size": NaN}}']
)
def test_unusable_index_is_named(sharded: Path, text: str) -> None:
    (sharded / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ModelError, match=r"model\.safetensors\.index\.json"):
        open_weights(sharded)


def test_unknown_tensor_names_the_nearest(sharded: Path) -> None:
    with pytest.raises(ModelError, match=r"no tensor 'a\.weigth'.*a\.weight"):
        open_weights(sharded).get("a.weigth")


def test_pickles_are_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin is a pickle"):
        open_weights(tmp_path)


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such model folder"):
        open_weights(tmp_path / "absent")
