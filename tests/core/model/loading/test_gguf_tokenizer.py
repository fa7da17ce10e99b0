"""Tokenizers rebuilt from GGUF metadata against the libraries they came from."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer

from camshaft.core.errors import ModelError
from camshaft.core.model.loading.folder import write_side_files
from camshaft.core.model.loading.gguf import GgufWeights, open_gguf
from camshaft.core.model.loading.gguf_tokenizer import tokenizer_from_gguf

CORPUS = [
    "The quick brown fox jumps over the lazy dog.",
    "Pack my box with five dozen liquor jugs; how vexingly quick daft zebras jump!",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "def main(argv):\n    for i in range(10):\n        print(i, argv[i])\n",
    "In 2024 the price rose from 1,234.50 to 98765.",
] * 20
TEXTS = [
    "The fox jumps over 12345 dogs.",
    "  two spaces, then\ttab\n\n\nand lines  ",
    "großer Käse, naïve café",
    "日本語 and 😀 fall back to bytes",
    "I'll won't they're IT'S",
    "x",
    "",
]

Writer = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Writer:
    def make(kind: str, tokens: list[str], types: list[int], pre: str = "", **more: Any) -> Path:
        file = tmp_path / "vocabulary.gguf"
        writer = gguf.GGUFWriter(file, "llama")
        writer.add_tokenizer_model(kind)
        writer.add_token_list(tokens)
        writer.add_token_types(types)
        if pre:
            writer.add_tokenizer_pre(pre)
        for name, value in more.items():
            getattr(writer, f"add_{name}")(value)
        writer.add_tensor("token_embd.weight", np.zeros((len(tokens), 32), dtype=np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return file

    return make


def rebuild(file: Path) -> tuple[Tokenizer, dict[str, Any]]:
    return tokenizer_from_gguf(open_gguf(file), file)


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_gives_the_same_pieces(write: Writer, prefix: bool) -> None:
    """The file holds a small model trained by sentencepiece, and what sentencepiece makes of each text."""
    held = json.loads((Path(__file__).parent / "data" / "sentencepiece_bpe.json").read_text(encoding="utf-8"))
    reference = held["with_prefix" if prefix else "without_prefix"]
    file = write(
        "llama",
        reference["pieces"],
        reference["types"],
        token_scores=reference["scores"],
        bos_token_id=1,
        eos_token_id=2,
        unk_token_id=0,
        add_space_prefix=prefix,
    )
    tokenizer, config = rebuild(file)
    assert set(reference["encoded"]) == {text for text in [*TEXTS, *CORPUS[:5]] if text}
    for text, ids in reference["encoded"].items():
        assert tokenizer.encode(text, add_special_tokens=False).ids == ids, text
        assert tokenizer.encode(text).ids[0] == 1  # Llama 2 begins every prompt with bos
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert (config["bos_token"], config["eos_token"], config["unk_token"]) == ("<s>", "</s>", "<unk>")


def _byte_level(digits: bool, pattern: str | None) -> tuple[Tokenizer, list[str], list[str]]:
    """A byte-level BPE trained by the tokenizers library; its vocabulary by id, and its merges."""
    from tokenizers import Regex, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from tokenizers.trainers import BpeTrainer

    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if digits else []
    if pattern:
        steps.append(pre_tokenizers.Split(Regex(pattern), "isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not pattern))
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=["<|end|>", "<|turn|>"], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    vocabulary = sorted(model["vocab"], key=model["vocab"].get)
    return tokenizer, vocabulary, [" ".join(pair) for pair in model["merges"]]


def _qwen2() -> str:
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    return PRETOKENIZE_REGEX


def _llama3() -> str:
    import inspect

    from transformers.convert_slow_tokenizer import TikTokenConverter

    return inspect.signature(TikTokenConverter).parameters["pattern"].default


@pytest.mark.parametrize(
    ("pre", "digits", "pattern"),
    [("gpt-2", False, None), ("smollm", True, None), ("qwen2", False, _qwen2), ("llama-bpe", False, _llama3)],
)
def test_byte_level_gives_the_same_ids(write: Writer, pre: str, digits: bool, pattern: Any) -> None:
    reference, vocabulary, merges = _byte_level(digits, pattern and pattern())
    types = [3 if token.startswith("<|") else 1 for token in vocabulary]
    file = write("gpt2", vocabulary, types, pre, token_merges=merges, bos_token_id=0, eos_token_id=1)
    tokenizer, _ = rebuild(file)
    for text in [*TEXTS, *CORPUS[:5], "<|turn|>a<|end|>"]:
        assert tokenizer.encode(text, add_special_tokens=False).ids == reference.encode(text).ids, text
        begins = tokenizer.encode(text).ids[:1] == [0]
        assert begins == (pre == "llama-bpe")  # Llama 3 begins every prompt with bos
        shown = tokenizer.decode(
            tokenizer.encode(text, add_special_tokens=False).ids, skip_special_tokens=False
        )
        assert shown == text


def test_what_the_file_says_about_bos_wins(write: Writer) -> None:
    _, vocabulary, merges = _byte_level(False, None)
    types = [1] * len(vocabulary)
    file = write("gpt2", vocabulary, types, "gpt-2", token_merges=merges, bos_token_id=0, add_bos_token=True)
    tokenizer, config = rebuild(file)
    assert tokenizer.encode("x").ids[0] == 0
    assert config["add_bos_token"] is True


@pytest.mark.parametrize(
    ("kind", "pre", "more", "message"),
    [
        ("bert", "", {}, "tokenizer model 'bert' is not supported"),
        ("gpt2", "martian", {}, "pre-tokenizer 'martian' is not supported.*smollm"),
        ("gpt2", "gpt-2", {"token_merges": ["ab"]}, "unusable merge 'ab'"),
        ("llama", "", {}, "'tokenizer.ggml.scores' does not match"),
        ("llama", "", {"token_scores": [1.0]}, "'tokenizer.ggml.scores' does not match"),
    ],
)
def test_what_cannot_be_rebuilt_is_refused(
    write: Writer, kind: str, pre: str, more: dict, message: str
) -> None:
    file = write(kind, ["a", "b", "ab"], [1, 1, 1], pre, **more)
    with pytest.raises(ModelError, match=message):
        rebuild(file)


@pytest.mark.parametrize(
    "lie",
    [
        {"context_length": 64, "embedding_length": 32, "head_count": 0},
        {"context_length": 2**31, "embedding_length": 32, "head_count": 4, "types": [1]},
        {"context_length": 64, "embedding_length": 32, "head_count": 4, "token_merges": [1, 2]},
    ],
)
def test_metadata_that_lies_is_refused_in_a_sentence(write: Writer, tmp_path: Path, lie: dict) -> None:
    sizes = {"block_count": 1, "feed_forward_length": 64, "head_count_kv": 2, "rope_freq_base": 1e4}
    more = {**sizes, "layer_norm_rms_eps": 1e-5, **lie}
    file = write("gpt2", ["a", "b", "ab"], more.pop("types", [1, 1, 1]), "gpt-2", **more)
    with pytest.raises(ModelError, match=r"vocabulary\.gguf: unusable metadata"):
        write_side_files(GgufWeights(file), tmp_path)
    assert not (tmp_path / "config.json").exists()


def test_merges_that_name_unknown_tokens_are_refused(write: Writer) -> None:
    file = write("gpt2", ["a", "b", "ab"], [1, 1, 1], "gpt-2", token_merges=["a c"])
    with pytest.raises(ModelError, match="tokenizer"):
        rebuild(file)
