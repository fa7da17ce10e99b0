"""Flags as `vllm serve` takes them."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from camshaft.cli.flags import as_settings
from camshaft.cli.names import settings
from camshaft.cli.serve import serve
from camshaft.core.config import ServeConfig

OWN = {"--config", "--set", "--port"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("m --max-model-len 4096", "m --set --max-model-len=4096"),
        ("--max_model_len=4096 m", "--set --max_model_len=4096 m"),
        ("--enforce-eager m", "--set --enforce-eager=true m"),
        ("--no-enable-prefix-caching m", "--set --no-enable-prefix-caching=true m"),
        ("--enforce-eager=false", "--set --enforce-eager=false"),
        ("--port 1 --set seed=3 --config x", "--port 1 --set seed=3 --config x"),
        ("m --swap-space 4", "m --set --swap-space=4"),
        ("--enable-log-deltas --port 1", "--set --enable-log-deltas=true --port 1"),
        ("-- --max-model-len 5", "-- --max-model-len 5"),
    ],
)
def test_flags_become_settings(words: str, told: str) -> None:
    assert as_settings(words.split(), OWN) == told.split()


def test_every_key_is_a_flag_and_switches_are_known() -> None:
    fields = ServeConfig.model_fields
    assert set(settings()) == set(fields)
    switches = {name for name, field in fields.items() if field.annotation in (bool, bool | None)}
    assert {name for name, switch in settings().items() if switch} == switches


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("m --max-model-len many", "--max-model-len: "),
        ("m --tensor-parallel-size 2", "tensor_parallel_size"),
        ("m --swap-space 4", "swap-space: a knob"),
        ("m --max-modl-len 5", "No such option '--max-modl-len'. Did you mean '--max-model-len'?"),
        ("m --no-enforce-eagr", "Did you mean '--no-enforce-eager'?"),
        ("m --max-num-sqs 4", "Did you mean '--max-num-seqs'?"),
        ("m --prt 4", "Did you mean '--port'?"),
        ("m --no-max-model-len 5", "No such option"),
        ("m --no-enforce-eager=3", "--no-enforce-eager: "),
        ("m --host=", "--host: "),
        ("m --port 1 --set host=", "--set host: "),
        ("m --max-model-len", "--max-model-len needs a value"),
        ("--max-model-len --port 1", "--max-model-len needs a value"),
    ],
)
def test_a_flag_is_refused_by_its_name(words: str, says: str) -> None:
    result = CliRunner().invoke(serve, words.split())
    assert result.exit_code == 2
    assert says in result.output
    assert "Traceback" not in result.output
