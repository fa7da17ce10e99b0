"""A small random model, end to end: its greedy tokens against transformers', and a captured graph against eager."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from camshaft.core.arithmetic.shape import shape_from_config
from camshaft.core.model.batch import ForwardBatch, PagedCache
from camshaft.core.model.fallback import FallbackModel
from camshaft.core.model.registry import build
from camshaft.kernels import dispatch

from .check import TOLERANCE, Check, Place, compare, seed_all
from .mxfp4_checks import drawn

PAGE, BLOCKS = 16, 40
SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 384,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,
}
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"tie_word_embeddings": True},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    # Sinks and windows, in transformers' definition. Every expert is chosen, so that rounding chooses no other.
    "gpt_oss": {
        "num_attention_heads": 16, "num_local_experts": 4, "num_experts_per_tok": 4, "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention"],
    },
}  # fmt: skip
# The same on the project's own definition, its experts packed.
KINDS["gpt_oss_mxfp4"] = KINDS["gpt_oss"]
MIXTURES = frozenset({"mixtral"})


class Held:
    """Weights in memory, as a weight source."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def names(self) -> Iterable[str]:
        return self._tensors

    def get(self, name: str) -> torch.Tensor:
        return self._tensors[name]


def force_triton() -> None:
    """Lets every op take its Triton version on a CPU too, for a run through the interpreter.

    But those that round to FP8: the interpreter loses carries, 127.9 becomes 64, and no layer would be near itself.
    """
    load = dispatch.Dispatch._load
    lossy = ("quantize_rows",)
    dispatch.Dispatch._load = lambda self, is_cuda, dtype: load(self, self._name not in lossy, dtype)


def models(kind: str, place: Place, *, fp8: bool = False, **changes: Any) -> tuple[Any, Any]:
    """(transformers' model, ours) with the same random weights."""
    import tempfile
    from pathlib import Path

    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForCausalLM

    seed_all(7)
    packed = kind.endswith("_mxfp4")
    config = AutoConfig.for_model(kind.removesuffix("_mxfp4"), **{**SIZES, **KINDS[kind], **changes})
    theirs = AutoModelForCausalLM.from_config(config).float().eval()
    for name, weight in theirs.named_parameters():
        if name.endswith("sinks"):
            torch.nn.init.normal_(weight, std=2.0)
    experts = _drawn_in_mxfp4(theirs) if packed else {}
    with tempfile.TemporaryDirectory() as folder:  # saving gives the names that checkpoints have
        theirs.save_pretrained(folder)
        if kind == "gpt_oss":
            return theirs, FallbackModel(Path(folder), place.device, place.dtype)
        weights = {
            k: v.clone() for file in Path(folder).glob("*.safetensors") for k, v in load_file(file).items()
        }
    raw = {**config.to_dict(), "architectures": [type(theirs).__name__]}
    if packed:
        raw["quantization_config"] = {"quant_method": "mxfp4"}
    ours = build(
        shape_from_config(raw, kind), Held(weights | experts), place.device, place.dtype, quantize_fp8=fp8
    )
    return theirs, ours


def _drawn_in_mxfp4(theirs: Any) -> dict[str, torch.Tensor]:
    """Experts as a checkpoint of gpt-oss has them; transformers' model gets the same ones multiplied out."""
    stored = {}
    for name, weight in theirs.named_parameters():
        if name.endswith(("gate_up_proj", "down_proj")):
            experts, columns, rows = weight.shape
            made = drawn(Place(weight.device, weight.dtype), experts, rows, columns)
            weight.data = made.dense(torch.float32).transpose(1, 2).contiguous()
            stored |= {f"{name}_blocks": made.blocks, f"{name}_scales": made.scales}
    return stored


class Runner:
    """Sequences of one model in random pages, advanced by whole batches."""

    def __init__(self, model: Any, place: Place) -> None:
        shape = model.shape
        size = (BLOCKS, shape.num_kv_heads, PAGE, shape.head_dim)
        k, v = (
            [
                torch.full(size, float("nan"), dtype=place.dtype, device=place.device)
                for _ in range(shape.num_layers)
            ]
            for _ in range(2)
        )
        self.model, self.device, self.cache = model, place.device, PagedCache(k, v, PAGE)
        self.tables = torch.randperm(BLOCKS).view(4, -1).to(place.device, torch.int32)

    def batch(self, parts: list[tuple[int, list[int], int]]) -> ForwardBatch:
        """Of (row, tokens, position of the first); those of one token come first."""
        tokens = [t for _, part, _ in parts for t in part]
        positions = [first + i for _, part, first in parts for i in range(len(part))]
        tables = self.tables.cpu()
        slots = [
            int(tables[row, (first + i) // PAGE]) * PAGE + (first + i) % PAGE
            for row, part, first in parts
            for i in range(len(part))
        ]
        ends = torch.tensor([len(part) for _, part, _ in parts]).cumsum(0)
        starts = torch.cat([torch.zeros(1, dtype=torch.int64), ends])
        contexts = torch.tensor([first + len(part) for _, part, first in parts])
        where, rows = self.device, [row for row, _, _ in parts]
        return ForwardBatch(
            torch.tensor(tokens, device=where), torch.tensor(positions, device=where), torch.tensor(slots, device=where),
            starts.to(where, torch.int32), contexts.to(where, torch.int32), self.tables[rows], (ends - 1).to(where),
            sum(len(part) == 1 for _, part, _ in parts), max(len(part) for _, part, _ in parts), int(contexts.max()),
        )  # fmt: skip

    def __call__(self, parts: list[tuple[int, list[int], int]]) -> torch.Tensor:
        return self.model.forward(self.batch(parts), self.cache).clone()


def generate(runner: Runner, prompts: list[list[int]], steps: int) -> list[list[int]]:
    """Greedy tokens: the first prompt whole, the second in two chunks, the second of them beside a decode."""
    first, second = prompts
    cut = len(second) // 2
    logits = runner([(0, first, 0), (1, second[:cut], 0)])
    tokens = [[int(logits[0].argmax())], []]
    logits = runner([(0, tokens[0][-1:], len(first)), (1, second[cut:], cut)])
    for i in range(2):
        tokens[i].append(int(logits[i].argmax()))
    for _ in range(steps):
        parts = [(i, tokens[i][-1:], len(prompts[i]) + len(tokens[i]) - 1) for i in range(2)]
        logits = runner(parts)
        for i in range(2):
            tokens[i].append(int(logits[i].argmax()))
    return tokens


def logits_of(theirs: Any, prompt: list[int], generated: list[int]) -> torch.Tensor:
    """float32 [len(generated), vocab]: transformers' own, that each of these tokens was to be drawn from."""
    with torch.no_grad():
        logits = theirs(input_ids=torch.tensor([prompt + generated])).logits
    return logits[0, len(prompt) - 1 : -1].float()


def behind(logits: torch.Tensor, tokens: list[int], forbidden: list[int]) -> list[float]:
    """How far each token's logit lies below the largest of those allowed, in standard deviations."""
    allowed = logits.clone()
    allowed[:, forbidden] = -float("inf")
    chosen = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    return ((allowed.max(-1).values - chosen) / logits.std()).tolist()


def check_near(kind: str, distances: list[float], slack: float, place: Place) -> None:
    """All within `slack`. Of a mixture in 16 bits, all but an eighth: where a router stands between two experts,
    rounding takes either, and the other expert has another token in mind.
    """
    spare = len(distances) // 8 if kind in MIXTURES and place.dtype != torch.float32 else 0
    beyond = sum(not distance <= slack for distance in distances)
    assert beyond <= spare, f"{kind}: {beyond} of {len(distances)} beyond {slack}: {sorted(distances)[-8:]}"


def tokens(kind: str) -> Check:
    """Each greedy token of ours is transformers' own, or within rounding of it."""

    def run(place: Place) -> None:
        theirs, ours = models(kind, place)
        prompts = [torch.randint(0, 512, (count,)).tolist() for count in (21, 37)]
        found = generate(Runner(ours, place), prompts, 4)
        distances: list[float] = []
        for prompt, generated in zip(prompts, found, strict=True):
            distances += behind(logits_of(theirs, prompt, generated), generated, [])
        check_near(kind, distances, 1e-3 if place.dtype == torch.float32 else 0.15, place)

    return Check(f"tokens-{kind}", run)


def fp8_model() -> Check:
    """Weights quantised at load keep the logits close, in a model calm enough not to multiply what rounding does."""

    def run(place: Place) -> None:
        (_, exact), (_, narrow) = (
            models("llama", place, fp8=fp8, initializer_range=0.02) for fp8 in (False, True)
        )
        prompts = [(row, list(range(31 * row, 31 * row + 40)), 0) for row in range(3)]
        a, b = (Runner(model, place)(prompts) for model in (exact, narrow))
        error = float((a - b).norm() / a.norm())
        assert 0.001 < error < 0.15, f"relative error {error:.3f}"

    return Check("fp8-model", run)


def graph() -> Check:
    """A captured decode step, replayed with other tokens and lengths, equals the eager one; padding is inert."""

    def run(place: Place) -> None:
        _, model = models("llama", place)
        runner = Runner(model, place)
        runner([(0, list(range(30)), 0), (1, list(range(17)), 0), (2, list(range(9)), 0)])
        static = runner.batch([(0, [1], 30), (1, [2], 17), (2, [3], 9)])
        model.forward(static, runner.cache)  # compiles, and takes the scratch that the graph points to
        torch.cuda.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            out = model.forward(static, runner.cache)
        other = runner.batch([(0, [9], 31), (1, [8], 18), (2, [7], 10)])
        expected = model.forward(other, runner.cache).clone()
        for name in ("tokens", "positions", "slots", "context_lens", "block_tables"):
            getattr(static, name).copy_(getattr(other, name))
        captured.replay()
        compare(out, expected, TOLERANCE[place.dtype])
        static.context_lens[2], static.slots[2] = 0, -1
        captured.replay()
        compare(out[:2], expected[:2], TOLERANCE[place.dtype])

    return Check("graph-equals-eager", run)


ANYWHERE = [tokens(kind) for kind in KINDS]
ON_A_GPU = [fp8_model(), graph()]
