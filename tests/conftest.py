"""Fixtures for every test: the demo model, and tiny random models built with transformers.

Nothing is skipped for want of a model: where the demo model can be neither found nor pulled, the tests
that need it fail with the reason.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

os.environ.setdefault(
    "HF_HUB_OFFLINE", "1"
)  # what a test needs is local; an attempt to download is a mistake
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

DEMO_MODEL = "smollm2-135m-instruct"

# What the tiny models share. The spread of the weights keeps greedy choices far from ties.
_TINY: dict[str, Any] = {
    "vocab_size": 384,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 2048,
    "initializer_range": 0.15,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 257,
    "dtype": "float32",
}
_OVERRIDES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "mistral": {"sliding_window": None},
    "qwen2": {"tie_word_embeddings": False},
    "qwen3": {"head_dim": 32, "tie_word_embeddings": True},
}

TinyModelMaker = Callable[..., Path]


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """Folder of SmolLM2-135M-Instruct, from the cache or pulled now."""
    from camshaft.core.model.loading.hub import locate

    return locate(DEMO_MODEL)


@pytest.fixture(scope="session")
def make_tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModelMaker:
    """`make(kind, **config)`: folder of a random model of a transformers model type, with weights and tokenizer.

    The same arguments give the same folder, which must not be changed.
    """
    made: dict[str, Path] = {}

    def make(kind: str, **config: Any) -> Path:
        key = repr((kind, sorted(config.items())))
        if key not in made:
            made[key] = tmp_path_factory.mktemp(f"tiny-{kind}-")
            _write_tiny(made[key], kind, config)
        return made[key]

    return make


@pytest.fixture(scope="session")
def tiny_llama(make_tiny_model: TinyModelMaker) -> Path:
    return make_tiny_model("llama")


@pytest.fixture(scope="session")
def tiny_mistral(make_tiny_model: TinyModelMaker) -> Path:
    return make_tiny_model("mistral")


@pytest.fixture(scope="session")
def tiny_qwen2(make_tiny_model: TinyModelMaker) -> Path:
    return make_tiny_model("qwen2")


@pytest.fixture(scope="session")
def tiny_qwen3(make_tiny_model: TinyModelMaker) -> Path:
    return make_tiny_model("qwen3")


@pytest.fixture(scope="session")
def write_gguf() -> Callable[..., None]:
    """`write(model folder, file, kind, qtype=float32, extra tensors=None)` writes a tiny model as GGUF."""
    return _write_gguf


def _write_tiny(folder: Path, kind: str, config: dict[str, Any]) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    settings = {**_TINY, **_OVERRIDES.get(kind, {}), **config}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **settings))
    with torch.no_grad():  # biases and norms start at 0 and 1, which would hide a mistake in either
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                weight.normal_(0.0, 0.1)
            elif weight.dim() == 1:
                weight.uniform_(0.5, 1.5)
    model.save_pretrained(folder)
    _write_byte_tokenizer(folder)


def _write_byte_tokenizer(folder: Path) -> None:
    """A token a byte (ids 0 to 255), then specials; a ChatML template."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    tokenizer.add_special_tokens(["<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>"])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|bos|>",
        eos_token="<|eos|>",
        pad_token="<|eos|>",
        chat_template=(
            "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
        ),
    ).save_pretrained(folder)


def _interleave(weight: Any, heads: int) -> Any:
    """The row order that conversion to GGUF gives q and k of llama: halves to neighbouring pairs."""
    out = weight.copy()
    size = weight.shape[0] // heads
    for head in range(heads):
        for i in range(size // 2):
            out[head * size + 2 * i] = weight[head * size + i]
            out[head * size + 2 * i + 1] = weight[head * size + size // 2 + i]
    return out


def _write_gguf(
    model: Path, file: Path, kind: str, qtype: Any = None, extra: dict[str, Any] | None = None
) -> None:
    """Writes a model folder with the tiny tokenizer as GGUF, as llama.cpp's converter would; float32 unless a `qtype`."""
    import gguf
    from gguf import GGMLQuantizationType
    from safetensors.torch import load_file

    qtype = GGMLQuantizationType.F32 if qtype is None else qtype
    config = json.loads((model / "config.json").read_text())
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[kind.upper()], config["num_hidden_layers"])
    writer = gguf.GGUFWriter(file, kind)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    _add_tokenizer(writer, model, config["vocab_size"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, tensor in load_file(model / "model.safetensors").items():
        values = tensor.numpy()
        part = name.split(".")[-2]
        if kind == "llama" and part in heads:
            values = _interleave(values, heads[part])
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert target
        small = values.ndim == 1
        writer.add_tensor(
            target,
            values if small else gguf.quantize(values, qtype),
            raw_dtype=GGMLQuantizationType.F32 if small else qtype,
        )
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: Any, model: Path, vocab_size: int) -> None:
    vocab = json.loads((model / "tokenizer.json").read_text())
    tokens = {i: t for t, i in vocab["model"]["vocab"].items()}
    tokens |= {entry["id"]: entry["content"] for entry in vocab["added_tokens"]}
    listed = [tokens.get(i, f"[unused{i}]") for i in range(vocab_size)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(listed)
    writer.add_token_types([3 if 256 <= i < 260 else 1 for i in range(vocab_size)])
    writer.add_token_merges(["a b"] if "ab" in listed else [])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(257)
    writer.add_chat_template("{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}")
