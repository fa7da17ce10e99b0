"""Numbers as people write them, as vLLM reads them; what is none of them is nobody's traceback."""

from __future__ import annotations

import pytest

from camshaft.core.config import load_config
from camshaft.core.errors import ConfigError
from camshaft.core.numerals import human_readable, human_readable_bytes
from camshaft.diagnostics.compat.inputs.read import read_command
from camshaft.diagnostics.compat.run import check_all

NUMBERS = {"1k": 1000, "1K": 1024, "25.6k": 25_600, " 8m ": 8_000_000, "2G": 2 << 30, "3t": 3 * 10**12}
SIZES = {"1GiB": 1 << 30, "500MB": 500_000_000, "1.5 GiB": 3 << 29, "64kB": 64_000, "16K": 16_384}
LARGE = {"a float's end": "9" * 400, "Python's end": "9" * 5000}


@pytest.mark.parametrize(("text", "number"), NUMBERS.items())
def test_a_letter_counts_in_thousands_or_in_1024s(text: str, number: int) -> None:
    assert human_readable(text) == human_readable_bytes(text) == number


@pytest.mark.parametrize(("text", "size"), SIZES.items())
def test_a_size_has_a_unit(text: str, size: int) -> None:
    assert human_readable_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "k", "12", "1.5", "1kk", "-1k", "1e3", *(n + "k" for n in LARGE.values())]
)
def test_anything_else_is_none_of_them(text: str) -> None:
    assert human_readable(text) is human_readable_bytes(text) is None


def test_decimals_of_a_power_of_two_are_refused() -> None:
    with pytest.raises(ValueError, match=r"did you mean 1\.5k\?"):
        human_readable("1.5K")


@pytest.mark.parametrize("suffix", ["", "k", "K"])
@pytest.mark.parametrize("digits", LARGE.values(), ids=LARGE.keys())
def test_a_number_that_no_machine_holds_is_refused_in_a_sentence(digits: str, suffix: str) -> None:
    with pytest.raises(ConfigError, match="max_num_batched_tokens"):
        load_config("cpu-demo", (f"max_num_batched_tokens={digits}{suffix}",))
    (result,) = check_all(read_command(f"vllm serve m --max-num-batched-tokens {digits}{suffix}"))
    assert result.starts is False or not suffix


@pytest.mark.parametrize("knob", ["seed", "max_num_batched_tokens", "kv_cache_memory_bytes", "max_model_len"])
@pytest.mark.parametrize("written", [str, int], ids=["text", "number"])
def test_a_number_that_no_counter_holds_is_refused_however_it_is_written(knob: str, written: type) -> None:
    with pytest.raises(ConfigError, match=rf"{knob}: a number below 2\^63 is needed"):
        load_config("cpu-demo", {knob: written("9" * 19)})
