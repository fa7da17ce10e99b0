"""What the comments of a serving preset say in figures is what the code computes; no figure goes unchecked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

import camshaft
from camshaft.core.arithmetic.memory import GIB, MemoryBudget
from camshaft.core.arithmetic.sizes import WeightBytes
from camshaft.core.config import load_config, preset_names, resolve
from camshaft.core.config.fit import find_shape, memory_of
from camshaft.core.config.hardware import Hardware
from camshaft.core.workload import load_workload
from camshaft.diagnostics.cost.hardware import load_hardware
from camshaft.diagnostics.cost.step import StepCost
from camshaft.diagnostics.simulate.prepare import Prepared, prepare

FOLDER = Path(camshaft.__file__).parent / "presets" / "serving"
GPUS = {"h100": "H100", "h200": "H200", "a100": "A100 80GB"}
ON_GPU = [name for name in preset_names() if name != "cpu-demo"]


def number(text: str) -> float:
    return float(text.replace(",", ""))


def written_as(said: str, real: float, *, within: float = 0.0) -> bool:
    """Whether `said` is `real` rounded as it is written, or within a share of it."""
    digits = len(said.partition(".")[2])
    half = 0.5 * 10**-digits if "." in said or real < 1000 else 0.005 * real
    return abs(number(said) - real) <= max(half * 1.001, within * real)


@dataclass(frozen=True)
class Facts:
    """A preset on the device it names."""

    prepared: Prepared

    @property
    def budget(self) -> MemoryBudget:
        return self.prepared.budget

    @property
    def cost(self) -> StepCost:
        assert isinstance(self.prepared.cost, StepCost)
        return self.prepared.cost

    @property
    def read_bytes(self) -> int:
        return WeightBytes(**self.budget.weights).read_by_one_token(self.prepared.shape)

    def read_ms(self, size: float) -> float:
        return size / (self.prepared.hardware.memory_bandwidth_gb_s * 1e6)

    def tokens_per_s(self, batched: int) -> float:
        """Output of the chat load with as many clients as there are slots."""
        load = load_workload("chat").at_concurrency(self.prepared.settings.max_num_seqs).first(512)
        turned = self.prepared.turned(max_num_batched_tokens=batched)
        return turned.replay(load).result.throughput_output_tokens_per_s


def holds(budget: MemoryBudget, count: str, length: str) -> bool:
    """So many sequences fit, and so many of 4 % more tokens, or one more of them, do not."""
    many, tokens = int(number(count)), int(number(length))
    return budget.sequences(tokens) >= many and (
        budget.sequences(tokens) == many or budget.sequences(1.04 * tokens) < many
    )


MEMORY: dict[str, Callable[[MemoryBudget, re.Match[str]], bool]] = {
    r"([\d.]+) GiB of weights": lambda b, m: written_as(m[1], b.weights_bytes / GIB),
    r"([\d.]+) GiB of KV cache": lambda b, m: written_as(m[1], b.kv_bytes / GIB),
    r"holds ([\d,]+) tokens": lambda b, m: written_as(m[1], b.kv_tokens),
    r"holds ([\d.]+) million tokens": lambda b, m: written_as(m[1], b.kv_tokens / 1e6),
    r"(\d+) KiB a token": lambda b, m: written_as(m[1], b.bytes_per_token / 1024),
    r"([\d,]+) sequences of ([\d,]+) tokens, or (\d+) of ([\d,]+)": lambda b, m: (
        holds(b, m[1], m[2]) and holds(b, m[3], m[4])
    ),
}

TIMES: dict[str, Callable[[Facts, re.Match[str]], bool]] = {
    r"reads ([\d.]+) GB of weights(?: on each GPU)? in ([\d.]+) ms at best": lambda f, m: (
        written_as(m[1], f.read_bytes / 1e9) and written_as(m[2], f.read_ms(f.read_bytes))
    ),
    r"step of one sequence takes about ([\d.]+) ms, one of (\d+) sequences about (\d+) ms": lambda f, m: (
        written_as(m[1], f.cost.decode_step(1, 1000).total, within=0.05)
        and written_as(m[3], f.cost.decode_step(int(m[2]), 1000).total, within=0.05)
    ),
    r"cache of (\d+) sequences of ([\d,]+) tokens is read in ([\d.]+) ms": lambda f, m: written_as(
        m[3], f.read_ms(int(m[1]) * number(m[2]) * f.budget.bytes_per_token)
    ),
    r"a chunk of ([\d,]+) tokens takes about (\d+) ms(?:, one of (\d+) about (\d+) ms)?": lambda f, m: all(
        written_as(ms, f.cost.prefill_step(int(number(tokens))).total, within=0.05)
        for tokens, ms in ((m[1], m[2]), (m[3], m[4]))
        if tokens
    ),
    r"(twice|four times) as many gain (nothing|\d+ %)": lambda f, m: gains(f, m[1], m[2]),
    r"([\d.,]+|none) would leave ([\d.]+) GiB of cache": lambda f, m: would_leave(f, m),
    r"([\d,]+), of which the cache would hold (\d+)": lambda f, m: holds(f.budget, m[2], m[1]),
    r"BF16 weights alone would be (\d+) GiB": lambda f, m: written_as(
        m[1], f.prepared.turned(quantization="none").budget.weights_bytes / GIB
    ),
}

# Figures that stand in a comment and are no computation of ours: names, and what others measured.
NAMES = (
    r"Llama 3\.\d",
    r"Measured by others under vLLM, 64 at once, prompts and answers of 1,000 tokens: 28\.8 ms",
    r"30 layers x 2 x 3 heads x 64 x 4 bytes",
    r"4 GB to spare",
    r"8 to 10 decode steps",
    r"a chunk of 256 tokens",
    r"half the model's 8,192",
    r"no answer is longer than 1,024 tokens",
)


def gains(facts: Facts, times: str, said: str) -> bool:
    now = facts.prepared.settings.max_num_batched_tokens
    more = facts.tokens_per_s(now * {"twice": 2, "four times": 4}[times]) / facts.tokens_per_s(now) - 1
    return more < 0.005 if said == "nothing" else abs(more - int(said.partition(" ")[0]) / 100) < 0.01


def would_leave(facts: Facts, found: re.Match[str]) -> bool:
    knob = found.string[: found.start()].rpartition("|")[2].partition(":")[0]
    value = "none" if found[1] == "none" else yaml.safe_load(found[1].replace(",", ""))
    return written_as(found[2], facts.prepared.turned(**{knob: value}).budget.kv_bytes / GIB)


def comments(name: str) -> str:
    """All comments in one line; one that ends a knob's line as `|knob: comment`."""
    parts: list[str] = []
    for line in (FOLDER / f"{name}.yaml").read_text().splitlines():
        knob, mark, comment = line.partition("#")
        if mark:
            parts.append(f"|{knob.partition(':')[0]}: {comment.strip()}" if knob else comment.strip())
    return " ".join(parts)


def unsaid(text: str, rules: Mapping[str, Callable[[re.Match[str]], bool]]) -> str:
    """The text without what the rules found true. Fails with the first phrase that is not."""
    for pattern, true in rules.items():
        for found in re.finditer(pattern, text):
            assert true(found), f"wrong: {found[0]}"
        text = re.sub(pattern, " ", text)
    for pattern in NAMES:
        text = re.sub(pattern, " ", text)
    return text


def figures(text: str) -> list[str]:
    """Numbers that are no part of a word such as BF16 or h100-70b.yaml."""
    return re.findall(r"(?<![\w.,-])\d[\d.,]*(?![\w-])", text)


@pytest.mark.parametrize("name", ON_GPU)
def test_each_figure_of_a_gpu_presets_comments_is_what_the_code_computes(name: str) -> None:
    gpu = load_hardware(GPUS[name.split("-")[0]])
    facts = Facts(prepare(load_config(name, purpose="inspect"), gpu))
    assert facts.budget.fits
    text = comments(name)
    for pattern in list(MEMORY)[:2] + list(MEMORY)[4:]:
        assert re.search(pattern, text), f"it does not say: {pattern}"
    rules = {p: (lambda m, true=true: true(facts.budget, m)) for p, true in MEMORY.items()}
    rules |= {p: (lambda m, true=true: true(facts, m)) for p, true in TIMES.items()}
    assert figures(unsaid(text, rules)) == []


def test_each_figure_of_the_cpu_presets_comments_is_what_the_code_computes() -> None:
    loaded = load_config("cpu-demo")
    machine = Hardware(kind="cpu", name="cpu", memory_bytes=8 * GIB)
    shape = find_shape(loaded.config.model)
    assert shape is not None
    budget = memory_of(resolve(loaded, machine, shape), machine, shape)
    assert budget.fits
    rules = {p: (lambda m, true=true: true(budget, m)) for p, true in MEMORY.items()}
    assert figures(unsaid(comments("cpu-demo"), rules)) == []


@pytest.mark.parametrize("name", ON_GPU)
def test_each_knob_of_a_gpu_preset_that_is_a_choice_says_why(name: str) -> None:
    lines = (FOLDER / f"{name}.yaml").read_text().splitlines()
    for knob in (
        "gpu_memory_utilization",
        "max_num_seqs",
        "max_num_batched_tokens",
        "quantization",
        "kv_cache_dtype",
    ):
        written = [line for line in lines if line.startswith(f"{knob}:")]
        assert all("# " in line for line in written), knob
