"""Weights from a GGUF file, dequantised tensor by tensor, under their Hugging Face names.

The `gguf` package reads and dequantises. Conversion to GGUF interleaves the rows of llama's q and k
projections, because its rope rotates neighbouring pairs while Hugging Face's rotates halves (llama.cpp,
conversion of LlamaForCausalLM); here they are put back. Qwen2 and Qwen3 are stored as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ModelError

if TYPE_CHECKING:
    import torch
    from gguf import GGUFReader, ReaderTensor

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# The factors of rope scaling, which the configuration holds too.
_DERIVED = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
_NAME = re.compile(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)")


def open_gguf(file: Path) -> GGUFReader:
    """A reader over the mapped file. Raises ModelError naming the file and, if one is cut off, the tensor."""
    from gguf import GGUFReader

    try:
        return GGUFReader(file)
    except (FileNotFoundError, IsADirectoryError) as error:
        raise ModelError(f"{file}: no such file") from error
    except Exception as error:  # the package raises whatever its parsing trips over
        raise ModelError(f"{file}: {_diagnosis(file) or _unusable(file, error)}") from error


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """While a file's metadata is taken at its word. Raises ModelError where it lies, whatever that trips."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ModelError(f"{file}: unusable metadata: {type(error).__name__}: {error}") from error


def field(reader: GGUFReader, key: str, default: Any = None) -> Any:
    """The value of a metadata key as a plain Python value, or `default`."""
    found = reader.get_field(key)
    return default if found is None else found.contents()


def architecture(reader: GGUFReader, file: Path) -> str:
    """`general.architecture`. Raises ModelError unless it is one whose tensors can be mapped."""
    arch = field(reader, "general.architecture")
    if arch not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ModelError(
            f"{file}: GGUF architecture {arch!r} is not supported (supported: {known}); "
            f"use the model's safetensors instead"
        )
    parts = field(reader, "split.count", 0)
    if parts > 1:
        raise ModelError(f"{file}: is one of {parts} parts; join them first (llama.cpp: gguf-split --merge)")
    if field(reader, f"{arch}.expert_count", 0):
        raise ModelError(
            f"{file}: mixture-of-experts GGUF is not supported; use the model's safetensors instead"
        )
    return arch


def hugging_face_name(name: str) -> str | None:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; None for an unknown tensor."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    block, part, kind = match.groups()
    if block is None:
        return f"{_TOP[part]}.{kind}" if part in _TOP else None
    return f"model.layers.{block}.{_BLOCK[part]}.{kind}" if part in _BLOCK else None


class GgufWeights:
    """Weight source over one GGUF file; a tensor is dequantised to float32 when it is asked for."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.reader = open_gguf(file)
        with reading(file):
            self._arch = architecture(self.reader, file)
            heads = int(field(self.reader, f"{self._arch}.attention.head_count", 0))
            kv_heads = int(field(self.reader, f"{self._arch}.attention.head_count_kv", heads))
        self._interleaved = {"q_proj": heads, "k_proj": kv_heads} if self._arch == "llama" else {}
        self._tensors: dict[str, ReaderTensor] = {}
        for tensor in self.reader.tensors:
            name = hugging_face_name(tensor.name)
            if name is not None:
                self._tensors[name] = tensor
            elif tensor.name not in _DERIVED:
                raise ModelError(f"{file}: tensor {tensor.name!r} is unknown to architecture {self._arch!r}")

    def names(self) -> Iterable[str]:
        return self._tensors.keys()

    def file_of(self, name: str) -> Path:
        """The file that holds a tensor. Raises ModelError if none does."""
        if name not in self._tensors:
            raise ModelError(f"{self.file}: no tensor for {name!r}")
        return self.file

    def size_bytes(self, name: str) -> int:
        """Bytes of the tensor once it is dequantised."""
        return int(self._tensors[name].n_elements) * 4

    def array(self, name: str) -> np.ndarray:
        """float32, in Hugging Face's shape and row order. Raises ModelError naming file and tensor."""
        from gguf import dequantize

        self.file_of(name)
        tensor = self._tensors[name]
        try:
            values = dequantize(tensor.data, tensor.tensor_type)
            heads = next((n for part, n in self._interleaved.items() if f".{part}." in name), 0)
            return _halves(values, heads) if heads else np.ascontiguousarray(values, dtype=np.float32)
        except (NotImplementedError, ValueError) as error:
            kind = tensor.tensor_type.name
            raise ModelError(
                f"{self.file}: tensor {tensor.name!r} ({kind}) is unreadable: {error}"
            ) from error

    def get(self, name: str) -> torch.Tensor:
        """float32 on the CPU, a fresh tensor."""
        import torch

        values = self.array(name)
        # An unquantised tensor is a read-only view of the mapping, which torch cannot express.
        return torch.from_numpy(values if values.flags.writeable else values.copy())


def _halves(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from neighbouring pairs (x0 y0 x1 y1 ...) to halves (x0 x1 ... y0 y1 ...)."""
    pairs = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(values.shape))


def _unusable(file: Path, error: Exception) -> str:
    """What is wrong with a file that has no whole header."""
    with file.open("rb") as handle:
        magic = handle.read(4)
    size = file.stat().st_size
    if magic != b"GGUF":
        return f"not a GGUF file ({size} bytes)"
    if isinstance(error, IndexError | ValueError) and "version" not in str(error):
        # What the package says here is what numpy said where its parsing left the mapping.
        return f"its header cannot be read to its end ({size} bytes): truncated or damaged"
    return f"not a usable GGUF file: {error}"


def _diagnosis(file: Path) -> str:
    """The first tensor that lies beyond the end of the file; empty if that is not what is wrong."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader

    class Headers(GGUFReader):
        infos: list[tuple[int, str]]

        def _build_tensors(self, start_offs: int, fields: list[Any]) -> None:
            self.infos = []
            for info in fields:
                _, name, _, dims, kind, offset = info.parts
                block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind[0])]
                end = int(start_offs + offset[0]) + int(np.prod(dims)) * size // block
                self.infos.append((end, bytes(name).decode("utf-8", "replace")))

    try:
        size = file.stat().st_size
        infos = Headers(file).infos
    except Exception:  # a broken header has no tensors to name
        return ""
    lost = sorted((end, name) for end, name in infos if end > size)
    if not lost:
        return ""
    return f"truncated: {size} of {max(lost)[0]} bytes; tensor {lost[0][1]!r} is the first of {len(lost)} cut off"
