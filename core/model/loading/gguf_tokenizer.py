"""A Hugging Face `tokenizer.json` and `tokenizer_config.json` from the tokenizer in a GGUF file.

GGUF names a pre-tokenizer (`tokenizer.ggml.pre`) and holds vocabulary, merges and scores; how each name
splits text is from llama.cpp's `llama-vocab.cpp` and the `tokenizer.json` files of the models themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from ...errors import ModelError
from .gguf import field

if TYPE_CHECKING:
    from gguf import GGUFReader

# gguf.TokenType
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4

_GPT4_LIKE = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class _Split:
    """How text is cut before byte-level BPE."""

    pattern: str | None = None  # None is GPT-2's own expression
    digits: bool = False  # each digit by itself, before the expression
    nfc: bool = False
    ignore_merges: bool = False  # a whole word in the vocabulary needs no merges
    add_bos: bool = False


_LLAMA3 = _Split(pattern=_GPT4_LIKE % "{1,3}", ignore_merges=True, add_bos=True)
_QWEN2 = _Split(pattern=_GPT4_LIKE % "", nfc=True)
_SPLITS = {
    "gpt-2": _Split(),
    "phi-2": _Split(),
    "smollm": _Split(digits=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
}


def tokenizer_from_gguf(reader: GGUFReader, file: Path) -> tuple[Tokenizer, dict[str, Any]]:
    """The tokenizer, and what `tokenizer_config.json` would hold. Raises ModelError."""
    tokens = field(reader, "tokenizer.ggml.tokens")
    if not tokens:
        raise ModelError(f"{file}: holds no tokenizer ('tokenizer.ggml.tokens' is missing)")
    kind = field(reader, "tokenizer.ggml.model")
    if kind == "gpt2":
        tokenizer, add_bos = _byte_level(reader, file, tokens)
    elif kind == "llama":
        tokenizer, add_bos = _sentencepiece(reader, file, tokens), True
    else:
        raise ModelError(f"{file}: tokenizer model {kind!r} is not supported (supported: gpt2, llama)")
    types = field(reader, "tokenizer.ggml.token_type") or [1] * len(tokens)
    for special in (True, False):
        wanted = (_CONTROL, _UNKNOWN) if special else (_USER_DEFINED,)
        added = [
            AddedToken(t, special=special, normalized=False)
            for t, k in zip(tokens, types, strict=True)
            if k in wanted
        ]
        tokenizer.add_special_tokens(added) if special else tokenizer.add_tokens(added)
    config = _tokenizer_config(reader, tokens, field(reader, "tokenizer.ggml.add_bos_token", add_bos))
    if config["add_bos_token"] and config.get("bos_token"):
        bos = config["bos_token"]
        tokenizer.post_processor = processors.Sequence(  # type: ignore[assignment]
            [
                *([tokenizer.post_processor] if tokenizer.post_processor else []),
                processors.TemplateProcessing(
                    single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokens.index(bos))]
                ),
            ]
        )
    return tokenizer, config


def _byte_level(reader: GGUFReader, file: Path, tokens: list[str]) -> tuple[Tokenizer, bool]:
    pre = field(reader, "tokenizer.ggml.pre", "")
    split = _SPLITS.get(pre)
    if split is None:
        known = ", ".join(_SPLITS)
        raise ModelError(f"{file}: pre-tokenizer {pre!r} is not supported (supported: {known})")
    merges = [_pair(merge, file) for merge in field(reader, "tokenizer.ggml.merges", [])]
    vocab = {token: i for i, token in enumerate(tokens)}
    try:
        model = BPE(vocab=vocab, merges=merges, ignore_merges=split.ignore_merges)
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"{file}: its tokenizer is unusable: {error}") from error
    tokenizer = Tokenizer(model)
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if split.digits else []
    if split.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(split.pattern), "isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split.pattern is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)  # type: ignore[assignment]
    if split.nfc:
        tokenizer.normalizer = normalizers.NFC()  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    return tokenizer, split.add_bos


def _pair(merge: str, file: Path) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not left or not right:
        raise ModelError(f"{file}: unusable merge {merge!r} in 'tokenizer.ggml.merges'")
    return left, right


def _sentencepiece(reader: GGUFReader, file: Path, tokens: list[str]) -> Tokenizer:
    """SentencePiece BPE: the merges follow from the scores, unknown characters fall back to bytes."""
    scores = field(reader, "tokenizer.ggml.scores")
    if not scores or len(scores) != len(tokens):
        raise ModelError(f"{file}: 'tokenizer.ggml.scores' does not match the {len(tokens)} tokens")
    vocab = {token: i for i, token in enumerate(tokens)}
    unknown = field(reader, "tokenizer.ggml.unknown_token_id", 0)
    model = BPE(
        vocab=vocab,
        merges=merges_from_scores(tokens, scores),
        unk_token=tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    prefix = field(reader, "tokenizer.ggml.add_space_prefix", True)
    steps: list[Any] = [normalizers.Prepend("▁")] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])  # type: ignore[assignment]
    undo: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix:
        undo.append(decoders.Strip(content=" ", left=1))
    tokenizer.decoder = decoders.Sequence(undo)  # type: ignore[assignment]
    return tokenizer


def merges_from_scores(tokens: list[str], scores: list[float]) -> list[tuple[str, str]]:
    """Every way to join two pieces into a third, best score of the result first.

    SentencePiece joins the neighbouring pair whose union has the highest score, which is what BPE
    does with this order of merges.
    """
    rank = {token: i for i, token in enumerate(tokens)}
    found: list[tuple[float, int, int, str, str]] = []
    for token, score in zip(tokens, scores, strict=True):
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in rank and right in rank:
                found.append((-score, rank[left], rank[right], left, right))
    return [(left, right) for *_, left, right in sorted(found)]


def _tokenizer_config(reader: GGUFReader, tokens: list[str], add_bos: bool) -> dict[str, Any]:
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": bool(add_bos),
        "clean_up_tokenization_spaces": False,
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        found = field(reader, f"tokenizer.ggml.{key}_token_id")
        if found is not None and 0 <= int(found) < len(tokens):
            config[f"{name}_token"] = tokens[int(found)]
    length = field(reader, f"{field(reader, 'general.architecture')}.context_length")
    if length is not None:
        config["model_max_length"] = int(length)
    template = field(reader, "tokenizer.chat_template")
    if template:
        config["chat_template"] = template
    return config
