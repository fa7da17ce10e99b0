"""GGUF files are written here from tiny random models; transformers' own GGUF reader is the reference."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from camshaft.core.arithmetic.shape import read_shape
from camshaft.core.errors import ModelError
from camshaft.core.model.loading import hub, open_weights
from camshaft.core.model.loading.gguf import GgufWeights, hugging_face_name, open_gguf
from camshaft.core.model.loading.gguf_config import config_from_gguf
from camshaft.core.tokenizer import Tokenizer

KINDS = ("llama", "qwen2", "qwen3")
QTYPE = gguf.GGMLQuantizationType


@pytest.mark.parametrize("kind", KINDS)
def test_same_tensors_as_the_safetensors_it_was_made_from(
    make_tiny_model, write_gguf, tmp_path: Path, kind: str
) -> None:
    model = make_tiny_model(kind)
    write_gguf(model, tmp_path / "m.gguf", kind)
    weights = open_weights(tmp_path / "m.gguf")
    expected = load_file(model / "model.safetensors")
    assert set(weights.names()) == set(expected)
    for name, tensor in expected.items():
        assert torch.equal(weights.get(name), tensor), name


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_reads_the_same_tensors(make_tiny_model, write_gguf, tmp_path: Path, kind: str) -> None:
    from transformers import AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    model = make_tiny_model(kind)
    write_gguf(model, tmp_path / "m.gguf", kind, QTYPE.Q8_0)
    target = AutoModelForCausalLM.from_pretrained(model)
    reference = load_gguf_checkpoint(str(tmp_path / "m.gguf"), return_tensors=True, model_to_load=target)[
        "tensors"
    ]
    weights = GgufWeights(tmp_path / "m.gguf")
    assert set(weights.names()) == set(reference)
    for name in weights.names():
        torch.testing.assert_close(weights.get(name), reference[name], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("qtype", [QTYPE.F16, QTYPE.BF16, QTYPE.Q8_0, QTYPE.Q4_1, QTYPE.Q5_0])
def test_quantised_tensors_stay_near(make_tiny_model, write_gguf, tmp_path: Path, qtype: QTYPE) -> None:
    model = make_tiny_model("llama")
    write_gguf(model, tmp_path / "m.gguf", "llama", qtype)
    name = "model.layers.1.self_attn.q_proj.weight"
    got, expected = open_weights(tmp_path / "m.gguf").get(name), load_file(model / "model.safetensors")[name]
    assert got.dtype == torch.float32
    assert 0 < (got - expected).abs().max() < 0.08


@pytest.mark.parametrize("kind", KINDS)
def test_config_gives_the_shape_of_the_original(
    make_tiny_model, write_gguf, tmp_path: Path, kind: str
) -> None:
    model = make_tiny_model(kind)
    write_gguf(model, tmp_path / "m.gguf", kind)
    folder = hub.locate(tmp_path / "m.gguf")
    got, expected = read_shape(folder), read_shape(model)
    fields = [f for f in got.__dataclass_fields__ if f not in ("name", "raw", "sliding_window")]
    assert {f: getattr(got, f) for f in fields} == {f: getattr(expected, f) for f in fields}


def test_a_gguf_file_becomes_a_folder_without_a_second_copy(
    make_tiny_model, write_gguf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAMSHAFT_CACHE", str(tmp_path / "cache"))
    model = make_tiny_model("llama")
    write_gguf(model, tmp_path / "m.gguf", "llama")
    folder = hub.locate(tmp_path)  # the folder that holds one
    assert folder == hub.locate(tmp_path / "m.gguf")
    assert (folder / "model.gguf").resolve() == tmp_path / "m.gguf"
    assert "model.embed_tokens.weight" in set(open_weights(folder).names())
    tokenizer = Tokenizer(folder)
    assert tokenizer.eos_token_ids == (257,)
    assert tokenizer.decode(tokenizer.encode("añ 😀 12")) == "añ 😀 12"
    assert tokenizer.render_chat([{"role": "user", "content": "x"}]) == "<|im_start|>x<|im_end|>"


@pytest.mark.parametrize(("factor", "head_dim"), [(8.0, 64), (32.0, 64), (32.0, 128)])
def test_llama3_rope_scaling_is_recovered(
    make_tiny_model, write_gguf, tmp_path: Path, factor: float, head_dim: int
) -> None:
    """GGUF keeps only the divisors; they are computed here with transformers' own function."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    model = make_tiny_model(
        "llama", head_dim=head_dim, rope_parameters={"rope_type": "default", "rope_theta": 500000.0}
    )
    config = LlamaConfig(head_dim=head_dim, rope_parameters=rope, max_position_embeddings=131072)
    scaled = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))[0].numpy()
    plain = 1.0 / 500000.0 ** (np.arange(0, head_dim, 2) / head_dim)
    file = tmp_path / "m.gguf"
    write_gguf(model, file, "llama", extra={"rope_freqs.weight": (plain / scaled).astype(np.float32)})
    assert config_from_gguf(open_gguf(file), file)["rope_parameters"] == rope
    weights = GgufWeights(file)
    assert "rope_freqs.weight" not in set(weights.names())

    odd = tmp_path / "odd.gguf"
    write_gguf(
        model, odd, "llama", extra={"rope_freqs.weight": np.linspace(1, 9, head_dim // 2, dtype=np.float32)}
    )
    with pytest.raises(ModelError, match=r"odd\.gguf: 'rope_freqs\.weight' is not llama 3's scaling"):
        config_from_gguf(open_gguf(odd), odd)


HEADER = "its header cannot be read to its end"


def test_truncated_file_names_the_tensor(make_tiny_model, write_gguf, tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    write_gguf(make_tiny_model("qwen2"), file, "qwen2")
    last = open_gguf(file).tensors[-1].name
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) - 64])
    with pytest.raises(ModelError, match=rf"m\.gguf: truncated: .*tensor '{last}' is the first of 1 cut off"):
        open_weights(file)
    for keep, says in (
        (0, "not a GGUF"),
        (3, "not a GGUF"),
        (4, HEADER),
        (20, HEADER),
        (100, HEADER),
        (500, HEADER),
    ):
        file.write_bytes(whole[:keep])
        with pytest.raises(ModelError, match=rf"m\.gguf: {says}"):
            open_weights(file)


def test_what_cannot_be_mapped_is_refused(make_tiny_model, write_gguf, tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    write_gguf(make_tiny_model("llama"), file, "llama", extra={"blk.0.ssm_a.weight": np.ones(4, np.float32)})
    with pytest.raises(
        ModelError, match=r"tensor 'blk\.0\.ssm_a\.weight' is unknown to architecture 'llama'"
    ):
        open_weights(file)
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "mamba")
    writer.add_block_count(1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match=r"architecture 'mamba' is not supported.*llama, qwen2, qwen3"):
        open_weights(tmp_path / "other.gguf")


def test_names() -> None:
    assert hugging_face_name("blk.12.ffn_gate.weight") == "model.layers.12.mlp.gate_proj.weight"
    assert hugging_face_name("output.weight") == "lm_head.weight"
    assert hugging_face_name("blk.0.token_embd.weight") is None
    assert hugging_face_name("attn_q.weight") is None
