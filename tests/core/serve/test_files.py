"""Files that a configuration names, and the sampling that they set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from camshaft.core.config import ServeConfig
from camshaft.core.errors import ConfigError
from camshaft.core.serve.api.params import wanted
from camshaft.core.serve.api.service import ModelLimits
from camshaft.core.serve.api.wire import CompletionRequest
from camshaft.core.serve.files import check_certificate, read_chat_template, sampling_defaults


def config(**values: Any) -> ServeConfig:
    return ServeConfig(model="m", **values)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "do_sample": True, "max_new_tokens": 77}
    (tmp_path / "generation_config.json").write_text(json.dumps(found))
    return tmp_path


def test_the_model_s_own_sampling_is_the_default(folder: Path) -> None:
    defaults = sampling_defaults(config(), folder)
    assert dict(defaults.values) == {"temperature": 0.6, "top_p": 0.9, "top_k": 20}
    assert defaults.max_tokens == 77
    assert defaults.number("temperature", None, 1.0) == 0.6
    assert defaults.number("temperature", 0.0, 1.0) == 0.0
    assert defaults.number("min_p", None, 0.5) == 0.5


def test_overrides_win_and_vllm_ignores_the_model(folder: Path) -> None:
    overridden = sampling_defaults(config(override_generation_config={"temperature": 0.1}), folder)
    assert overridden.values["temperature"] == 0.1
    taken_back = sampling_defaults(config(override_generation_config={"temperature": None}), folder)
    assert "temperature" not in taken_back.values
    ignored = sampling_defaults(config(generation_config="vllm"), folder)
    assert (dict(ignored.values), ignored.max_tokens) == ({}, None)
    other = sampling_defaults(config(generation_config=str(folder)), None)
    assert other.values["top_k"] == 20


def test_the_operator_s_length_is_a_limit(folder: Path) -> None:
    """As in vLLM: that of override_generation_config or of a folder that is named, but not the model's own."""

    def given(asked: int | None, **values: Any) -> int:
        limits = ModelLimits(max_model_len=1000, vocab_size=10, max_prompt_chars=None)
        body = CompletionRequest(prompt="x", max_tokens=asked)
        return wanted(body, 1, (), limits, sampling_defaults(config(**values), folder)).params.max_tokens

    assert (given(500), given(500, generation_config="vllm")) == (500, 500)
    assert given(500, generation_config=str(folder)) == 77
    for source in ("auto", "vllm"):
        override = {"override_generation_config": {"max_new_tokens": 50}, "generation_config": source}
        assert (given(500, **override), given(40, **override), given(None, **override)) == (50, 40, 16)


def test_a_greedy_generation_config_sets_no_temperature(tmp_path: Path) -> None:
    found = {"do_sample": False, "temperature": 0.6, "repetition_penalty": 1.1}
    (tmp_path / "generation_config.json").write_text(json.dumps(found))
    assert dict(sampling_defaults(config(), tmp_path).values) == {"repetition_penalty": 1.1}


OUT_OF_RANGE = {
    "temperature": -3,
    "top_p": 7,
    "min_p": float("inf"),
    "repetition_penalty": 0,
    "top_k": 10**400,
}


def test_values_that_no_request_could_ask_for(tmp_path: Path) -> None:
    """The model's own are left out; those that an operator writes are refused."""
    (tmp_path / "generation_config.json").write_text(json.dumps(OUT_OF_RANGE))
    assert dict(sampling_defaults(config(), tmp_path).values) == {}
    for name, value in OUT_OF_RANGE.items():
        with pytest.raises(ConfigError, match=f"override_generation_config: {name}: "):
            sampling_defaults(config(override_generation_config={name: value}), None)


@pytest.mark.parametrize("text", ["{", "[1]", "[" * 100_000])
def test_a_broken_generation_config_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"generation_config\.json"):
        sampling_defaults(config(), tmp_path)


def test_chat_template_is_a_file_or_a_text(tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text("{{ messages }}")
    assert read_chat_template(str(file)) == "{{ messages }}"
    assert read_chat_template("{{ x }}") == "{{ x }}"
    assert read_chat_template(None) is None
    with pytest.raises(ConfigError, match="neither a readable file nor a template"):
        read_chat_template(str(tmp_path / "none.jinja"))


@pytest.mark.parametrize("names", [("cert.pem", "none.pem"), ("none.pem", None), (None, "cert.pem")])
def test_a_certificate_that_cannot_be_used_is_named(
    tmp_path: Path, names: tuple[str | None, str | None]
) -> None:
    (tmp_path / "cert.pem").write_text("no certificate")
    certificate, key = (str(tmp_path / name) if name else None for name in names)
    with pytest.raises(ConfigError, match=r"\.pem: not usable for HTTPS|needs ssl_certfile"):
        check_certificate(config(ssl_certfile=certificate, ssl_keyfile=key))
    check_certificate(config())
