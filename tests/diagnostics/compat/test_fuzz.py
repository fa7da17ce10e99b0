"""Whatever is handed in, the checker answers with findings or with one of its own errors."""

from __future__ import annotations

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from camshaft.core.errors import CamshaftError
from camshaft.diagnostics.compat.facts.model_input import read_model
from camshaft.diagnostics.compat.fix.plan import plan
from camshaft.diagnostics.compat.inputs.read import read_command, read_text
from camshaft.diagnostics.compat.releases.table import load
from camshaft.diagnostics.compat.releases.versions import versions
from camshaft.diagnostics.compat.render import FORMATS, render
from camshaft.diagnostics.compat.run import check_all

RELEASES = [str(version) for version in versions("vllm")]
SPELLINGS = sorted(
    {s for text in RELEASES[::9] for s in load("vllm", versions("vllm")[RELEASES.index(text)]).spellings()}
)
VALUES = st.one_of(
    st.sampled_from(
        ["1", "0", "-1", "4k", "auto", "false", "True", "None", "", "{}", '{"a": 1}', "[1", "$X", "x y", "--"]
    ),
    st.text(max_size=12),
)
WORDS = st.one_of(
    st.sampled_from(SPELLINGS),
    st.sampled_from(SPELLINGS).map(lambda text: text.replace("-", "_").replace("__", "--", 1)),
    st.tuples(st.sampled_from(SPELLINGS), VALUES).map("=".join),
    st.tuples(st.sampled_from(SPELLINGS), st.text("abc._", max_size=6), VALUES).map(
        lambda t: f"{t[0]}.{t[1]}={t[2]}"
    ),
    VALUES,
)
YAML_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)
PLACES = st.sampled_from(["a.yaml", "a.sh", "a.txt", "Dockerfile", "a.service", "docker-compose.yml", "a.py"])
RELEASE = st.sampled_from(RELEASES)


def judge(text: str, name: str, start: str | None, target: str | None, engine: str = "vllm") -> None:
    with contextlib.suppress(CamshaftError):
        configurations = read_text(text, name, None, engine)
        results = check_all(configurations, engine=engine, start=start, targets=[target] if target else [])
        for form in FORMATS:
            assert isinstance(render(form, results), str)
        for configuration, result in zip(configurations, results, strict=True):
            with contextlib.suppress(CamshaftError):
                plan(configuration, result, unsafe=True)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(WORDS, max_size=8), RELEASE, st.one_of(st.none(), RELEASE))
def test_command_lines(words: list[str], target: str, start: str | None) -> None:
    judge("vllm serve m " + " ".join(words), "a.sh", start, target)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.dictionaries(
        st.one_of(st.sampled_from(SPELLINGS).map(lambda s: s.lstrip("-")), st.text(max_size=6)), YAML_VALUES
    ),
    RELEASE,
    st.one_of(st.none(), RELEASE),
)
def test_settings_files(keys: dict[str, object], target: str, start: str | None) -> None:
    import yaml

    text = yaml.safe_dump(keys, allow_unicode=True)
    judge(text, "a.yaml", start, target)
    judge(text, "a.yaml", None, None, "camshaft")


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.text(max_size=60), PLACES, RELEASE)
def test_arbitrary_text(text: str, name: str, target: str) -> None:
    judge(text, name, None, target)


FRAGMENTS = st.lists(
    st.sampled_from(
        [
            "vllm serve ", "m ", "--swap-space ", "4 ", "\\\n", "'", '"', "$X ", "${Y:-4} ", "$(z) ", "`w` ", "A=b ",
            "export C=d\n", "E=(1 2)\n", '"${E[@]}" ', "; ", "&& ", "| tee x ", "> log ", "<<EOF\n", "EOF\n", "# c\n",
            "bash -c ", "docker run -e K=v vllm/vllm-openai:v0.9.0 ", "{", "}", "(", ")", "\n",
        ]
    ),
    max_size=14,
).map("".join)  # fmt: skip


@settings(max_examples=200, deadline=None, derandomize=True)
@given(FRAGMENTS, RELEASE)
def test_shell_fragments(text: str, target: str) -> None:
    judge(text, "a.sh", None, target)
    with contextlib.suppress(CamshaftError):
        check_all(read_command(text), targets=[target])


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.dictionaries(st.sampled_from(SPELLINGS).map(lambda s: s.lstrip("-").replace("-", "_")), YAML_VALUES),
    RELEASE,
    st.one_of(st.none(), RELEASE),
)
def test_python_keywords(keys: dict[str, object], target: str, start: str | None) -> None:
    judge(f"from vllm import LLM\nLLM('m', **{keys!r})\n", "a.py", start, target)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.text(max_size=20), st.text(max_size=20))
def test_versions_and_models(version: str, model: str) -> None:
    configurations = read_command("vllm serve m --swap-space 4")
    with contextlib.suppress(CamshaftError):
        assert check_all(configurations, targets=[version])
    with contextlib.suppress(CamshaftError):
        check_all(configurations, targets=["0.33.0"], model=read_model(model))
